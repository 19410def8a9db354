"""What the request-and-response wires share: which agent a model name means, starting runs, reading them to the end.

These wires cancel a run as soon as its client is gone. A run that fails before it has said anything is an HTTP error
with the failure's own status; only later failures are told inside the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from adapters.errors import KINDS, ErrorKind, RequestError
from adapters.inbound import Inbound
from agent_server.ids import new_id
from agent_server.routes.http import SEND_BYTES, Encoder, EventStream, id_headers, read_body
from events.options import GenerationOptions
from events.vocabulary import Event, RunError, RunFinished, RunStarted

if TYPE_CHECKING:
    from agent_server.agent import Agent
    from agent_server.runs import Run
    from agent_server.runs.sharing.protocol import AnyRun
    from agent_server.server import Server

LARGE = 64 * 1024
HOLD_SECONDS = 2.0
"""How long the status line waits for the run's first sign of life; failures after it are told in the stream."""
CLIENT_GONE = 499
Prompt = str | tuple[int, ...] | None
BeforeEnd = Callable[[], Awaitable[None]] | None
ENDS = (RunFinished, RunError)


async def read_request(request: Request, limit: int, parse: Callable[[bytes], Inbound]) -> Inbound:
    """Read and parse; large bodies are parsed in a thread, so that no other request waits for them."""
    body = await read_body(request, limit)
    return parse(body) if len(body) <= LARGE else await run_in_threadpool(parse, body)


def agent_for(server: Server, model: str | None) -> str:
    """The agent that a model name means: the served model is the default agent, agents go by their own names."""
    if not model or model in ("default", server.model.name, server.settings.served_name):
        return "default"
    if model in server.agents:
        return str(model)
    raise RequestError("not_found", "There is no such model here; GET /v1/models lists those there are.", param="model")


class ServersOwn(Container[str]):
    """The names of calls that the server answers itself; wires with one assistant message do not show them.

    An agent with tools of its own also answers calls of tools that nobody declared.
    """

    def __init__(self, agent: Agent, clients: Iterable[str]) -> None:
        self._own = frozenset([tool.name for tool in agent.server_tools] + [other.name for other in agent.subagents])
        self._clients = frozenset(clients)
        self._has_tools = bool(agent.tools or agent.mcp_servers)

    def __contains__(self, name: object) -> bool:
        return name in self._own or (self._has_tools and name not in self._clients)


def servers_own(server: Server, inbound: Inbound) -> ServersOwn:
    agent = server.agents[agent_for(server, inbound.options.model)].agent
    return ServersOwn(agent, (tool.name for tool in inbound.input.tools or ()))


def context_length(server: Server) -> int | None:
    """Tokens of prompt and answer together, as far as is known yet: the engine's or the model's own, the smaller."""
    own = server.model.prompts.context_length if server.model.ready else None
    return min((length for length in (server.model.engine.info.context_length, own) if length), default=None)


def model_name(server: Server, options: GenerationOptions) -> str:
    agent = agent_for(server, options.model)
    return server.model.name if agent == "default" else agent


async def start_runs(
    server: Server, request: Request, inbound: Inbound, *, prompts: Sequence[Prompt] = (), grace: float = 0.0
) -> list[Run]:
    """One run for each of the `n` answers to each prompt; seeds count up from the given one."""
    agent, tenant = agent_for(server, inbound.options.model), request.state.tenant
    runs: list[Run] = []
    try:
        for prompt in prompts or (inbound.options.raw_prompt,):
            for answer in range(inbound.options.n):
                options = msgspec.structs.replace(_options(inbound.options, answer), raw_prompt=prompt)
                input = _input(inbound, first=not runs)
                runs.append(await server.runs.start(input, options, agent=agent, tenant=tenant, grace=grace))
    except RequestError:
        for run in runs:
            await run.cancel()
        raise
    return runs


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
    """All events of all runs, or None if the client left before they ended; then nobody reads them any more."""
    reading = asyncio.gather(*(_read(run) for run in runs))
    leaving = asyncio.ensure_future(_left(request))
    both: tuple[asyncio.Future[Any], ...] = (reading, leaving)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else None
    finally:
        for task in both:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def answer_json(request: Request, runs: Sequence[Run], body: Callable[[list[list[Event]]], bytes]) -> Response:
    """The runs read to their ends, as one JSON body."""
    answers = await collect(request, runs)
    if answers is None:
        return Response(status_code=CLIENT_GONE)
    return Response(body(answers), media_type="application/json")


