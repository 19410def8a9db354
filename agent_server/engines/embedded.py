"""The embedded engine: the generation core behind the Engine protocol, in its own process or in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agent_server.engine_protocol.protocol import (
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    Finished,
    GenerationRequest,
    changed_sampling,
    check_supported,
)
from agent_server.generation.process.process import ProcessLink, ThreadLink
from agent_server.generation.scheduling.messages import (
    Adopted,
    Cancel,
    Command,
    EngineConfig,
    Failed,
    Loading,
    LoadLora,
    MetricsReport,
    Modify,
    Pause,
    Ping,
    Ready,
    Replies,
    Reply,
    Report,
    Resume,
    Submit,
    UnloadLora,
    WorkerFailed,
)
from events.options import SamplingParams

if TYPE_CHECKING:
    from agent_server.settings import ComputeSettings, ProcessSettings


@dataclass(eq=False, slots=True)
class ReplyStream:
    """One generation on the server's side, with the items that its reader has not taken yet."""

    number: int
    request: GenerationRequest
    sampling: SamplingParams
    items: deque[Reply] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False

    def put(self, item: Reply) -> None:
        self.items.append(item)
        self.arrived.set()

    async def next(self) -> Reply:
        """The next item. Deltas that have accumulated are joined into one."""
        while not self.items:
            self.arrived.clear()
            await self.arrived.wait()
        item = self.items.popleft()
        if not isinstance(item, Delta) or not self.items:
            return item
        tokens = list(item.tokens)
        while self.items and isinstance(following := self.items[0], Delta):
            tokens += following.tokens
            self.items.popleft()
        return Delta(tuple(tokens))


class CommandAnswer:
    """What is waited for besides generations."""

    started = False

    def __init__(self) -> None:
        self.there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, item: Reply) -> None:
        if self.there.done():
            return
        if isinstance(item, Failed):
            self.there.set_exception(item.error())
        else:
            self.there.set_result(None)


CHECKS = 8
"""Looks within the limit, and so the part of it by which a stall may be noticed late."""
SILENT_SHARE = 0.5
"""The part of the limit from which on a process counts as silent: it gets no new work, and may still recover."""
READ_SECONDS = 0.05


