"""Sessions with MCP servers: `McpConnection` has the state of one server, `McpSession` is one session with it.

A session runs in a task of its own, since the client's cancel scopes must be exited in the task that entered them. It
connects, lists the tools, and then waits for its end. Runs wait a limited time for the tools and then continue without
the server, while the session continues to open. After the server has ended a session, the next use opens a new one, and
a request is repeated if that is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

import msgspec
from mcp import Client, MCPError
from mcp.client.extension import advertise
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.shared.dispatcher import ProgressFnT
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    CallToolResult,
    Completion,
    ElicitRequestParams,
    ElicitResult,
    GetPromptResult,
    InputRequiredResult,
    InputResponses,
    PromptListChangedNotification,
    PromptReference,
    ReadResourceResult,
    ResourceListChangedNotification,
    ResourceTemplateReference,
    TaskMetadata,
    ToolListChangedNotification,
)
from mcp_types import Result as McpResult
from mcp_types import Tool as McpTool
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agent_server.agents.mcp import tasks
from agent_server.agents.mcp.apps import APPS, APPS_SETTINGS
from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.elicitation import Ask, CheckedResult, OpenCall, Result
from agent_server.agents.mcp.errors import (
    ConnectionLost,
    McpUnavailable,
    SessionExpired,
    consent_url,
    innermost,
    reason_of,
)
from agent_server.agents.mcp.guarded_client import EXPIRED, UNREACHABLE
from agent_server.agents.mcp.listing import Listing, list_offers
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.mcp.repairs import WARNINGS
from agent_server.agents.mcp.transports import Identity, Streams, repaired, stdio, streamable_http

logger = logging.getLogger("agent_server.mcp")
T = TypeVar("T")
NO_IDENTITY = Identity()
State = Literal["unused", "connecting", "ready", "consent", "failed"]
OPEN_SECONDS = 60.0
"""How long a server may take to start, initialize and list its tools; some are downloaded first."""
WAIT_SECONDS = 5.0
"""How long runs wait for a server that is opening."""
RETRY_WAIT_SECONDS = 1.0
"""How long runs wait for a server that did not start the last time."""
RETRY_DELAY_SECONDS, MAX_RETRY_DELAY_SECONDS = 5.0, 60.0
"""The delay before an unreachable server is tried again; it doubles with each failure, up to the second value."""
RELIST_SECONDS = 1.0
"""The least interval between two listings, however often the server reports changes."""
LIST_CHANGES = (ToolListChangedNotification, ResourceListChangedNotification, PromptListChangedNotification)
CLOSE_SECONDS = 10.0
TASK_RETRIES = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0)
"""The delays before a task's state is requested again while its server is unreachable, in seconds."""
MOST_QUESTIONS = 16
"""The questions that may wait for an answer in one call; further ones are cancelled."""
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.05, 1.0
"""The delay before a request is repeated whose server asked only for a repetition; it doubles each time."""


class ToolRequest(msgspec.Struct, kw_only=True, eq=False):
    """A tools/call.

    tool: the tool as it is offered. ask: answers the server's questions while the request is open. owner: for whom the
    call is made; questions of one owner's requests are never shown to another. responses, state: those of the previous
    round. task: the handle with which to fetch the result, if the server has returned one; on_task stores it.
    """

    name: str
    arguments: dict[str, Any]
    tool: McpTool | None = None
    progress: ProgressFnT | None = None
    ask: Ask | None = None
    owner: object = None
    responses: InputResponses | None = None
    state: str | None = None
    task: str | None = None
    on_task: Callable[[str], Awaitable[None]] | None = None


