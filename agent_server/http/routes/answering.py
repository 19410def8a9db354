"""What the request-and-response wires share: which agent a model name means, starting runs, reading them to the end.

These wires cancel a run as soon as its client is gone. A run that fails before it has said anything is an HTTP error
with the failure's own status; only later failures are told inside the stream.
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
from agent_server.http.routes.http import (
    SEND_BYTES,
    Encoder,
    EventStream,
    Generated,
    departure,
    first_of,
    id_headers,
    stay,
)
from agent_server.ids import new_id
from agent_server.user import current_user
from events.metadata import error_metadata
from events.options import LABEL, GenerationOptions, RequestedMcp
from events.sampling import Wire
from events.vocabulary import LOADING_EVENT, Custom, Event, RunError, RunFinished, RunStarted

if TYPE_CHECKING:
    from agent_server.http.server import Server, ServesRuns
    from agent_server.models.pool import AnyModel
    from agent_server.runs import Run
    from agent_server.runs.sharing.interfaces import AnyRun, EventReader

HOLD_SECONDS = 2.0
"""How long the status line waits for the run's first sign of life; failures after it are told in the stream."""
MANY_EVENTS = 2000
"""Events of an answer from which on its body is made beside the event loop."""
CLIENT_GONE = 499
Prompt = str | tuple[int, ...] | None
BeforeEnd = Callable[[], Awaitable[None]] | None
ENDS = (RunFinished, RunError)


def agent_for(server: Server, model: str | None) -> str:
    """The agent that a model name means: the served model is the default agent, agents go by their own names, and so
    does each of several models."""
    if not model or model == "default":
        return "default"
    if not server.several and model in (server.model.name, server.settings.served.served_name):
        return "default"
    if model in server.agents:
        return str(model)
    raise no_such_model()


class NamedModel(Protocol):
    @property
    def name(self) -> str: ...


BesideModel = TypeVar("BesideModel", bound=NamedModel)


def chosen_beside(
    server: Server, beside: BesideModel | None, model: str | None, missing: str, instead: str
) -> BesideModel:
    """The model beside those that chat, if the request means it. missing: what to say where there is none; instead:
    what a model that chats does with such a request. Raises RequestError."""
    if beside is None:
        raise RequestError("invalid_request", missing, "model")
    if model in (None, "default", beside.name):
        return beside
    if model in (server.model.name, *server.models, *server.agents):
        raise RequestError("invalid_request", f"{model} chats and {instead}; {beside.name} does.", "model")
    raise no_such_model()


class ServersOwn(Container[str]):
    """The names of calls that the server answers itself; wires with one assistant message do not show them."""

    def __init__(self, agent: ServesRuns, clients: Iterable[str]) -> None:
        self._agent = agent
        self._clients = frozenset(clients)

    def __contains__(self, name: object) -> bool:
        return self._agent.answers_call(str(name), self._clients)


def servers_own(server: Server, inbound: Inbound) -> ServersOwn:
    agent = server.agents[agent_for(server, inbound.options.model)]
    return ServersOwn(agent, (tool.name for tool in inbound.input.tools or ()))


def model_for(server: Server, model: str | None) -> AnyModel:
    """The model that answers for a name. Raises RequestError for an unknown one."""
    return server.model_of(agent_for(server, model))


def context_length(model: AnyModel) -> int | None:
    """Tokens of prompt and answer together, as far as is known yet: the engine's or the model's own, the smaller.
    Raises EngineError while the model is not loaded."""
    own = model.prompts.context_length if model.ready else None
    return min((length for length in (model.engine.info.context_length, own) if length), default=None)


async def expected_context(model: AnyModel) -> int | None:
    """`context_length`, or what the files of a model say that is yet to be loaded."""
    return context_length(model) if model.ready else (await model.tokenizing()).context_length


def model_name(server: Server, options: GenerationOptions) -> str:
    """The name that an answer gives: the one that was asked for, since clients drop the thinking of an answer that has
    another name, and the served model's where none was. Raises RequestError for an unknown one."""
    agent = agent_for(server, options.model)
    return options.model or (server.model_of(agent).name if agent == "default" else agent)


async def start_runs(
    server: Server, request: HTTPConnection, inbound: Inbound, *, prompts: Sequence[Prompt] = (), grace: float = 0.0
) -> list[Run]:
    """One run for each of the `n` answers to each prompt; seeds count up from the given one."""
    agent, tenant = agent_for(server, inbound.options.model), request.state.tenant
    if inbound.options.mcp_servers:
        inbound = msgspec.structs.replace(inbound, options=with_allowed_mcp(server, agent, inbound.options))
    runs: list[Run] = []
    try:
        for prompt in prompts or (inbound.options.raw_prompt,):
            for answer in range(inbound.options.n):
                options = msgspec.structs.replace(_options(inbound.options, answer), raw_prompt=prompt)
                input = _input(inbound, first=not runs)
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
    """The options with the URLs of the MCP servers that the request names. Raises RequestError for one that the
    operator does not allow."""
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
                f"{agent} is an agent of another framework, which is given no MCP servers."
                if url and url.rstrip("/") in urls
                else f"The MCP server {named} is not allowed here; the operator allows some with --mcp-allow."
            )
            raise RequestError("invalid_request", message, requested.at)
    return msgspec.structs.replace(options, mcp_servers=tuple(allowed))


def prompt_of(run: Run) -> PromptOf:
    """For encoders that tell of the prompt before the answer begins."""
    return lambda: run.prompt


def _loads(event: Event) -> bool:
    """Whether an event tells that the model is being loaded, which may yet fail with a status of its own."""
    return isinstance(event, Custom) and event.name == LOADING_EVENT


