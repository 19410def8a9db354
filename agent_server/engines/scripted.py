"""An engine that replays scripts: for tests, for front-end work without a model, and for checking how clients handle
failures.

It implements the whole Engine protocol (stop strings, limits, pause, resume, modify, cancel, a bounded queue) and can
be scripted to fail in every way in which a real engine can.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from agent_server.engine_protocol.continuation import already_ended
from agent_server.engine_protocol.detokenizer import ByteVocabulary, OutputText, Vocabulary
from agent_server.engine_protocol.protocol import (
    Control,
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    ErrorKind,
    Finished,
    FinishReason,
    GenerationRequest,
    Timings,
    Token,
    Usage,
    changed_sampling,
    check_length,
    check_supported,
)
from events.options import SamplingParams
from events.sampling import PARAMETERS


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A scripted failure after `after` tokens.

    "error" raises EngineError(kind); "end" ends the stream without Finished; "hang" yields no further item; "cancelled"
    ends with Finished(reason="cancelled") although the reader did not cancel; "crash" raises an exception that is not
    an EngineError.
    """

    action: Literal["error", "end", "hang", "cancelled", "crash"]
    after: int = 0
    kind: ErrorKind = "internal"
    message: str = "The scripted engine fails here."
    retryable: bool = False


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """One generation. `text` is encoded and used if `tokens` is empty.

    first_delay, delay: seconds before the first item and before every further one. chunk: tokens in one Delta. paced:
    tokens become due on schedule even while the reader is busy, as in an engine with its own process; those that are
    overdue come in one item. reason: how the generation ends after the last token; None repeats the tokens until a
    limit ends it.
    """

    tokens: tuple[int, ...] = ()
    text: str = ""
    first_delay: float = 0.0
    delay: float = 0.0
    chunk: int = 1
    paced: bool = False
    reason: FinishReason | None = "stop"
    cached_tokens: int = 0
    logprob: float = -0.5
    fault: Fault | None = None


Scripts = Callable[[GenerationRequest], Script]

DEMONSTRATION = (
    Script(
        text="<think>\nNo model is loaded, so I follow a script.\n</think>\n\n"
        "This answer is scripted. It shows reasoning, text and streaming without a model behind it.",
        first_delay=0.2,
        delay=0.02,
    ),
    Script(
        text="<think>\n\n</think>\n\nA second scripted answer, in **Markdown**:\n\n- one\n- two\n\n"
        "```python\nprint(3)\n```",
        first_delay=0.1,
        delay=0.01,
    ),
)


def cycle(scripts: Sequence[Script]) -> Scripts:
    """Use the scripts in turn, whatever the request is."""
    turn = iter(range(1 << 62))
    return lambda request: scripts[next(turn) % len(scripts)]


def load_scripts(data: bytes) -> tuple[Script, ...]:
    """Read a JSON list of scripts, or one script. Raises msgspec.ValidationError, which names the mistake."""
    return msgspec.json.decode(data if data.lstrip().startswith(b"[") else b"[" + data + b"]", type=tuple[Script, ...])


Now = Callable[[], float]
MAX_RECORDED_REQUESTS = 1000
"""Number of recent requests that are recorded, for tests."""


class Clock(Protocol):
    """The clock of the delays; an event loop is one."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.Handle: ...


@dataclass(eq=False)
class _Running:
    """One generation's state. `wake` ends its sleep when it is paused, resumed or modified, or the engine is closed."""

    request: GenerationRequest
    sampling: SamplingParams
    output: OutputText
    paused: bool = False
    position: int = 0
    pending: list[Control] = field(default_factory=list)
    sleeping: asyncio.Future[None] | None = None
    arrived: float = 0.0
    started: float = 0.0
    first: float | None = None

    def timings(self, now: float) -> Timings:
        first = None if self.first is None else self.first - self.arrived
        return Timings(queued=self.started - self.arrived, first_token=first, total=now - self.arrived)

    def tell(self, action: Literal["paused", "resumed", "modified"]) -> None:
        self.pending.append(Control(action=action, position=self.position))
        self.wake()

    def wake(self) -> None:
        if self.sleeping is not None and not self.sleeping.done():
            self.sleeping.set_result(None)

    async def sleep(self, loop: asyncio.AbstractEventLoop, seconds: float, clock: Clock) -> None:
        """Sleep until `wake`, at most for so many seconds. It is called for every token, hence one future and one timer
        instead of a task."""
        self.sleeping = loop.create_future()
        timer = clock.call_later(seconds, self.wake) if seconds < math.inf else None
        try:
            await self.sleeping
        finally:
            self.sleeping = None
            if timer is not None:
                timer.cancel()


class _Slot:
    """Holds a slot for a generation, from its arrival to its end."""

    def __init__(self, engine: ScriptedEngine, request: GenerationRequest) -> None:
        self._engine = engine
        self._request = request

    async def __aenter__(self) -> _Running:
        return await self._engine.enter(self._request)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._engine.leave(self._request, ended=kind is None)