class McpSession:
    """One session with a server, from its start to its end.

    client, listing: valid when it is `opened` without a `problem`. consent_url: where the user must sign in before it
    can be opened.
    """

    client: Client

    def __init__(self, server: McpServer, identity: Identity) -> None:
        self.server = server
        self.identity = identity
        self.consent_url = ""
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()
        self.problem = ""
        self.reason = ""
        self.listing = Listing()
        self.stale = False
        self.started = time.monotonic()
        self.ended_at = 0.0
        self._closing = asyncio.Event()
        self._requests = 0
        self._calls: list[ToolRequest] = []
        self._questions: list[tuple[ElicitRequestParams, asyncio.Future[ToolRequest | None]]] = []
        self.has_asked = False
        self._asking = 0
        self._retired = False
        self._listed = 0.0
        self._relisting: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run_session(), name=f"mcp {server.name}")

    @property
    def alive(self) -> bool:
        """Whether requests can be made, now or when it is opened."""
        return not self._retired and not (self.opened.is_set() and self.ended.is_set())

    @property
    def idle(self) -> bool:
        return self.opened.is_set() and not self._requests

    @property
    def busy(self) -> bool:
        """Whether a call is running during which the server may ask a person."""
        return bool(self._calls)

    async def run(self, work: Coroutine[object, object, T]) -> T:
        """Await a request. Raises MCPError if the server refuses it, ConnectionLost, SessionExpired or
        ConsentRequired."""
        self._requests += 1
        request = asyncio.ensure_future(work)
        end = asyncio.ensure_future(self.ended.wait())
        try:
            await asyncio.wait({request, end}, return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise ConnectionLost("the server went away during the call")
            return request.result()
        except MCPError as error:
            # The code alone does not tell whether the session has ended: servers use -32000 for errors of their own.
            details = error.error
            if details.data == EXPIRED:
                raise SessionExpired("the server ended the session") from error
            if (url := consent_url(error)) is not None:
                raise ConsentRequired(url) from error
            if details.data == UNREACHABLE:
                raise ConnectionLost(details.message) from error
            has_ended = self.ended.is_set() or details.message.startswith("SSE stream")
            if details.code == CONNECTION_CLOSED and has_ended:
                raise ConnectionLost("the server went away during the call") from error
            raise
        finally:
            request.cancel()
            end.cancel()
            del request  # its error's traceback refers to this frame
            self._requests -= 1
            self._close_when_idle()

    def retire(self) -> None:
        """Accept no further requests, and end the session when the running ones have ended."""
        self._retired = True
        self._close_when_idle()

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait({self.task}, timeout=CLOSE_SECONDS)
        self.task.cancel()

    def _close_when_idle(self) -> None:
        if self._retired and not self._requests:
            self._closing.set()

    # ---- calls and the questions in them ----------------------------------------------------------------------------

    async def call_tool(self, call: ToolRequest) -> Result:
        """Return the result of a tool, or the questions that a person must answer first."""
        responses, state, delay = call.responses, call.state, POLL_SECONDS
        self._calls.append(call)
        try:
            while True:
                try:
                    result = await self._request_once(call, responses, state)
                except MCPError as error:
                    if error.code != HEADER_MISMATCH or self.client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                        raise
                    # The specification's recovery: the schema from which the headers are made is outdated.
                    self.listing = await self._list()
                    result = await self._request_once(call, responses, state)
                if not isinstance(result, InputRequiredResult) or result.input_requests:
                    return result
                await asyncio.sleep(delay)
                responses, state, delay = None, result.request_state, min(2 * delay, LONGEST_POLL_SECONDS)
        finally:
            self._calls.remove(call)
            self._assign_questions()

    async def _request_once(self, call: ToolRequest, responses: InputResponses | None, state: str | None) -> Result:
        """Make one request, and follow its task if the server answers with one."""
        session = self.client.session
        if call.task is None:
            result: McpResult
            if call.tool is not None and tasks.starts_tasks(session, call.tool):
                metadata = TaskMetadata(ttl=tasks.TTL_MS)
                params = tasks.TaskCallParams(name=call.name, arguments=call.arguments, task=metadata)
                request = tasks.TaskCallRequest(params=params)
                result = await session.send_request(request, CallToolResult, progress_callback=call.progress)
            else:
                result = await session.call_tool(
                    call.name,
                    call.arguments,
                    progress_callback=call.progress,
                    input_responses=responses,
                    request_state=state,
                    allow_input_required=True,
                    allow_claimed=True,
                )
            call.task, responses = tasks.task_in(result), None
            if call.task is None:
                assert isinstance(result, CallToolResult | InputRequiredResult)
                return result
            if call.on_task is not None:
                await call.on_task(call.task)
        return await tasks.follow(session, call.task, responses, call.progress)

    async def _elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        """Answer a question that the server asks while calls are open. It does not say which call it belongs to."""
        self.has_asked = True
        if self._asking >= MOST_QUESTIONS * max(1, len(self._calls)):
            logger.debug("MCP server %s: a question was cancelled, since too many wait", self.server.name)
            return ElicitResult(action="cancel")
        assigned: asyncio.Future[ToolRequest | None] = asyncio.get_running_loop().create_future()
        self._questions.append((params, assigned))
        self._asking += 1
        try:
            self._assign_questions()
            call = await assigned
            if call is None or call.ask is None:
                logger.warning("MCP server %s: a question was cancelled, since its call is unknown", self.server.name)
                return ElicitResult(action="cancel")
            return await call.ask(params)
        finally:
            self._asking -= 1

    def _assign_questions(self) -> None:
        """Assign questions to calls as soon as the assignment is certain: a single call remains, or each call waits for
        an answer and all have the same owner. Otherwise wait until the calls without a question have ended."""
        calls = [each for each in self._calls if each.ask is not None]
        if len(calls) > 1 and len(self._questions) < len(calls):
            return
        one_owner = len({each.owner for each in calls}) == 1
        for at, (_, assigned) in enumerate(self._questions):
            if not assigned.done():
                assigned.set_result(calls[at % len(calls)] if one_owner else None)
        self._questions.clear()

    # ---- opening and ending -----------------------------------------------------------------------------------------

    async def _run_session(self) -> None:
        try:
            async with asyncio.timeout(OPEN_SECONDS) as deadline:
                try:
                    await self._open("auto", deadline)
                except BaseExceptionGroup as group:
                    raise innermost(group) from group
        except TimeoutError:
            self.problem = f"did not answer within {OPEN_SECONDS:g} s" if deadline.expired() else "did not answer"
            logger.warning("MCP server %s %s", self.server.name, self.problem)
        except asyncio.CancelledError:
            self.problem = "was given up"
            raise
        except BaseException as error:
            if isinstance(error, MCPError) and (url := consent_url(error)) is not None:
                self.consent_url, self.problem = url, "requires the user to sign in"
                return
            self.reason = reason_of(error)
            self.problem = str(error) if isinstance(error, McpUnavailable) else "could not be reached"
            logger.warning("MCP server %s %s (%s)", self.server.name, self.problem, self.reason)
        finally:
            self.ended_at = time.monotonic()
            self.ended.set()
            self.opened.set()

    async def _open(self, mode: str, deadline: asyncio.Timeout) -> None:
        """Connect, list the tools, and wait for the end of the session. If a server does not accept the first request
        of the newest protocol, or ends because of it, connect once more with the older handshake."""
        try:
            async with Client(
                repaired(self._transport(), self.ended),
                mode=mode,
                extensions=[advertise(APPS, APPS_SETTINGS), tasks.TasksExtension()],
                message_handler=self._on_message,
                elicitation_callback=self._elicit,
                cache=None,
            ) as client:
                self.client = client
                self.listing = await self._list()
                deadline.reschedule(None)
                self.opened.set()
                # Wait until the server or this side ends the session.
                changes = asyncio.ensure_future(self._follow_changes())
                waits = {asyncio.ensure_future(event.wait()) for event in (self._closing, self.ended)}
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in (changes, *waits, *(() if self._relisting is None else (self._relisting,))):
                        each.cancel()
                if not self._closing.is_set():
                    logger.warning("MCP server %s: it ended the connection", self.server.name)
        except (MCPError, BaseExceptionGroup) as error:
            refused = innermost(error)
            if self.opened.is_set() or mode != "auto" or not isinstance(refused, MCPError):
                raise
            if refused.error.data == UNREACHABLE or consent_url(refused) is not None:
                raise
            self.ended.clear()
            await self._open("legacy", deadline)

    def _transport(self) -> contextlib.AbstractAsyncContextManager[Streams]:
        return stdio(self.server) if self.server.command else streamable_http(self.server, self.identity)

    # ---- the server's tools -----------------------------------------------------------------------------------------

    async def _list(self) -> Listing:
        """List what the server offers, and note when. Raises as `list_offers`."""
        self.stale = False
        listing = await list_offers(self.client, self.server)
        self._listed = time.monotonic()
        return listing

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, LIST_CHANGES):
            self._note_change()

    async def _follow_changes(self) -> None:
        """Subscribe to changes of the lists, which servers of the newest protocol require."""
        capabilities = self.client.server_capabilities
        tools, resources, prompts = (
            each is not None and each.list_changed is True
            for each in (capabilities.tools, capabilities.resources, capabilities.prompts)
        )
        if self.client.protocol_version not in MODERN_PROTOCOL_VERSIONS or not (tools or resources or prompts):
            return
        try:
            async with self.client.listen(
                tools_list_changed=tools, resources_list_changed=resources, prompts_list_changed=prompts
            ) as changes:
                async for _ in changes:
                    self._note_change()
        except Exception as error:
            logger.info("MCP server %s: its changes cannot be subscribed to (%s)", self.server.name, reason_of(error))

    def _note_change(self) -> None:
        self.stale = True
        if self.opened.is_set() and time.monotonic() - self._listed > RELIST_SECONDS:
            self._relist()

    async def refresh(self, seconds: float) -> None:
        """List the tools again if they changed. If that fails or takes too long, the previous listing stays."""
        if self.stale or self._relisting is not None:
            await asyncio.wait({self._relist()}, timeout=seconds)

    def _relist(self) -> asyncio.Task[None]:
        async def list_again() -> None:
            name = self.server.name
            try:
                self.listing = await self._list()
            except Exception as error:
                logger.warning("MCP server %s: its tools cannot be listed again (%s)", name, reason_of(error))

        if self._relisting is None or self._relisting.done():
            self._relisting = asyncio.create_task(list_again(), name=f"mcp list {self.server.name}")
        return self._relisting


