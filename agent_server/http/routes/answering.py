"""Shared by the request-response wires: resolving model names to agents, starting runs, reading them to the end.

These wires cancel a run as soon as its client disconnects. A run that fails before its first output becomes an HTTP
error with the failure's own status; later failures are reported inside the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from adapters import forwarded_props
from adapters.answer import PromptOf, field_on
from adapters.body import Inbound, notes_of_request
from adapters.errors import KINDS, ErrorKind, RequestError
from adapters.model_list import no_such_model
from agent_server.agents import ServedAgent
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.http.routes.http import (
    SEND_BYTES,
    Encoder,
    EventStream,
    GeneratedFrames,
    first_of,
    id_headers,
    unwatch_disconnect,
    watch_disconnect,
)
from agent_server.ids import new_id
from agent_server.user import current_user
from events.metadata import error_metadata
from events.options import LABEL, GenerationOptions, RequestedMcp
from events.sampling import Wire
from events.vocabulary import LOADING_EVENT, Custom, Event, RunError, RunFinished, RunStarted

if TYPE_CHECKING:
    from agent_server.http.server import ServableAgent, Server
    from agent_server.models.pool import AnyModel
    from agent_server.runs import Run
    from agent_server.runs.sharing.interfaces import AnyRun, EventReader

HOLD_SECONDS = 2.0
"""How long the status line waits for the run's first output; later failures are reported in the stream."""
MANY_EVENTS = 2000
"""Number of events above which an answer's body is built in a thread."""
FAILS_IN_STREAM = ("responses", "context_length_exceeded")
"""A failure before the first output that is reported in the stream: clients of Responses compact a conversation after
`response.failed` with this code, and not after a status."""
CLIENT_GONE = 499
Prompt = str | tuple[int, ...] | None
BeforeEnd = Callable[[], Awaitable[None]] | None
ENDS = (RunFinished, RunError)


def agent_for(server: Server, model: str | None) -> str:
    """Return the name of the agent that a request's `model` selects.

    The served model selects the default agent. Agents, and each of several models, are selected by their own names.
    Raises RequestError for an unknown name.
    """
    if not model or model == "default":
        return "default"
    if not server.several and model in (server.model.name, server.settings.served.served_name):
        return "default"
    if model in server.agents:
        return str(model)
    raise no_such_model(model)


class NamedModel(Protocol):
    @property
    def name(self) -> str: ...


AuxiliaryT = TypeVar("AuxiliaryT", bound=NamedModel)


def select_auxiliary(
    server: Server, auxiliary: AuxiliaryT | None, model: str | None, no_model_message: str, instead: str
) -> AuxiliaryT:
    """Return the auxiliary (non-chat) model if the request's `model` selects it.

    no_model_message: the error if none is served. instead: predicate of the error for a chat model's name, such as
    "makes no embeddings". Raises RequestError.
    """
    if auxiliary is None:
        raise RequestError("invalid_request", no_model_message, "model")
    if model in (None, "default", auxiliary.name):
        return auxiliary
    if model in (server.model.name, *server.models, *server.agents):
        raise RequestError("invalid_request", f"{model} is a chat model and {instead}. Use {auxiliary.name}.", "model")
    raise no_such_model(model)


class ServerToolNames(Container[str]):
    """The names of the tools that the server calls itself; wires with one assistant message do not show these calls."""

    def __init__(self, agent: ServableAgent, clients: Iterable[str]) -> None:
        self._agent = agent
        self._clients = frozenset(clients)

    def __contains__(self, name: object) -> bool:
        return self._agent.answers_call(str(name), self._clients)


def server_tool_names(server: Server, inbound: Inbound) -> ServerToolNames:
    agent = server.agents[agent_for(server, inbound.options.model)]
    return ServerToolNames(agent, (tool.name for tool in inbound.input.tools or ()))


def model_for(server: Server, model: str | None) -> AnyModel:
    """Return the model for a request's `model`. Raises RequestError for an unknown name."""
    return server.model_of(agent_for(server, model))