class ScriptedEngine:
    """Replays `scripts`: a list that is used in turn, or a function from request to script.

    max_running: generations at a time. max_queued: generations that may wait. load_seconds: how long `start` takes.
    context_length: a longer prompt is refused. failure: raised by `start`. now: the clock of the timings. clock: the
    clock of the delays, None for the event loop.
    """

    def __init__(
        self,
        scripts: Scripts | Iterable[Script] = DEMONSTRATION,
        *,
        vocabulary: Vocabulary | None = None,
        model: str = "scripted",
        context_length: int = 32768,
        max_running: int = 1024,
        max_queued: int = 1024,
        load_seconds: float = 0.0,
        failure: EngineError | None = None,
        supports_constraints: bool = False,
        now: Now | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.vocabulary = vocabulary or ByteVocabulary()
        self._script = scripts if callable(scripts) else cycle(tuple(scripts))
        self._slots = asyncio.Semaphore(max_running)
        self._max_queued = max_queued
        self._load_seconds = load_seconds
        self._failure = failure
        self._now = now
        self._delays = clock
        self._status = EngineStatus(state="starting")
        self._info = EngineInfo(
            model=model,
            context_length=context_length,
            vocab_size=self.vocabulary.size,
            sampling=frozenset(PARAMETERS) - {"prompt_logprobs"},
            supports_constraints=supports_constraints,
            continues="exact",
        )
        self.running: dict[str, _Running] = {}
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[str] = []
        self._waiting = 0
        self._generated = 0
        self._prompted = 0

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def status(self) -> EngineStatus:
        return self._status

    async def start(self) -> None:
        steps = 10 if self._load_seconds else 0
        for step in range(steps):
            self._status = EngineStatus(state="loading", progress=step / steps, message="scripted weights")
            await asyncio.sleep(self._load_seconds / steps)
        if self._failure is not None:
            self._status = EngineStatus(state="failed", message=self._failure.message)
            raise self._failure
        self._status = EngineStatus(state="ready", progress=1.0)

    async def close(self) -> None:
        self._status = EngineStatus(state="stopped")
        for running in self.running.values():
            running.wake()

    def crash(self) -> None:
        """Behave as if the engine's process died: every generation ends with EngineError("connection")."""
        self._status = EngineStatus(state="failed", message="The scripted engine crashed.")
        for running in self.running.values():
            running.wake()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        """Plays a script. It is one loop without nested generators because it runs for every token of every stream."""
        self._admit(request)
        async with _Slot(self, request) as running:
            script = self._script(request)
            loop = asyncio.get_running_loop()
            clock: Clock = self._delays or loop
            tokens = script.tokens or tuple(self.vocabulary.encode(script.text))
            ended = already_ended(request, running.output, limit=self._limit(running))
            end = self._end(running, script, ended.reason, ended.stop) if ended else None
            delay = script.first_delay
            due = clock.time() + delay
            while end is None:
                # A paced script keeps its schedule however late its reader is; else a delay begins when the item is
                # taken.
                due = due if script.paced else clock.time() + delay
                if delay <= 0:
                    await asyncio.sleep(0)
                while True:
                    while running.pending:
                        yield running.pending.pop(0)
                    self._check_alive()
                    # Commands wake the sleep, so pauses and acknowledgements are looked at again after every sleep.
                    remaining = math.inf if running.paused else due - clock.time()
                    if remaining <= 0:
                        break
                    await running.sleep(loop, remaining, clock)
                    due = max(due, clock.time()) if remaining == math.inf else due
                delay = script.delay
                # The delays that passed while the reader was busy: their tokens are sent with this item.
                late = int((clock.time() - due) / delay) if script.paced and delay > 0 else 0
                due += (late + 1) * delay
                size, limit = script.chunk * (late + 1), self._limit(running)
                chunk: list[Token] = []
                fault = script.fault
                while end is None and len(chunk) < size and not (fault and _due(fault, running)):
                    end = self._step(running, script, tokens, chunk, limit)
                if chunk:
                    running.first = self._clock() if running.first is None else running.first
                    yield Delta(tuple(chunk))
                if end is None and fault and _due(fault, running):
                    end = await self._fail(running, fault)
                    if end is None:
                        return  # the fault "end": the stream ends without Finished
            timings = running.timings(self._clock())
            yield msgspec.structs.replace(end, timings=timings)

    async def enter(self, request: GenerationRequest) -> _Running:
        """Register a generation, and take a slot for it when one is free."""
        sampling = request.sampling
        output = OutputText(
            self.vocabulary, request.prompt_token_ids, sampling.stop, sampling.min_tokens, request.generated
        )
        running = _Running(
            request=request,
            sampling=sampling,
            output=output,
            arrived=self._clock(),
            position=len(request.generated),
        )
        self.running[request.request_id] = running
        try:
            self._waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self._waiting -= 1
        except BaseException:
            self._withdraw(request, ended=False)
            raise
        running.started = self._clock()
        return running

    def leave(self, request: GenerationRequest, *, ended: bool) -> None:
        """Give the slot of a generation back. One that was closed early or failed is added to `cancelled`."""
        self._slots.release()
        self._withdraw(request, ended=ended)

    def _withdraw(self, request: GenerationRequest, *, ended: bool) -> None:
        self.running.pop(request.request_id, None)
        if not ended:
            self.cancelled.append(request.request_id)

    def _admit(self, request: GenerationRequest) -> None:
        if self._status.state != "ready":
            raise EngineError("unavailable", f"The engine is {self._status.state}.", retryable=True)
        if self._slots.locked() and self._waiting >= self._max_queued:
            raise EngineError("overloaded", "The queue is full.", retryable=True)
        if request.request_id in self.running:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        check_length(request, self._info.context_length)
        check_supported(request, self._info)
        self.requests.append(request)
        del self.requests[:-MAX_RECORDED_REQUESTS]
        self._prompted += len(request.prompt_token_ids)

    def _check_alive(self) -> None:
        if self._status.state == "stopped":
            raise EngineError("unavailable", "The engine was closed.", retryable=True)
        if self._status.state != "ready":
            raise EngineError("connection", self._status.message, retryable=True)

    def _step(
        self, running: _Running, script: Script, tokens: Sequence[int], chunk: list[Token], limit: int
    ) -> Finished | None:
        """Append the next token to `chunk`. Returns Finished if it was the last."""
        position, sampling = running.position, running.sampling
        if position >= limit:
            return self._end(running, script, "length")
        if position >= len(tokens) and (script.reason is not None or not tokens):
            chunk += running.output.drain()
            return self._end(running, script, script.reason or "stop")
        token_id = tokens[position % len(tokens)]
        running.position = position = position + 1
        self._generated += 1
        stops = token_id in sampling.stop_token_ids and position > sampling.min_tokens
        last = position >= limit or (position == len(tokens) and script.reason is not None)
        logprob, alternatives = None, None
        if sampling.logprobs is not None:
            logprob, size = script.logprob, self.vocabulary.size
            alternatives = [((token_id + step) % size, logprob - step) for step in range(sampling.logprobs)]
        chunk += running.output.push(token_id, logprob, alternatives, ends=stops, last=last)
        if running.output.stopped is not None:
            return self._end(running, script, "stop", running.output.stopped)
        if stops:
            return self._end(running, script, "stop", token_id)
        if position >= limit:
            return self._end(running, script, "length")
        return self._end(running, script, script.reason or "stop") if last else None

    def _limit(self, running: _Running) -> int:
        room = self._info.context_length - len(running.request.prompt_token_ids)
        return room if running.sampling.max_tokens is None else min(room, running.sampling.max_tokens)

    def _end(self, running: _Running, script: Script, reason: FinishReason, stop: str | int | None = None) -> Finished:
        usage = Usage(
            prompt_tokens=len(running.request.prompt_token_ids),
            completion_tokens=running.position,
            cached_tokens=min(script.cached_tokens, len(running.request.prompt_token_ids)),
        )
        return Finished(reason=reason, usage=usage, stop=stop)

    async def _fail(self, running: _Running, fault: Fault) -> Finished | None:
        """Fail as the fault says. Returns None if the stream is to end without Finished."""
        if fault.action == "error":
            raise EngineError(fault.kind, fault.message, retryable=fault.retryable)
        if fault.action == "crash":
            raise RuntimeError(fault.message)
        while fault.action == "hang":
            loop = asyncio.get_running_loop()
            await running.sleep(loop, math.inf, loop)
            self._check_alive()
        return self._end(running, Script(), "cancelled") if fault.action == "cancelled" else None

    def _clock(self) -> float:
        return self._now() if self._now is not None else asyncio.get_running_loop().time()

    async def pause(self, request_id: str) -> bool:
        running = self.running.get(request_id)
        if running is None or running.paused:
            return running is not None
        running.paused = True
        running.tell("paused")
        return True

    async def resume(self, request_id: str) -> bool:
        running = self.running.get(request_id)
        if running is None or not running.paused:
            return running is not None
        running.paused = False
        running.tell("resumed")
        return True

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        running = self.running.get(request_id)
        if running is None:
            return False
        running.sampling = changed_sampling(running.sampling, changes)
        running.output.restrict(running.sampling.stop, running.sampling.min_tokens)
        running.tell("modified")
        return True

    def metrics(self) -> dict[str, float]:
        return {
            "num_requests_running": float(len(self.running) - self._waiting),
            "num_requests_waiting": float(self._waiting),
            "kv_cache_usage_perc": 0.0,
            "prompt_tokens_total": float(self._prompted),
            "generation_tokens_total": float(self._generated),
        }


def _due(fault: Fault, running: _Running) -> bool:
    return running.position >= fault.after
