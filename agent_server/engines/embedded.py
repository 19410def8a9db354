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
    Cancel,
    Command,
    EngineConfig,
    Loading,
    LoadLora,
    LoraCommandDone,
    MetricsReport,
    Modify,
    Pause,
    Ping,
    Ready,
    Replies,
    Reply,
    Report,
    RequestFailed,
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
    """The server's side of one generation, with the items that its reader has not received yet."""

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
        """Wait for the next item. Consecutive Deltas that are queued are merged into one."""
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
    """The reply to a command that is not a generation. Await `done`, which raises EngineError if the command failed."""

    started = False

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, item: Reply) -> None:
        if self.done.done():
            return
        if isinstance(item, RequestFailed):
            self.done.set_exception(item.error())
        else:
            self.done.set_result(None)


CHECKS = 8
"""Checks within the limit: a stall is detected at most one of these intervals late."""
SILENT_SHARE = 0.5
"""Share of the limit after which a process counts as silent: it gets no new work, but may still recover."""
READ_SECONDS = 0.05
"""Time for the event loop to read queued reports after it was blocked itself."""


class Watchdog:
    """Sends pings and measures the time since the first one without an answer.

    limit: seconds of silence until the process is considered hung. ping: sends a ping. active: returns False while
    silence is expected, for instance while a model is loading. Time in which this process itself was blocked is not
    counted, since answers that arrived meanwhile have not been read.
    """

    def __init__(
        self,
        limit: float,
        ping: Callable[[], None],
        active: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limit = limit
        self._ping = ping
        self._active = active
        self._clock = clock
        self._sleep = sleep
        self._pinged_at: float | None = None

    def reset(self) -> None:
        """Record that the process has sent a report of any kind."""
        self._pinged_at = None

    @property
    def silence(self) -> float:
        """Seconds since the first ping without an answer."""
        return 0.0 if self._pinged_at is None else self._clock() - self._pinged_at

    @property
    def silent(self) -> bool:
        return self.silence >= self.limit * SILENT_SHARE

    async def wait_until_hung(self) -> None:
        """Return when the process has been silent for the limit. A stall is detected at most one check after the limit:
        the ping is sent at most `limit / CHECKS` after the stall, and the last check is made when the limit is
        reached."""
        while self.silence < self.limit:
            pause = min(self.limit / CHECKS, self.limit - self.silence)
            start = self._clock()
            await self._sleep(pause)
            late = self._clock() - start - pause
            if late > pause and self._pinged_at is not None:
                self._pinged_at += late
                await self._sleep(READ_SECONDS)
            if not self._active():
                self._pinged_at = None
            elif self._pinged_at is None:
                self._pinged_at = self._clock()
                self._ping()


logger = logging.getLogger("agent_server.engine")
MAX_RESTARTS = 5
"""Consecutive restarts without a ready model after which the engine fails."""
RESTART_SECONDS = 0.5
"""Delay before the first restart, doubled with each further one."""
STEP_TIME_LIMIT = 120.0
"""Seconds for which a process may leave a ping unanswered."""


class Link(Protocol):
    """The connection to the generation core, in a process or a thread."""

    async def open(self, config: object) -> None: ...

    def send(self, command: Command) -> None: ...

    async def close(self) -> None: ...


class EmbeddedEngine:
    """The generation core as an Engine. process: False runs the core in a thread. step_time_limit: seconds without an
    answer after which the process is killed and restarted; after half of them it gets no new work. A thread cannot be
    killed. observe: called with the metric's name and the seconds for each time to first token and time per output
    token."""

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
        self._metrics: dict[str, float] = {}
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
        """The last reported status; "degraded" and silent while a ready process does not answer pings. A long step may
        be the reason; requests to it wait for its answer or its restart."""
        if self._status.state != "ready" or self._watchdog is None or not self._watchdog.silent:
            return self._status
        limit = self._step_time_limit
        message = f"The engine's process does not answer. It is restarted after {limit:g} seconds without an answer."
        return EngineStatus(state="degraded", message=message, silent=True)

    @property
    def pid(self) -> int | None:
        """The process id of the generation core; None for a thread."""
        return self._link.pid if isinstance(self._link, ProcessLink) else None

    # start and close

    async def start(self) -> None:
        await self._open()
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def _open(self) -> None:
        self._settled.clear()
        self._failure = None
        self._status = EngineStatus(state="loading", progress=0.0, message="starting")
        # Reports are matched with their link, so that those of a process that has been replaced are dropped.
        link: Link
        if self._process:
            link = ProcessLink(lambda report: self._take(link, report), lambda reason: self._lost_worker(link, reason))
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
        """Kill a process that does not answer. Its end is then handled like any other."""
        await watchdog.wait_until_hung()
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
        failure = RequestFailed("unavailable", "The engine was closed.", True)
        for stream in self._streams.values():
            stream.put(failure)
        if self._link is not None:
            await self._link.close()

    # reports of the generation core

    def _take(self, link: Link, report: Report) -> None:
        if link is not self._link or self._closed:
            return
        if self._watchdog is not None:
            self._watchdog.reset()
        match report:
            case Replies(items=items):
                for number, reply in items:
                    stream = self._streams.get(number)
                    if stream is not None:  # otherwise it was cancelled meanwhile
                        stream.put(reply)
            case MetricsReport(values=values):
                self._metrics = values
            case Loading(status=status):
                self._status = status
            case Ready(info=info):
                self._info = info
                self._attempts = 0
                self._status = EngineStatus(state="ready", progress=1.0)
                self._settled.set()
            case WorkerFailed(failure=failure):
                # The core could not load, or it stopped with an error.
                first = self._info is None
                self._failure = failure.error()
                self._status = EngineStatus(state="failed" if first else "starting", message=failure.message)
                self._settled.set()
                if not first and not self._process:
                    self._lost_worker(link, failure.message)

    def _lost_worker(self, link: Link, reason: str) -> None:
        """End all generations with an error, and restart the core unless it failed before it was first ready."""
        if link is not self._link or self._closed:
            return
        for stream in self._streams.values():
            kind = "connection" if stream.started else "unavailable"
            stream.put(RequestFailed(kind, "The engine stopped during the generation; try again.", True))  # type: ignore[arg-type]
        if self._failure is not None and self._info is None:
            return  # `start` raises the failure that the core reported
        logger.error("%s", reason)
        self._status = EngineStatus(state="starting", message=f"{reason} It is being restarted.")
        # A core that dies during its first load would most likely die again, so it is not restarted.
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
            message = f"{reason} It was restarted {MAX_RESTARTS} times without success. Restart the server."
            self._status = EngineStatus(state="failed", message=message)
            return
        await asyncio.sleep(self._restart_seconds * 2 ** (self._attempts - 1))
        await self._open()

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        status = self.status
        if status.state != "ready":
            message = status.message or f"The engine is {status.state}."
            raise EngineError("unavailable", message, retryable=status.state != "failed")
        if request.request_id in self._by_id:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        check_supported(request, self.info)
        stream = ReplyStream(next(self._numbers), request, request.sampling)
        self._streams[stream.number] = self._by_id[request.request_id] = stream
        assert self._link is not None
        link = self._link
        link.send(Submit(stream.number, request))
        ended = False
        try:
            while True:
                item = await stream.next()
                if isinstance(item, RequestFailed):
                    ended = True
                    raise item.error()
                if isinstance(item, Finished):
                    ended = True
                    first, following = item.timings.first_token, item.usage.completion_tokens - 1
                    if self._observe is not None and first is not None:
                        self._observe("time_to_first_token_seconds", first)
                        if following > 0:
                            self._observe("time_per_output_token_seconds", (item.timings.total - first) / following)
                    yield item
                    return
                assert not isinstance(item, LoraCommandDone)
                stream.started = stream.started or isinstance(item, Delta)
                yield item
        finally:
            del self._streams[stream.number]
            del self._by_id[request.request_id]
            # The reader closed the stream early: without this command the core would continue to generate.
            if not ended:
                link.send(Cancel(stream.number))

    # adapters

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter for generations that name it. It replaces one of the same name, with which running
        generations continue. Raises EngineError with one sentence."""
        await self._request(LoadLora(next(self._numbers), name, folder))
        others = (each for each in self.config.lora if each.partition("=")[0] != name)
        self.config = self.config.model_copy(update={"lora": (*others, f"{name}={folder}")})

    async def remove_adapter(self, name: str) -> None:
        """Accept no more generations for an adapter; running ones finish with it."""
        await self._request(UnloadLora(next(self._numbers), name))
        others = tuple(each for each in self.config.lora if each.partition("=")[0] != name)
        self.config = self.config.model_copy(update={"lora": others})

    async def _request(self, command: LoadLora | UnloadLora) -> None:
        """Send a command and wait for its reply."""
        if not self.info.adapters:
            raise EngineError("invalid_request", "This engine does not support LoRA adapters per request.")
        answer = self._streams[command.number] = CommandAnswer()
        try:
            self._send(command)
            await answer.done
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
        length = len(stream.request.prompt_token_ids) + (stream.sampling.max_tokens or 0)
        if length > self.info.context_length:
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
        return {**self._metrics, "engine_restarts_total": float(self.restarts)}


def embedded_engine(source: str, name: str, compute: ComputeSettings, process: ProcessSettings) -> EmbeddedEngine:
    """Create the embedded engine for the server's settings. source: a folder or a hub name."""
    config = EngineConfig(model=source, name=name, **compute.model_dump())
    return EmbeddedEngine(config, process=process.engine_process, step_time_limit=process.step_time_limit)