def _input(inbound: Inbound, *, first: bool) -> Any:
    if first:
        return inbound.input
    return inbound.input.model_copy(update={"thread_id": new_id("thread"), "run_id": new_id("run")})


def _options(options: GenerationOptions, index: int) -> GenerationOptions:
    sampling = options.sampling
    if index and sampling.seed is not None:
        sampling = msgspec.structs.replace(sampling, seed=sampling.seed + index)
    return msgspec.structs.replace(options, sampling=sampling, n=1)


async def collect(request: Request, runs: Sequence[Run]) -> list[list[Event]] | None:
    """All events of all runs, or None if the client left before they ended, in which case reading stops."""
    reading = asyncio.gather(*(_read(run) for run in runs))
    leaving = departure(request.scope, request.receive)
    try:
        await first_of(reading, leaving)
        return reading.result() if reading.done() else None
    finally:
        stay(leaving)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def answer_json(request: Request, runs: Sequence[Run], body: Callable[[list[list[Event]]], bytes]) -> Response:
    """The runs read to their ends, as one JSON body."""
    answers = await collect(request, runs)
    if answers is None:
        return Response(status_code=CLIENT_GONE)
    if sum(map(len, answers)) < MANY_EVENTS:
        return Response(body(answers), media_type="application/json")
    # in a thread the others wait for a switch of the interpreter at most, not for all of it
    return Response(await asyncio.to_thread(body, answers), media_type="application/json")


async def _read(run: Run) -> list[Event]:
    async with contextlib.aclosing(run.events()) as events:
        return [event async for _, event in events]


Item = tuple[int, int, Event]
"""An answer's number, and its event's, and the event."""


class AnswerFrames:
    """The events of one run or of several as frames, as they come, each run's in its own order.

    before_end: done before the last event is told.
    """

    def __init__(self, runs: Sequence[AnyRun], encoder: Encoder, before_end: BeforeEnd) -> None:
        self._readers = [run.events() for run in runs]
        # Most answers are one run, whose events pass without questions.
        self._only = self._readers[0] if len(self._readers) == 1 and before_end is None else None
        self._encoder = encoder
        self._before_end = before_end
        self._turn = 0
        self._frames = b""
        self._last: Item | None = None
        self._opening: asyncio.Future[None] | None = None
        self._begun = False
        self.failure: RunError | None = None

    def open(self) -> asyncio.Future[None]:
        """Read up to the first event that is more than a beginning; `failure` is set if it is one."""
        if self._only is None:
            self._opening = asyncio.create_task(self._open())
        else:
            self._opening = asyncio.get_running_loop().create_future()
            self._read_on(self._only, self._opening)
        return self._opening

    def _read_on(self, reader: EventReader, opened: asyncio.Future[None], _: object = None) -> None:
        """What `_open` does with one run, called again with every arrival: a task costs more."""
        if opened.done():
            return
        try:
            while not self._begun:
                if (item := reader.ready()) is not None:
                    self._tell((0, *item))
                elif (arrival := reader.arrival()) is not None:
                    arrival.add_done_callback(partial(self._read_on, reader, opened))
                    return
                else:
                    break
        except Exception as error:
            opened.set_exception(error)
        else:
            opened.set_result(None)

    async def _open(self) -> None:
        while not self._begun:
            if (item := self._next()) is not None:
                self._tell(item)
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
        """The next event if it is there already; the runs take turns."""
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

    def _tell(self, item: Item) -> None:
        choice, sequence, event = item
        self._frames += self._encoder.encode(event, sequence=sequence, choice=choice)
        if not self._begun and isinstance(event, RunError) and event.code in KINDS:
            self.failure = event
        self._begun = self._begun or not (isinstance(event, RunStarted) or _loads(event))

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
        self._tell(last)

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
    """The runs as one stream of frames. Raises RequestError for a run that failed before it said anything.

    wire: whose words a refusal has. hold: wait for the first sign of life with the status line. before_end: done
    before the last event is told.
    """
    frames = AnswerFrames(runs, encoder, before_end)
    leaving = departure(request.scope, request.receive)
    try:
        alive = not hold or await _hold(frames, leaving)
    except BaseException:
        stay(leaving)
        await frames.aclose()
        raise
    if not alive:
        stay(leaving)
        await frames.aclose()
        if frames.failure is not None:
            raise failed(frames.failure, wire)
        return Response(status_code=CLIENT_GONE)
    return EventStream(
        frames,
        content_type=encoder.content_type,
        keep_alive=encoder.keep_alive,
        interval=server.settings.http.keep_alive,
        headers=id_headers(runs[0]),
        leaving=leaving,
    )


async def _hold(frames: AnswerFrames, leaving: asyncio.Future[None]) -> bool:
    """Wait for the first sign of life. True if there is something to stream and the client is still there."""
    opening = frames.open()
    await first_of(opening, leaving, seconds=HOLD_SECONDS)
    if not opening.done():
        return not leaving.done()
    opening.result()
    return frames.failure is None


def failed(error: RunError, wire: Wire) -> RequestError:
    """The HTTP error that says what ended a run, in the words of the wire that asked for it."""
    kind: ErrorKind = error.code if error.code in KINDS else "internal"  # type: ignore[assignment]
    return RequestError(kind, error.message, param=field_on(wire, error_metadata(error).param))


def app_answer(server: Server, agent: str, inbound: Inbound) -> AsyncGenerator[Event, None] | None:
    """The events that answer an app's page; None for what is an ordinary run. Raises RequestError."""
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
        Generated(frames()), content_type=encoder.content_type, keep_alive=encoder.keep_alive, interval=interval
    )