class Watchdog:
    """Asks for a word at every look and measures the time since the first question that has had no answer.

    limit: seconds of silence until the process is given up. ask: sends the question. active: False while silence means
    nothing, for instance while a model is loaded. Time in which this process itself stood still is not counted, since
    answers that came meanwhile are not read yet.
    """

    def __init__(
        self,
        limit: float,
        ask: Callable[[], None],
        active: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limit = limit
        self._ask = ask
        self._active = active
        self._clock = clock
        self._sleep = sleep
        self._asked: float | None = None

    def heard(self) -> None:
        """The process said something, whatever it was."""
        self._asked = None

    @property
    def silence(self) -> float:
        """Seconds since the first question without an answer."""
        return 0.0 if self._asked is None else self._clock() - self._asked

    @property
    def silent(self) -> bool:
        return self.silence >= self.limit * SILENT_SHARE

    async def overdue(self) -> None:
        """Look until nothing has been heard for the limit. A stall is found at most one look after the limit: the look
        that asks comes at most `limit / CHECKS` after the stall, and the last one comes when the limit is reached."""
        while self.silence < self.limit:
            pause = min(self.limit / CHECKS, self.limit - self.silence)
            begun = self._clock()
            await self._sleep(pause)
            late = self._clock() - begun - pause
            if late > pause and self._asked is not None:
                self._asked += late
                await self._sleep(READ_SECONDS)
            if not self._active():
                self._asked = None
            elif self._asked is None:
                self._asked = self._clock()
                self._ask()


logger = logging.getLogger("agent_server.engine")
MAX_RESTARTS = 5
"""Restarts in a row after which it gives up, if the model never became ready."""
RESTART_SECONDS = 0.5
"""The pause before the first restart; doubled with every further one."""
STEP_TIME_LIMIT = 120.0
"""Seconds that a process may leave a ping unanswered."""


class Link(Protocol):
    """The connection to the generation core, in a process or a thread."""

    async def open(self, config: object) -> None: ...

    def send(self, command: Command) -> None: ...

    async def close(self) -> None: ...


class EmbeddedEngine:
    """process: False runs the core in a thread. step_time_limit: seconds without an answer after which the process is
    killed and started again; after half of them it gets no new work. A thread cannot be killed. observe: called with
    the metric's name and the seconds for each time to first token and time per output token."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        process: bool = True,
        observe: Callable[[str, float], None] | None = None,
        restart_seconds: float = RESTART_SECONDS,
        step_time_limit: float = STEP_TIME_LIMIT,
    ) -> None:
        self.config = config
        self._process = process
        self._observe = observe
        self._restart_seconds = restart_seconds
        self._step_time_limit = step_time_limit
        self._status = EngineStatus(state="starting")
        self._info: EngineInfo | None = None
        self._link: Link | None = None
        self._numbers = itertools.count(1)
        self._streams: dict[int, ReplyStream | CommandAnswer] = {}
        self._by_id: dict[str, ReplyStream] = {}
        self._measured: dict[str, float] = {}
        self._settled: asyncio.Event = asyncio.Event()
        self._failure: EngineError | None = None
        self._restarting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self._closed = False
        self.restarts = 0
        self._attempts = 0

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("unavailable", self._status.message or "The model is not loaded yet.", retryable=True)
        return self._info

    @property
    def status(self) -> EngineStatus:
        """What was last told; "degraded" and silent while a process that was ready leaves questions unanswered: a long
        step may be the reason, and work that it is given waits for its answer or its restart."""
        if self._status.state != "ready" or self._watchdog is None or not self._watchdog.silent:
            return self._status
        limit = self._step_time_limit
        message = f"The engine's process does not answer; after {limit:g} seconds without an answer it is restarted."
        return EngineStatus(state="degraded", message=message, silent=True)

    @property
    def pid(self) -> int | None:
        """The process id of the generation core; None for a thread."""
        return self._link.pid if isinstance(self._link, ProcessLink) else None

    # starting and ending

    async def start(self) -> None:
        await self._open()
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> None:
        self._settled.clear()
        self._failure = None
        self._status = EngineStatus(state="loading", progress=0.0, message="starting")
        # Reports carry their link: those of a process that has been replaced are dropped.
        link: Link
        if self._process:
            link = ProcessLink(lambda report: self._take(link, report), lambda reason: self._lost(link, reason))
        else:
            from agent_server.generation.process.worker import work

            link = ThreadLink(lambda report: self._take(link, report), work)
        self._link = link
        await link.open(self.config)
        if isinstance(link, ProcessLink):
            watchdog = self._watchdog = Watchdog(
                self._step_time_limit, lambda: link.send(Ping()), lambda: self._status.state == "ready"
            )
            self._watching = asyncio.create_task(self._watch(link, watchdog))

    async def _watch(self, link: ProcessLink, watchdog: Watchdog) -> None:
        """Kill a process that does not answer; its end is then told like any other."""
        await watchdog.overdue()
        if link is self._link:
            link.kill(f"The engine's process did not finish a step within {self._step_time_limit:g} seconds.")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus(state="stopped")
        tasks = [task for task in (self._restarting, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        failure = Failed("unavailable", "The engine was closed.", True)
        for stream in self._streams.values():
            stream.put(failure)
        if self._link is not None:
            await self._link.close()

    # reports of the generation core

    def _take(self, link: Link, report: Report) -> None:
        if link is not self._link or self._closed:
            return
        if self._watchdog is not None:
            self._watchdog.heard()
        match report:
            case Replies(items=items):
                for number, reply in items:
                    stream = self._streams.get(number)
                    if stream is not None:  # else it was cancelled while the reply was on its way
                        stream.put(reply)
            case MetricsReport(values=values):
                self._measured = values
            case Loading(status=status):
                self._status = status
            case Ready(info=info):
                self._info = info
                self._attempts = 0
                self._status = EngineStatus(state="ready", progress=1.0)
                self._settled.set()
            case WorkerFailed(failure=failure):
                # The core could not load, or it ended with an error.
                first = self._info is None
                self._failure = failure.error()
                self._status = EngineStatus(state="failed" if first else "starting", message=failure.message)
                self._settled.set()
                if not first and not self._process:
                    self._lost_worker(failure.message)

    def _lost(self, link: Link, reason: str) -> None:
        if link is self._link and not self._closed:
            self._lost_worker(reason)

    def _lost_worker(self, reason: str) -> None:
        """End all generations with an error, and restart the core unless it failed before it was first ready."""
        for stream in self._streams.values():
            kind = "connection" if stream.started else "unavailable"
            stream.put(Failed(kind, "The engine stopped during the generation; try again.", True))  # type: ignore[arg-type]
        if self._failure is not None and self._info is None:
            return  # `start` raises the failure that the core reported
        logger.error("%s", reason)
        self._status = EngineStatus(state="starting", message=f"{reason} It is being restarted.")
        # A core that dies while it first loads would most likely die again: report it instead of restarting for ever.
        if self._info is None:
            self._failure = EngineError("unavailable", reason)
            self._status = EngineStatus(state="failed", message=reason)
            self._settled.set()
            return
        self._restarting = asyncio.get_running_loop().create_task(self._restart(reason))

    async def _restart(self, reason: str) -> None:
        self.restarts += 1
        self._attempts += 1
        if self._attempts > MAX_RESTARTS:
            message = f"{reason} It was restarted {MAX_RESTARTS} times without success; start the server again."
            self._status = EngineStatus(state="failed", message=message)
            return
        await asyncio.sleep(self._restart_seconds * 2 ** (self._attempts - 1))
        await self._open()

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        stream = self._begin(request)
        assert self._link is not None
        link = self._link
        link.send(Submit(stream.number, request))
        ended = False
        try:
            while True:
                item = await stream.next()
                if isinstance(item, Failed):
                    ended = True
                    raise item.error()
                if isinstance(item, Finished):
                    ended = True
                    self._observe_times(item)
                    yield item
                    return
                assert not isinstance(item, Adopted)
                stream.started = stream.started or isinstance(item, Delta)
                yield item
        finally:
            del self._streams[stream.number]
            del self._by_id[request.request_id]
            # The reader closed the stream early: without this command the core would go on generating.
            if not ended:
                link.send(Cancel(stream.number))

    def _begin(self, request: GenerationRequest) -> ReplyStream:
        status = self.status
        if status.state != "ready":
            message = status.message or f"The engine is {status.state}."
            raise EngineError("unavailable", message, retryable=status.state != "failed")
        if request.request_id in self._by_id:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        check_supported(request, self.info)
        stream = ReplyStream(next(self._numbers), request, request.sampling)
        self._streams[stream.number] = self._by_id[request.request_id] = stream
        return stream

    def _observe_times(self, finished: Finished) -> None:
        if self._observe is None or finished.timings.first_token is None:
            return
        self._observe("time_to_first_token_seconds", finished.timings.first_token)
        following = finished.usage.completion_tokens - 1
        if following > 0:
            seconds = (finished.timings.total - finished.timings.first_token) / following
            self._observe("time_per_output_token_seconds", seconds)

    # adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter for generations that name it; one of that name is replaced, and what generates with it
        goes on with it. Raises EngineError with one sentence."""
        await self._asked(LoadLora(next(self._numbers), name, folder))
        others = (each for each in self.config.lora if each.partition("=")[0] != name)
        self.config = self.config.model_copy(update={"lora": (*others, f"{name}={folder}")})

    async def remove_adapter(self, name: str) -> None:
        """Take no more generations for an adapter; those that run end with it."""
        await self._asked(UnloadLora(next(self._numbers), name))
        others = tuple(each for each in self.config.lora if each.partition("=")[0] != name)
        self.config = self.config.model_copy(update={"lora": others})

    async def _asked(self, command: LoadLora | UnloadLora) -> None:
        """Send a command and wait for its answer."""
        if not self.info.adapters:
            raise EngineError("invalid_request", "This engine takes no LoRA adapters beside the weights.")
        answer = self._streams[command.number] = CommandAnswer()
        try:
            self._send(command)
            await answer.there
        finally:
            del self._streams[command.number]

    # control

    async def pause(self, request_id: str) -> bool:
        return self._command(request_id, Pause)

    async def resume(self, request_id: str) -> bool:
        return self._command(request_id, Resume)

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        stream = self._by_id.get(request_id)
        if stream is None:
            return False
        stream.sampling = changed_sampling(stream.sampling, changes)
        wanted = len(stream.request.prompt_token_ids) + (stream.sampling.max_tokens or 0)
        if wanted > self.info.context_length:
            message = f"The prompt and max_tokens together exceed the context of {self.info.context_length} tokens."
            raise EngineError("context_length_exceeded", message, param="max_tokens")
        self._send(Modify(stream.number, changes))
        return True

    def _command(self, request_id: str, command: type[Pause | Resume]) -> bool:
        stream = self._by_id.get(request_id)
        if stream is not None:
            self._send(command(stream.number))
        return stream is not None

    def _send(self, command: Command) -> None:
        if self._link is not None:
            with contextlib.suppress(ConnectionError):
                self._link.send(command)

    def metrics(self) -> dict[str, float]:
        return {**self._measured, "engine_restarts_total": float(self.restarts)}


def embedded_engine(source: str, name: str, compute: ComputeSettings, process: ProcessSettings) -> EmbeddedEngine:
    """The embedded engine for the server's settings. `source`: a folder or a hub name."""
    config = EngineConfig(model=source, name=name, **compute.model_dump())
    return EmbeddedEngine(config, process=process.engine_process, step_time_limit=process.step_time_limit)