def context_length(model: AnyModel) -> int | None:
    """The limit on tokens of prompt and answer together: the smaller of the engine's and the model's own.

    None if neither is known. Raises EngineError while the model is not loaded.
    """
    own = model.prompts.context_length if model.ready else None
    return min((length for length in (model.engine.info.context_length, own) if length), default=None)


async def expected_context(model: AnyModel) -> int | None:
    """`context_length`, or the value in the checkpoint's files if the model is not loaded."""
    return context_length(model) if model.ready else (await model.tokenizing()).context_length


def model_name(server: Server, options: GenerationOptions) -> str:
    """The model name to report in an answer: the requested one, or the served model's if the request names none.

    Clients drop the reasoning of an answer that reports another name. Raises RequestError for an unknown name.
    """
    agent = agent_for(server, options.model)
    return options.model or (server.model_of(agent).name if agent == "default" else agent)


async def start_runs(
    server: Server, request: HTTPConnection, inbound: Inbound, *, prompts: Sequence[Prompt] = (), grace: float = 0.0
) -> list[Run]:
    """Start one run for each of the `n` answers to each prompt. Seeds count up from the requested one."""
    agent, tenant = agent_for(server, inbound.options.model), request.state.tenant
    if inbound.options.mcp_servers:
        inbound = msgspec.structs.replace(inbound, options=with_allowed_mcp(server, agent, inbound.options))
    runs: list[Run] = []
    try:
        for prompt in prompts or (inbound.options.raw_prompt,):
            for answer in range(inbound.options.n):
                sampling, input = inbound.options.sampling, inbound.input
                if answer and sampling.seed is not None:
                    sampling = msgspec.structs.replace(sampling, seed=sampling.seed + answer)
                options = msgspec.structs.replace(inbound.options, sampling=sampling, n=1, raw_prompt=prompt)
                if runs:
                    input = input.model_copy(update={"thread_id": new_id("thread"), "run_id": new_id("run")})
                runs.append(
                    await server.runs.start(
                        input,
                        options,
                        agent=agent,
                        tenant=tenant,
                        grace=grace,
                        whole=True,
                        warnings=() if runs else notes_of_request().warnings,
                    )
                )
    except RequestError:
        for run in runs:
            run.stop("cancelled")
        raise
    return runs


def with_allowed_mcp(server: Server, agent: str, options: GenerationOptions) -> GenerationOptions:
    """Resolve the MCP servers that the request names to allowed URLs.

    Raises RequestError for one that the operator does not allow, unless it is optional.
    """
    entries = [entry for entry in server.settings.served.mcp_allow if entry]
    labelled = {
        label: url for label, _, url in (entry.partition("=") for entry in entries) if LABEL.fullmatch(label) and url
    }
    urls = {url.rstrip("/") for url in labelled.values()} | {
        entry.rstrip("/") for entry in entries if LABEL.fullmatch(entry.partition("=")[0]) is None
    }
    allowed: list[RequestedMcp] = []
    for requested in options.mcp_servers:
        url = requested.url or labelled.get(requested.label, "")
        if url and url.rstrip("/") in urls and isinstance(server.agents[agent], ServedAgent):
            allowed.append(msgspec.structs.replace(requested, url=url))
        elif requested.optional:
            notes_of_request().warn(
                f"{requested.at} is left out: this server has no MCP server that answers {requested.label}."
            )
        else:
            named = requested.url or requested.label
            message = (
                f"{agent} is an agent of another framework and cannot use MCP servers of a request."
                if url and url.rstrip("/") in urls
                else f"The MCP server {named} is not allowed. The operator can allow it with --mcp-allow."
            )
            raise RequestError("invalid_request", message, requested.at)
    return msgspec.structs.replace(options, mcp_servers=tuple(allowed))


def prompt_of(run: Run) -> PromptOf:
    """For encoders that report the prompt before the answer begins."""
    return lambda: run.prompt


