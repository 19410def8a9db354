"""Calls of an MCP server's tool: their rounds with questions to a person, tasks, progress, and the check of results."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Coroutine, Mapping

import msgspec
from mcp import MCPError
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import URL_ELICITATION_REQUIRED, CallToolResult, ElicitResult

from agent_server.agents.mcp.apps import app_activity
from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.elicitation import (
    AnsweredQuestion,
    Ask,
    CheckedResult,
    Elicitation,
    OpenCall,
    UnsupportedInput,
    answered_question,
    consent_to,
    elicitation_of,
    required_urls,
    result_for,
    round_of,
)
from agent_server.agents.mcp.errors import McpUnavailable, reason_of
from agent_server.agents.mcp.listing import ServerTool
from agent_server.agents.mcp.resources import (
    content_of,
)
from agent_server.agents.mcp.sessions import McpConnection, ToolRequest
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool, capped
from agent_server.agents.tool_context import ToolContext
from agent_server.models.prompting.validation import validate
from agent_server.settings import ToolLimits

logger = logging.getLogger("agent_server.mcp")
TASK_SECONDS = 24 * 3600.0
"""The time limit of a call that its server executes as a task, if its settings have none."""
PROGRESS_SECONDS, PROGRESS_LENGTH = 0.1, 500
"""The least interval between two progress messages of a call, and the characters of one."""
DECLINED = "the user declined what its MCP server asked for"
CANNOT_ASK = "its MCP server asked the user something, which was declined, since this connection cannot ask a person"
LOST = "The server restarted while the user was asked. Whether the call did anything is unknown; it was not repeated."


class McpCallee:
    """A tool of a server, as the agent's loop calls it.

    Calls of a tool that declares itself read-only may start before the message is complete. A call whose connection is
    lost is repeated once, on a new connection, if the tool declares that this is harmless.
    """

    checks = False
    at_once: int | None = None
    retry_approval: Tool | None = None

    def __init__(self, connection: McpConnection, offered: ServerTool, limits: ToolLimits) -> None:
        tool = offered.tool
        self._connection = connection
        self._tool = tool
        self._output_schema = offered.output_schema
        self._seconds = connection.server.time_limit or limits.seconds
        self._task_seconds = connection.server.time_limit or TASK_SECONDS
        self._characters = limits.characters
        annotations = tool.annotations
        self.early = bool(annotations is not None and annotations.read_only_hint)
        self.repeatable = self.early or bool(annotations is not None and annotations.idempotent_hint)
        self.concurrency_key = f"{connection.server.name} {tool.name}"

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        problem = await argument_problem(arguments, self._tool.input_schema)
        if problem is not None:
            return failure(problem)
        name, server = self._tool.name, self._connection.server.name
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                outcome = await self._outcome(arguments, context, deadline)
            if isinstance(outcome, CallResult):
                return outcome
            result, wrong = outcome
        except TimeoutError:
            if deadline.expired():
                seconds = self._task_seconds if context.has_handle else self._seconds
                return failure(f"{name} took longer than {seconds:g} s.")
            return failure(f"The MCP server {server} did not answer: timeout.")
        except UnsupportedInput as error:
            return failure(f"{name} requires {error} of its client, which this server does not offer.")
        except MCPError as error:
            return failure(f"{name} was refused: {error.error.message[:500]}")
        except McpUnavailable as error:
            return failure(f"The MCP server {server} {error}.")
        except ConnectionError as error:
            return failure(f"The MCP server {server} did not answer: {error}.")
        except Exception as error:
            logger.warning("MCP server %s: a result of %s cannot be used", server, name, exc_info=error)
            return failure(f"The result of {name} cannot be used: {reason_of(error)}.")
        finally:
            context.cancel()
        # The model gets the result, and the client a warning for each problem with it.
        content = capped(content_of(result), self._characters)
        mismatch: str | None = None
        if self._output_schema is not None and result.structured_content is None and not result.is_error:
            mismatch = "it has no structured content, although the tool declares an outputSchema"
        elif self._output_schema is not None and not result.is_error:
            invalid = await validate(json.dumps(result.structured_content), self._output_schema)
            if invalid is not None:
                mismatch = f"it does not fit the tool's outputSchema ({str(invalid)[:300]})"
        problems = wrong if mismatch is None else [*wrong, mismatch]
        for each in problems:
            logger.warning("MCP server %s: the result of %s: %s", server, self._tool.name, each)
        warnings = tuple(f"The result of {self._tool.name} (MCP server {server}): {each}." for each in problems[:3])
        if result.is_error:
            return CallResult(content=content, failed=True, warnings=warnings)
        activity = app_activity(server, self._tool, context.tool_call_id, arguments, result)
        typed = result.structured_content if self._output_schema is not None and mismatch is None else None
        if typed == {"result": content}:  # SDKs wrap a text in an object, which adds nothing to the text
            typed = None
        return CallResult(
            content=content,
            structured=typed if typed is None or len(json.dumps(typed)) <= self._characters else None,
            activities=() if activity is None else (activity,),
            warnings=warnings,
        )

    async def _outcome(
        self, arguments: dict[str, object], context: ToolContext, deadline: asyncio.Timeout
    ) -> tuple[CallToolResult, list[str]] | CallResult:
        """Return the tool's result, or a CallResult in its place: a question to a person, or a failure."""
        server = self._connection.server.name
        elicitation: Elicitation | None = None

        async def keep_task(handle: str) -> None:
            deadline.reschedule(asyncio.get_running_loop().time() + self._task_seconds)
            handle_state = Elicitation(task=handle) if elicitation is None or elicitation.task is None else elicitation
            await context.keep_handle(msgspec.to_builtins(handle_state))

        if context.continuation is not None:
            elicitation = msgspec.convert(context.continuation, Elicitation)
            if (key := elicitation.open_key) is not None:
                elicitation.answer(key, result_for(context.answers[-1], elicitation.params(key)))
            if elicitation.open_key is not None:
                return CallResult(question=elicitation.question(server))
            if elicitation.task is not None:
                await keep_task(elicitation.task)
        while True:
            if elicitation is not None and not elicitation.sends and elicitation.refused:
                reason = DECLINED if context.may_ask else CANNOT_ASK
                return failure(f"{self._tool.name} was not carried out: {reason}.")
            call = self._open_call(arguments, context, elicitation)
            if call is None:
                return failure(f"{self._tool.name}: {LOST}")
            call.on_task = keep_task
            next_round = await self._next_round(call, context)
            if isinstance(next_round, tuple):
                result, wrong = next_round
                return result, wrong if context.may_ask or not call.declined else [*wrong, CANNOT_ASK]
            elicitation = next_round
            if context.may_ask:
                return CallResult(question=elicitation.question(server))
            for key in elicitation.requests:
                elicitation.answer(key, ElicitResult(action="decline"))

    def _open_call(
        self, arguments: dict[str, object], context: ToolContext, elicitation: Elicitation | None
    ) -> OpenCall | None:
        """Return the request to wait for: the one that is still open, or a new one. None if it was lost and may have
        had effects."""
        earlier_answers: list[AnsweredQuestion] = []
        if elicitation is not None and elicitation.open_call is not None:
            params, response = elicitation.params("0"), ElicitResult.model_validate(elicitation.responses["0"])
            call = self._connection.open_calls.pop(elicitation.open_call, None)
            if call is not None:
                call.answer(response)
                return call
            if not self.repeatable and elicitation.task is None:
                return None
            earlier_answers = [*elicitation.answered, answered_question(params, response)]
        sends = elicitation is not None and elicitation.sends and elicitation.open_call is None

        def start(ask: Ask, progress: ProgressFnT) -> Coroutine[object, object, CheckedResult]:
            request = ToolRequest(
                name=self._tool.name,
                arguments=arguments,
                tool=self._tool,
                task=None if elicitation is None else elicitation.task,
                on_task=lambda handle: opened.became_task(handle),
                progress=progress,
                ask=ask,
                owner=(context.tenant, context.thread_id),
                responses=elicitation.input_responses() if elicitation is not None and sends else None,
                state=elicitation.state if elicitation is not None and sends else None,
            )
            return self._connection.call(request, repeatable=self.repeatable)

        call = opened = OpenCall(start, earlier_answers, may_ask=context.may_ask)
        call.declined = elicitation is not None and elicitation.refused
        call.task_handle = None if elicitation is None else elicitation.task
        return call

    async def _next_round(self, call: OpenCall, context: ToolContext) -> tuple[CallToolResult, list[str]] | Elicitation:
        """Wait for the outcome of a request: the tool's result, or the questions that a person must answer first."""
        call.progress = _Progress(context).show
        try:
            outcome = await call.wait()
        except ConsentRequired as consent:
            return consent_to(self._connection.server.name, consent.url)
        except MCPError as error:
            required = required_urls(error.error.data) if error.code == URL_ELICITATION_REQUIRED else None
            if required is None:
                raise
            return required
        except BaseException as error:
            call.cancel()
            # If this server shuts down, another one continues the run and fetches the result.
            if call.task_handle is not None and isinstance(error, asyncio.CancelledError) and not context.is_leaving:
                self._connection.abandon_task(call.task_handle)
            raise
        if isinstance(outcome, tuple):
            result, wrong = outcome
            if isinstance(result, CallToolResult):
                return result, wrong
            return round_of(result, call.task_handle)
        open_calls, key = self._connection.open_calls, f"{context.tenant} {context.thread_id} {context.tool_call_id}"
        open_calls[key] = call
        call.keep(lambda: call.cancel() if open_calls.pop(key, None) is call else None)
        return elicitation_of(call, outcome, key)


class _Progress:
    """Forwards a server's progress messages as the call's own, and drops those that come too fast."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._last_shown = -PROGRESS_SECONDS

    async def show(self, progress: float, total: float | None, message: str | None) -> None:
        if time.monotonic() - self._last_shown < PROGRESS_SECONDS:
            return
        self._last_shown = time.monotonic()
        text = message[:PROGRESS_LENGTH] if message is not None else None
        fields = {"progress": progress if progress or total is not None else None, "total": total, "message": text}
        self._context.progress({key: value for key, value in fields.items() if value is not None})


async def argument_problem(arguments: dict[str, object], schema: Mapping[str, object]) -> str | None:
    """Return what is wrong with the arguments, or None. An invalid schema accepts any, and the server checks them."""
    invalid = await validate(json.dumps(arguments), schema)
    if invalid is None:
        return None
    path, message = invalid.problems[0]
    return f"Invalid arguments: {path.strip('/').replace('/', '.') or 'arguments'}: {message}"
