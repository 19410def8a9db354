"""An Agno agent or team as a guest, and its stream translated to events."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pydantic_core
from ag_ui.core import ReasoningMessage, ResumeEntry, ToolMessage, UserMessage
from agno.agent import Agent
from agno.models.message import Message as AgnoMessage
from agno.models.response import ToolExecution
from agno.os.interfaces.agui.input import extract_media, extract_user_input, parse_client_tools
from agno.reasoning.step import ReasoningStep
from agno.run.base import RunContext, RunStatus
from agno.run.requirement import RunRequirement
from agno.team import Team

from agent_server.agents.guests.guest import GuestError, GuestInput, context_in_words
from events.vocabulary import (
    Custom,
    Event,
    Interrupt,
    InterruptOutcome,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunFinished,
    StateSnapshot,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)


class AgnoStream:
    """Converts one run's events: an agent's, or a team's, whose names have the prefix "Team". At most one of text and
    reasoning is open. `state` and `usage` are set at the end of the run."""

    def __init__(self) -> None:
        self._text = ""
        self._reasoning = ""
        self._emitted_calls: set[str] = set()
        self.state: dict[str, object] | None = None
        self.usage: list[TokenUsage] = []

    def read(self, event: Any) -> Iterator[Event]:
        match str(event.event).removeprefix("Team"):
            case "RunContent" | "RunIntermediateContent":
                yield from self._reason(event.reasoning_content)
                if event.content is not None and event.content != "":
                    if not self._text:
                        yield from self.close()
                        self._text = str(uuid.uuid4())
                        yield TextMessageStart(message_id=self._text, role="assistant")
                    yield TextMessageContent(message_id=self._text, delta=_text(event.content))
            case "ReasoningContentDelta":
                yield from self._reason(event.reasoning_content)
            case "ReasoningStep" if isinstance(event.content, ReasoningStep):
                step = event.content
                parts = (step.title, step.reasoning, step.action, step.result)
                yield from self._reason("\n".join(each for each in parts if each) + "\n\n")
            case "ToolCallStarted":
                yield from self.call(event.tool)
            case "ToolCallCompleted" if event.tool is not None:
                yield from self.call(event.tool)
                yield from self.close()  # a team's member may have written since the call
                # Agno provides the result as a string; an object is in Python's notation.
                result_id, call_id = str(uuid.uuid4()), event.tool.tool_call_id or ""
                yield ToolCallResult(message_id=result_id, tool_call_id=call_id, content=event.tool.result or "")
            case "CustomEvent":
                value = pydantic_core.to_jsonable_python(event.to_dict(), serialize_unknown=True)
                yield Custom(name=type(event).__name__, value=value)
            case "RunCompleted":
                if isinstance(event.session_state, dict):
                    self.state = event.session_state
                metrics = event.metrics
                if metrics is not None and metrics.total_tokens:
                    models = [each.id for kind in (metrics.details or {}).values() for each in kind]
                    used = TokenUsage(
                        model=models[0] if len(models) == 1 else None,
                        input_tokens=metrics.input_tokens,
                        output_tokens=metrics.output_tokens,
                        total_tokens=metrics.total_tokens,
                    )
                    self.usage = [used]
            case _:
                pass

    def call(self, tool: ToolExecution | None) -> Iterator[Event]:
        """Return the events of a call that has not been emitted yet."""
        if tool is None or not tool.tool_call_id or tool.tool_call_id in self._emitted_calls:
            return
        id = tool.tool_call_id
        self._emitted_calls.add(id)
        yield from self.close()
        yield ToolCallStart(tool_call_id=id, tool_call_name=tool.tool_name or "")
        yield ToolCallArgs(tool_call_id=id, delta=pydantic_core.to_json(tool.tool_args or {}).decode())
        yield ToolCallEnd(tool_call_id=id)

    def close(self) -> Iterator[Event]:
        if self._text:
            yield TextMessageEnd(message_id=self._text)
        if self._reasoning:
            yield ReasoningMessageEnd(message_id=self._reasoning)
            yield ReasoningEnd(message_id=self._reasoning)
        self._text = self._reasoning = ""

    def _reason(self, text: object) -> Iterator[Event]:
        if not isinstance(text, str) or not text:
            return
        if not self._reasoning:
            yield from self.close()
            self._reasoning = str(uuid.uuid4())
            yield ReasoningStart(message_id=self._reasoning)
            yield ReasoningMessageStart(message_id=self._reasoning, role="reasoning")
        yield ReasoningMessageContent(message_id=self._reasoning, delta=text)


def _text(content: object) -> str:
    """Content as a string; an object, from an agent with an output schema, as JSON."""
    return content if isinstance(content, str) else pydantic_core.to_json(content, serialize_unknown=True).decode()


NO_DATABASE = (
    "The agent asks before a call, but has no database to keep the run until the answer comes. "
    "Give it one: Agent(db=...)."
)
LOST = "The run that this answers is not in the agent's database. Ask the agent again."
OWN_IDS = frozenset({"current_user_id", "current_session_id", "current_run_id"})
"""Keys that Agno adds to a run's state, which clients do not get."""
ENDED = frozenset({"RunError", "TeamRunError", "RunCancelled", "TeamRunCancelled"})
APPROVAL: dict[str, object] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "editedArgs": {"type": "object"}, "note": {"type": "string"}},
    "required": ["approved"],
}