async def collect(request: Request, runs: Sequence[Run]) -> list[list[Event]] | None:
    """Read all events of all runs. Returns None if the client disconnects before the runs end."""

    async def read(run: Run) -> list[Event]:
        async with contextlib.aclosing(run.events()) as events:
            return [event async for _, event in events]

    reading = asyncio.gather(*map(read, runs))
    disconnect = watch_disconnect(request.scope, request.receive)
    try:
        await first_of(reading, disconnect)
        return reading.result() if reading.done() else None
    finally:
        unwatch_disconnect(disconnect)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def answer_json(request: Request, runs: Sequence[Run], body: Callable[[list[list[Event]]], bytes]) -> Response:
    """Read the runs to their ends and answer with one JSON body."""
    answers = await collect(request, runs)
    if answers is None:
        return Response(status_code=CLIENT_GONE)
    if sum(map(len, answers)) < MANY_EVENTS:
        return Response(body(answers), media_type="application/json")
    # In a thread: other requests then wait for a GIL switch at most, not for the whole encoding.
    return Response(await REQUEST_THREADS.run(body, answers), media_type="application/json")


Item = tuple[int, int, Event]
"""(choice, sequence number, event)."""


class AnswerFrames:
    """The events of one or several runs as frames, as they arrive. Events of one run keep their order.

    before_end: awaited before a run's last event is encoded.
    """

    def __init__(self, runs: Sequence[AnyRun], encoder: Encoder, before_end: BeforeEnd) -> None:
        self._readers = [run.events() for run in runs]
        # Fast path: most answers are one run.
        self._only = self._readers[0] if len(self._readers) == 1 and before_end is None else None
        self._encoder = encoder
        self._before_end = before_end
        self._turn = 0
        self._frames = b""
        self._last: Item | None = None
        self._opening: asyncio.Future[None] | None = None
        self._answer_started = False
        self.failure: RunError | None = None

    def open(self) -> asyncio.Future[None]:
        """Read up to the first event after RUN_STARTED and loading reports; set `failure` if it is a RUN_ERROR."""
        if self._only is None:
            self._opening = asyncio.create_task(self._open())
        else:
            self._opening = asyncio.get_running_loop().create_future()
            self._open_single(self._only, self._opening)
        return self._opening

    def _open_single(self, reader: EventReader, opened: asyncio.Future[None], _: object = None) -> None:
        """As `_open` for one run, as a callback of every arrival: cheaper than a task."""
        if opened.done():
            return
        try:
            while not self._answer_started:
                if (item := reader.ready()) is not None:
                    self._encode_first((0, *item))
                elif (arrival := reader.arrival()) is not None:
                    arrival.add_done_callback(partial(self._open_single, reader, opened))
                    return
                else:
                    break
        except Exception as error:
            opened.set_exception(error)
        else:
            opened.set_result(None)

    async def _open(self) -> None:
        while not self._answer_started:
            if (item := self._next()) is not None:
                self._encode_first(item)
            elif (arrival := self._arrival()) is not None:
                await arrival
            else:
                return

    def ready(self) -> bytes:
        frames, self._frames = self._frames, b""
        if self._only is not None:
            next_item, encode = self._only.ready, self._encoder.encode
            while len(frames) < SEND_BYTES and (one := next_item()) is not None:
                frames += encode(one[1], sequence=one[0])
            return frames
        while len(frames) < SEND_BYTES and (item := self._next()) is not None:
            choice, sequence, event = item
            frames += self._encoder.encode(event, sequence=sequence, choice=choice)
        return frames

    def _next(self) -> Item | None:
        """The next available event, taken from the runs in turn; None if none has arrived."""
        for _ in self._readers:
            choice = self._turn
            if (item := self._readers[choice].ready()) is not None:
                self._turn = (choice + 1) % len(self._readers)
                if self._before_end is None or not isinstance(item[1], ENDS):
                    return choice, *item
                self._last = choice, *item
                return None
            self._turn = (choice + 1) % len(self._readers)
        return None

    def _encode_first(self, item: Item) -> None:
        choice, sequence, event = item
        self._frames += self._encoder.encode(event, sequence=sequence, choice=choice)
        if not self._answer_started and isinstance(event, RunError) and event.code in KINDS:
            self.failure = event
        # While the model is loading, the run may still fail with a status of its own.
        is_loading = isinstance(event, Custom) and event.name == LOADING_EVENT
        self._answer_started = self._answer_started or not (isinstance(event, RunStarted) or is_loading)

    def arrival(self) -> Awaitable[object] | None:
        opening, self._opening = self._opening, None
        return opening if opening is not None and not opening.done() else self._arrival()

    def _arrival(self) -> Awaitable[Any] | None:
        if self._only is not None:
            return self._only.arrival()
        if self._last is not None:
            return self._conclude(self._last)
        arrivals = [arrival for reader in self._readers if (arrival := reader.arrival()) is not None]
        if len(arrivals) < 2:
            return arrivals[0] if arrivals else None
        return asyncio.wait(arrivals, return_when=asyncio.FIRST_COMPLETED)

    async def _conclude(self, last: Item) -> None:
        if self._before_end is not None:
            await self._before_end()
        self._last = None
        self._encode_first(last)

    def finish(self) -> bytes:
        return self._encoder.finish()

    async def aclose(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        for reader in self._readers:
            await reader.aclose()


async def stream_answer(
    server: Server,
    request: Request,
    runs: Sequence[AnyRun],
    encoder: Encoder,
    *,
    wire: Wire = "agui",
    hold: bool = True,
    before_end: BeforeEnd = None,
) -> Response:
    """Answer with the runs as one stream of frames. Raises RequestError for a run that failed before its first output,
    except as FAILS_IN_STREAM says.

    wire: names the parameters in that error. hold: delay the status line until the first output, for at most
    HOLD_SECONDS. before_end: awaited before the last event is sent.
    """
    frames = AnswerFrames(runs, encoder, before_end)
    disconnect = watch_disconnect(request.scope, request.receive)
    try:
        may_stream = True
        if hold:
            opening = frames.open()
            await first_of(opening, disconnect, seconds=HOLD_SECONDS)
            if opening.done():
                opening.result()
                may_stream = frames.failure is None or (wire, frames.failure.code) == FAILS_IN_STREAM
            else:
                may_stream = not disconnect.done()
    except BaseException:
        unwatch_disconnect(disconnect)
        await frames.aclose()
        raise
    if not may_stream:
        unwatch_disconnect(disconnect)
        await frames.aclose()
        if frames.failure is not None:
            raise request_error(frames.failure, wire)
        return Response(status_code=CLIENT_GONE)
    return EventStream(
        frames,
        content_type=encoder.content_type,
        keep_alive=encoder.keep_alive,
        interval=server.settings.http.keep_alive,
        headers=id_headers(runs[0]),
        disconnect=disconnect,
    )


def request_error(error: RunError, wire: Wire) -> RequestError:
    """Convert a RUN_ERROR to the HTTP error, with the wire's own parameter name."""
    kind: ErrorKind = error.code if error.code in KINDS else "internal"  # type: ignore[assignment]
    return RequestError(kind, error.message, param=field_on(wire, error_metadata(error).param))


def app_answer(server: Server, agent: str, inbound: Inbound) -> AsyncGenerator[Event, None] | None:
    """The events that answer a request of an MCP app's page; None for an ordinary run. Raises RequestError."""
    request = forwarded_props.proxied_request(inbound.extra.forwarded)
    if request is None:
        return None
    served = server.agents.get(agent)
    if served is None:
        raise RequestError("not_found", "There is no agent of that name.", "agent")

    user = current_user.get()

    async def events() -> AsyncGenerator[Event, None]:
        thread_id, run_id = inbound.input.thread_id, inbound.input.run_id
        yield forwarded_props.started(thread_id, run_id)
        yield forwarded_props.finished(thread_id, run_id, await served.answer_app(request, user))

    return events()


def stream_answer_of_app(events: AsyncGenerator[Event, None], encoder: Encoder, interval: float) -> EventStream:
    async def frames() -> AsyncGenerator[bytes, None]:
        async for event in events:
            yield encoder.encode(event)

    return EventStream(
        GeneratedFrames(frames()), content_type=encoder.content_type, keep_alive=encoder.keep_alive, interval=interval
    )