async def _read(run: Run) -> list[Event]:
    async with contextlib.aclosing(run.events()) as events:
        return [event async for _, event in events]


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class _Item(NamedTuple):
    choice: int
    sequence: int
    event: Event


class _Events:
    """The events of one run or of several, as they come, each run's in its own order."""

    def __init__(self, runs: Sequence[AnyRun]) -> None:
        self._readers = [run.events() for run in runs]
        self._turn = 0

    def ready(self) -> _Item | None:
        """The next event if it is there already; the runs take turns."""
        for _ in self._readers:
            choice = self._turn
            self._turn = (choice + 1) % len(self._readers)
            if (item := self._readers[choice].ready()) is not None:
                return _Item(choice, *item)
        return None

    def arrival(self) -> Awaitable[Any] | None:
        """What to await when nothing is `ready`; None at the end."""
        arrivals = [arrival for reader in self._readers if (arrival := reader.arrival()) is not None]
        if len(arrivals) < 2:
            return arrivals[0] if arrivals else None
        return asyncio.wait(arrivals, return_when=asyncio.FIRST_COMPLETED)

    async def aclose(self) -> None:
        for reader in self._readers:
            await reader.aclose()


async def stream_answer(
    server: Server,
    request: Request,
    runs: Sequence[AnyRun],
    encoder: Encoder,
    *,
    hold: bool = True,
    before_end: BeforeEnd = None,
) -> Response:
    """The runs as one stream of frames. Raises RequestError for a run that failed before it said anything.

    hold: wait for the first sign of life with the status line. before_end: done before the last event is told.
    """
    source = _Events(runs)
    opening = asyncio.create_task(_open(source, encoder, before_end))
    if hold:
        leaving = asyncio.create_task(_left(request))
        both: tuple[asyncio.Future[Any], ...] = (opening, leaving)
        await asyncio.wait(both, timeout=HOLD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        gone = leaving.done() and not opening.done()
        leaving.cancel()
        if opening.done() and (failure := opening.result().failure) is not None:
            await source.aclose()
            raise failed(failure)
        if gone:
            await _abandon(opening, source)
            return Response(status_code=CLIENT_GONE)
    return EventStream(
        _frames(source, opening, encoder, before_end),
        content_type=encoder.content_type,
        keep_alive=encoder.keep_alive,
        interval=server.settings.keep_alive,
        headers=id_headers(runs[0]),
    )


def failed(error: RunError) -> RequestError:
    """The HTTP error that says what ended a run."""
    kind: ErrorKind = error.code if error.code in KINDS else "internal"  # type: ignore[assignment]
    return RequestError(kind, error.message, param=(error.metadata or {}).get("param"))


class _Opening(NamedTuple):
    frames: bytes
    failure: RunError | None = None


async def _open(source: _Events, encoder: Encoder, before_end: BeforeEnd) -> _Opening:
    """Read up to the first event that is more than a beginning."""
    frames = b""
    while True:
        if (item := source.ready()) is None:
            if (arrival := source.arrival()) is None:
                return _Opening(frames)
            await arrival
            continue
        if before_end is not None and isinstance(item.event, ENDS):
            await before_end()
        frames += encoder.encode(item.event, sequence=item.sequence, choice=item.choice)
        if isinstance(item.event, RunError) and item.event.code in KINDS:
            return _Opening(frames, item.event)
        if not isinstance(item.event, RunStarted):
            return _Opening(frames)


async def _frames(
    source: _Events, opening: asyncio.Task[_Opening], encoder: Encoder, before_end: BeforeEnd
) -> AsyncGenerator[bytes, None]:
    """What is there already goes out together: a busy server sends less often, never later."""
    try:
        frames = (await opening).frames
        while True:
            while len(frames) < SEND_BYTES and (item := source.ready()) is not None:
                if before_end is not None and isinstance(item.event, ENDS):
                    await before_end()
                frames += encoder.encode(item.event, sequence=item.sequence, choice=item.choice)
            if frames:
                yield frames
                frames = b""
            elif (arrival := source.arrival()) is not None:
                await arrival
            else:
                break
        if tail := encoder.finish():
            yield tail
    finally:
        await _abandon(opening, source)


async def _abandon(opening: asyncio.Task[_Opening], source: _Events) -> None:
    opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await opening
    await source.aclose()