class AgnoGuest:
    """Serves one agent or team. Every run gets the whole conversation, without Agno's own history. With a database
    (`db`) the agent can stop to ask a person. An agent without a model uses this server's."""

    kind = "agno"
    errors_for_clients = False
    partial_snapshots = False

    def __init__(self, agent: Agent | Team) -> None:
        if agent.model is None:
            from agno.models.openai import OpenAIChat

            from agent_server.agents.guests.in_process import openai_client

            agent.model = OpenAIChat(id="default", async_client=openai_client())
        self._agent = agent

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        stream = AgnoStream()
        interrupts: list[Interrupt] = []
        before = copy.deepcopy(input.state)
        try:
            async for item in await self._resume(input) if input.resume else self._start(input):
                kind = str(item.event)
                if kind in ENDED:
                    raise RuntimeError(f"{kind}: {getattr(item, 'content', None) or getattr(item, 'reason', None)}")
                if not kind.endswith("RunPaused"):
                    for event in stream.read(item):
                        yield event
                    continue
                # The calls that the run stopped before. The client makes those of its own tools; the others become
                # questions.
                waiting: list[RunRequirement] = [each for each in item.requirements or () if not each.is_resolved()]
                to_ask = [each for each in waiting if each.pause_type != "external_execution"]
                if to_ask and self._agent.db is None:
                    raise GuestError(NO_DATABASE)
                for each in to_ask:
                    tool = each.tool_execution
                    name = tool.tool_name if tool is not None else "a tool"
                    approval = each.pause_type == "confirmation"
                    question = Interrupt(
                        id=each.id,
                        reason="tool_call" if approval else "input_required",
                        message=f"Call {name}?" if approval else f"{name} needs values.",
                        tool_call_id=tool.tool_call_id if tool is not None else None,
                        response_schema=APPROVAL if approval else None,
                        metadata=None if approval else {"value": _requested_fields(each)},
                    )
                    interrupts.append(question)
                for requirement in waiting:
                    for event in stream.call(requirement.tool_execution):
                        yield event
            for event in stream.close():
                yield event
            if stream.state is not None:
                own_state = {key: value for key, value in stream.state.items() if key not in OWN_IDS}
                shared = pydantic_core.to_jsonable_python(own_state, serialize_unknown=True)
                if shared != (before or {}):
                    yield StateSnapshot(snapshot=shared)
        finally:
            if not input.stored and self._agent.db is not None:
                await self._agent.adelete_session(input.thread_id)
        outcome = InterruptOutcome(interrupts=interrupts) if interrupts else None
        yield RunFinished(thread_id=input.thread_id, run_id=input.run_id, outcome=outcome, usage=stream.usage or None)

    async def close(self) -> None:
        pass

    def _start(self, input: GuestInput) -> Any:
        """Start a run with the client's context, followed by all messages."""
        messages: list[AgnoMessage] = []
        for each in input.messages:
            if isinstance(each, ReasoningMessage):
                continue
            fields: dict[str, Any] = {"id": each.id, "role": each.role, "content": getattr(each, "content", None)}
            if isinstance(each, UserMessage) and not isinstance(each.content, str):
                images, audio, videos, files = extract_media([each])
                fields["content"] = extract_user_input([each])
                fields |= {"images": images or None, "audio": audio or None}
                fields |= {"videos": videos or None, "files": files or None}
            elif isinstance(each, ToolMessage):
                fields |= {"tool_call_id": each.tool_call_id, "content": _plain(each.content)}
            elif calls := getattr(each, "tool_calls", None):
                fields["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in calls]
            messages.append(AgnoMessage(**fields))
        context = context_in_words(input.context or ())
        conversation = messages if context is None else [AgnoMessage(role="system", content=context), *messages]
        return self._agent.arun(
            input=conversation,
            stream=True,
            stream_events=True,
            session_id=input.thread_id,
            run_context=_context(input),
            add_history_to_context=False,
        )

    async def _resume(self, input: GuestInput) -> Any:
        session = await self._agent.aget_session(session_id=input.thread_id) if self._agent.db is not None else None
        answers = {each.interrupt_id: each for each in input.resume or ()}
        for run in getattr(session, "runs", None) or ():
            if run.status == RunStatus.paused and any(each.id in answers for each in run.requirements or ()):
                requirements = copy.deepcopy(run.requirements)
                # Put the answers and the results of the client's tools where Agno expects them.
                results = {
                    each.tool_call_id: _plain(each.content) for each in input.messages if isinstance(each, ToolMessage)
                }
                for requirement in requirements:
                    tool = requirement.tool_execution
                    if requirement.needs_external_execution and tool is not None:
                        requirement.set_external_execution_result(
                            results.get(tool.tool_call_id or "", "The client gave no result.")
                        )
                    elif requirement.id in answers:
                        _answer(requirement, answers[requirement.id])
                return self._agent.acontinue_run(
                    run_id=run.run_id,
                    session_id=input.thread_id,
                    requirements=requirements,
                    stream=True,
                    stream_events=True,
                    run_context=_context(input, run.run_id),
                )
        raise GuestError(LOST)


def _context(input: GuestInput, run_id: str | None = None) -> RunContext:
    """The client's data for the run's tools. It has ids of its own, since clients' ids may clash between tenants."""
    own = run_id or f"{input.thread_id}/{input.run_id}"
    state = input.state if isinstance(input.state, dict) else {}
    tools = parse_client_tools(input.tools) or None
    return RunContext(run_id=own, session_id=input.thread_id, session_state=copy.deepcopy(state), client_tools=tools)


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if part.type == "text")


def _requested_fields(requirement: RunRequirement) -> object:
    schema = requirement.user_feedback_schema or requirement.user_input_schema or []
    return pydantic_core.to_jsonable_python(list(schema), serialize_unknown=True)


def _answer(requirement: RunRequirement, entry: ResumeEntry) -> None:
    payload: Any = entry.payload if entry.status == "resolved" else None
    values = payload if isinstance(payload, dict) else {}
    if requirement.pause_type == "confirmation":
        if values.get("approved") is not True:
            requirement.reject(note=values.get("note"))
            return
        if requirement.tool_execution is not None and isinstance(values.get("editedArgs"), dict):
            requirement.tool_execution.tool_args = values["editedArgs"]
        requirement.confirm()
    elif requirement.pause_type == "user_feedback":
        requirement.provide_user_feedback(values.get("selections", values))
    else:
        requirement.provide_user_input(values.get("values", values))
    if not requirement.is_resolved():
        raise GuestError(f"The answer lacks requested values: {json.dumps(_requested_fields(requirement))}")