class McpConnection:
    """The state of one server and the session with it, shared by all runs or by those of one user."""

    def __init__(self, server: McpServer, identity: Identity = NO_IDENTITY) -> None:
        self.server = server
        self.identity = identity
        self.used = time.monotonic()
        self._session: McpSession | None = None
        self._retiring: set[McpSession] = set()
        self._failures = 0
        self._retry_at = 0.0
        self._asks_questions = False
        self.open_calls: dict[str, OpenCall] = {}
        self._abandoning: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        session = self._session
        if session is None or session.consent_url:
            return "unused" if session is None else "consent"
        if not session.opened.is_set():
            return "connecting"
        return "ready" if session.alive else "failed"

    @property
    def problem(self) -> str:
        """Why the server cannot be used, without its command or address; "" if it can."""
        session = self._session
        return "" if session is None or session.alive else session.problem or "ended the connection"

    @property
    def listing(self) -> Listing:
        """The current listing, without a request to the server."""
        return self._session.listing if self._session is not None and self._session.alive else Listing()

    async def tools(self, seconds: float | None = None) -> Listing:
        """Return what the server offers. Raises McpUnavailable or ConsentRequired.

        seconds: how long to wait for a server that is opening, counted from its start; None for the time that runs
        wait.
        """
        self.used = time.monotonic()
        if seconds is None:
            seconds = RETRY_WAIT_SECONDS if self._failures else WAIT_SECONDS
        session = self._current()
        if not session.opened.is_set():
            remaining = max(0.0, session.started + seconds - time.monotonic())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await session.opened.wait()
        self._check(session)
        await session.refresh(seconds)
        return session.listing

    async def call(self, call: ToolRequest, *, repeatable: bool = False) -> CheckedResult:
        """Return a tool's result, and the problems with it.

        repeatable: whether the call may be repeated if it is unknown whether it was executed. Raises MCPError if the
        server refuses the call, ConsentRequired, and ConnectionError if the server is unreachable.
        """
        self.used = time.monotonic()
        session = self._session
        if session is not None:
            self._asks_questions = self._asks_questions or session.has_asked
            # The server's questions do not name their call, so each call gets a session of its own.
            if self._asks_questions and session.busy and session.alive:
                self._retire(session)
        for delay in (*TASK_RETRIES, 0.0):
            try:
                result = await self._request(
                    lambda session: session.call_tool(call), lambda: repeatable or call.task is not None
                )
                break
            except ConnectionError:
                # A task continues without the connection: its server may soon be back and still know it.
                if call.task is None or not delay:
                    raise
                await asyncio.sleep(delay)
        warnings = (result.meta or {}).pop(WARNINGS, [])
        return (result if result.meta else result.model_copy(update={"meta": None})), list(warnings)

    async def read(self, uri: str) -> ReadResourceResult:
        """Read a resource. Raises as `call` does."""
        return await self._request(lambda session: session.client.read_resource(uri), lambda: True)

    async def prompt(self, name: str, arguments: dict[str, str]) -> GetPromptResult:
        """Fill in a prompt. Raises as `call` does."""
        return await self._request(lambda session: session.client.get_prompt(name, arguments), lambda: True)

    async def complete(
        self,
        ref: PromptReference | ResourceTemplateReference,
        argument: str,
        value: str,
        arguments: dict[str, str],
    ) -> Completion:
        """Return the values that the server suggests for an argument, given the others. Raises as `call` does."""
        typed = {"name": argument, "value": value}
        result = await self._request(
            lambda session: session.client.complete(ref, typed, arguments or None), lambda: True
        )
        return result.completion

    def abandon_task(self, task: str) -> None:
        """Tell the server, in the background, that a task's result is no longer needed."""

        async def cancel() -> None:
            with contextlib.suppress(Exception):  # the outcome does not matter here
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._request(lambda session: tasks.cancel(session.client.session, task), lambda: True)

        abandoning = asyncio.create_task(cancel(), name=f"mcp cancel {self.server.name}")
        self._abandoning.add(abandoning)
        abandoning.add_done_callback(self._abandoning.discard)

    @property
    def idle(self) -> bool:
        """Whether no request is running or kept open for an answer."""
        return not self.open_calls and not self._retiring and (self._session is None or self._session.idle)

    async def needs_consent(self) -> bool:
        """Whether the user must sign in first, as far as is known without a request to the server."""
        session, tokens = self._session, self.identity.tokens
        return session is not None and bool(session.consent_url) and tokens is not None and not await tokens.granted()

    async def close(self) -> None:
        """End all sessions. Safe to call twice."""
        for each in self.open_calls.values():
            each.cancel()
        self.open_calls.clear()
        await asyncio.gather(*self._abandoning)
        sessions = self._retiring | ({self._session} if self._session is not None else set())
        await asyncio.gather(*(session.close() for session in sessions))

    async def _request(
        self, work: Callable[[McpSession], Coroutine[object, object, T]], may_repeat: Callable[[], bool]
    ) -> T:
        """Make a request. If the session has ended, repeat it once on a new session, provided that it was not executed
        or that `may_repeat` allows it."""
        for last in (False, True):
            session = self._current()
            await session.opened.wait()
            self._check(session)
            try:
                return await session.run(work(session))
            except SessionExpired:
                self._retire(session)
                if last:
                    raise
                logger.info("MCP server %s: it ended the session; opening a new one", self.server.name)
            except ConnectionLost:
                self._retire(session)
                if last or not may_repeat():
                    raise
        raise AssertionError("unreachable")

    def _current(self) -> McpSession:
        """Return the session, or a new one. Raises McpUnavailable if the server could not be reached a moment ago."""
        session = self._session
        if session is not None and session.alive:
            return session
        if session is not None:
            self._note_failure(session)
        if session is not None and time.monotonic() < self._retry_at:
            raise McpUnavailable(session.problem or "could not be reached a moment ago")
        self._session = McpSession(self.server, self.identity)
        return self._session

    def _check(self, session: McpSession) -> None:
        """Raise McpUnavailable or ConsentRequired for a session that is still opening or could not be opened."""
        if not session.opened.is_set():
            raise McpUnavailable("has not answered yet")
        if session.consent_url:
            raise ConsentRequired(session.consent_url)
        if session.problem:
            self._note_failure(session)
            raise McpUnavailable(session.problem)
        self._failures = 0

    def _note_failure(self, session: McpSession) -> None:
        """Delay the next attempt after a session that could not be opened, since every run would wait for it."""
        if session.problem and not session.consent_url and self._retry_at < session.ended_at:
            self._failures += 1
            self._retry_at = session.ended_at + min(
                RETRY_DELAY_SECONDS * 2 ** (self._failures - 1), MAX_RETRY_DELAY_SECONDS
            )

    def _retire(self, session: McpSession) -> None:
        """Stop using a session. Its running requests are completed."""
        session.retire()
        self._retiring.add(session)
        session.task.add_done_callback(lambda _: self._retiring.discard(session))
