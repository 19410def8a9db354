"""An engine that is somebody else's server: ids out over HTTP, ids in, and everything that can go wrong in one error.

Success is a finish reason that means success, and nothing else: not the status 200, not `[DONE]`, not the end of the
body. The tokenizer, the template, the detokeniser and the stop strings are this side's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from agent_server.engine.checks import check_length, check_supported
from agent_server.engine.continuation import as_prompt
from agent_server.engine.protocol import (
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    GenerationRequest,
)
from agent_server.engines.upstream.address import Address
from agent_server.engines.upstream.connection import Upstream
from agent_server.engines.upstream.constraint_verifier import ConstraintVerifier, ConstraintVerifiers
from agent_server.engines.upstream.detect import connect
from agent_server.engines.upstream.grammar import translate
from agent_server.engines.upstream.model import Model
from agent_server.engines.upstream.output import Output
from agent_server.engines.upstream.sampling import bounded
from agent_server.engines.upstream.settings import UpstreamSettings
from agent_server.engines.upstream.transport import TAIL_SECONDS, Transport

FAILED_PROBES = 2
"""Questions about health in a row without a good answer before the status says so."""
ENDED = "The engine was closed."


class UpstreamEngine:
    """load: reads our side of the model; called in a thread, once. The dialect is the address's, or is found out."""

    def __init__(self, address: Address, load: Callable[[], Model], settings: UpstreamSettings | None = None) -> None:
        self.address = address
        self.settings = settings or UpstreamSettings()
        self._load = load
        self._transport = Transport(address, self.settings)
        self._status = EngineStatus(state="starting", message=f"Waiting for {address.url}.")
        self._upstream: Upstream | None = None
        self._info: EngineInfo | None = None
        self._watching: asyncio.Task[None] | None = None
        self._streams: set[str] = set()
        self._counters = dict.fromkeys(("prompt_tokens_total", "generation_tokens_total", "upstream_errors_total"), 0)
        self._started: set[str] = set()
        self._court: ConstraintVerifiers | None = None
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("unavailable", self._status.message or "The upstream is not known yet.", retryable=True)
        return self._info

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def dialect(self) -> str | None:
        """Found or given; None before `start` has found it."""
        return self._upstream.dialect.name if self._upstream else self.address.dialect

    # starting and ending

    async def start(self) -> None:
        try:
            model = await asyncio.to_thread(self._load)
            self._upstream = await connect(self._transport, model, self.settings, self._report)
        except EngineError as error:
            self._status = EngineStatus(state="failed", message=error.message)
            await self._transport.close()
            raise
        self._info = self._upstream.info
        self._status = EngineStatus(state="ready", progress=1.0)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def _report(self, message: str) -> None:
        self._status = EngineStatus(state="starting", message=message)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus(state="stopped")
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._transport.close()

    async def _watch(self) -> None:
        """Ask about health for as long as the engine lives; a server that came back must still serve this model."""
        failures = 0
        while True:
            await asyncio.sleep(self.settings.health)
            failures = 0 if await self._alive() else failures + 1
            if failures == 0 and self._status.state != "ready":
                await self._recover()
            elif failures >= FAILED_PROBES:
                message = f"The upstream {self.address.url} does not answer; it is asked again."
                self._status = EngineStatus(state="starting", message=message)

    async def _alive(self) -> bool:
        assert self._upstream is not None
        with contextlib.suppress(EngineError):
            answer = await self._transport.ask(self._upstream.dialect.health, seconds=self.settings.connect)
            return answer.status == 200
        return False

    async def _recover(self) -> None:
        assert self._upstream is not None
        try:
            await self._upstream.verify(self._transport)
        except EngineError as error:
            self._status = EngineStatus(state="starting", message=error.message)
            return
        self._status = EngineStatus(state="ready", progress=1.0)

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        upstream = self._admit(request)
        self._streams.add(request.request_id)  # before anything is awaited: the next one is admitted by their number
        output: Output | None = None
        try:
            grammar = await translate(request.constraint, upstream.served.grammar, upstream.model.controls)
            asked = upstream.asked(request, bounded(request, upstream), grammar)
            upstream.dialect.check(asked)
            output = Output(upstream, asked, await self._judge(request))
            if output.ended:
                yield output.finished()
                return
            rest = as_prompt(msgspec.structs.replace(request, sampling=asked.sampling))
            body = upstream.dialect.body(upstream.asked(rest, rest.sampling, grammar))
            async with contextlib.aclosing(self._items(output, msgspec.json.encode(body))) as items:
                async for item in items:
                    yield item
        except EngineError as error:
            raise (error if output is None else self._failure(error, request.request_id)) from error
        finally:
            self._streams.discard(request.request_id)
            self._started.discard(request.request_id)
            if output is not None:
                self._counters["prompt_tokens_total"] += len(request.prompt_token_ids)
                self._counters["generation_tokens_total"] += output.count - len(request.generated)

    async def _judge(self, request: GenerationRequest) -> ConstraintVerifier | None:
        """Only llguidance reads a grammar as it was meant here; what another library makes of it is checked."""
        assert self._upstream is not None
        if request.constraint is None or self._upstream.served.grammar == "llguidance":
            return None
        if self._court is None:
            model = self._upstream.model
            self._court = ConstraintVerifiers(model.vocabulary, self.info.vocab_size, model.ends)
        return await asyncio.to_thread(self._court.judge, request.constraint)

    def _admit(self, request: GenerationRequest) -> Upstream:
        if self._upstream is None or self._status.state not in ("ready", "degraded"):
            message = self._status.message or f"The engine is {self._status.state}."
            raise EngineError("unavailable", message, retryable=self._status.state != "failed")
        if request.request_id in self._streams:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        if len(self._streams) >= self.settings.in_flight:
            raise EngineError("overloaded", f"{self.settings.in_flight} generations are in flight.", retryable=True)
        check_length(request, self.info.context_length)
        check_supported(request, self.info)
        return self._upstream

    async def _items(self, output: Output, body: bytes) -> AsyncGenerator[EngineItem, None]:
        """Tokens as they come, then how it ended. A stream that ends without a word about it failed; what breaks
        behind that word, and is no error frame, breaks nothing."""
        assert self._upstream is not None
        stream = self._transport.stream(self._upstream.dialect.path, body, self._alive)
        async with contextlib.aclosing(stream):
            while not output.over:
                try:
                    if output.ended:
                        async with asyncio.timeout(TAIL_SECONDS):
                            frames = await anext(stream, None)
                    else:
                        frames = await anext(stream, None)
                except (TimeoutError, EngineError):
                    if output.ended:
                        break
                    raise
                if frames is None:
                    break
                tokens = output.read(frames)
                if tokens:
                    self._started.add(output.request.request_id)
                    yield Delta(tuple(tokens))
                if output.failure is not None:
                    raise output.failure
        yield output.finished()

    def _failure(self, error: EngineError, request_id: str) -> EngineError:
        """A stream that broke before its first token is as good as never begun."""
        if self._closed:
            return EngineError("unavailable", ENDED, retryable=True)
        if error.kind not in ("invalid_request", "context_length_exceeded"):
            self._counters["upstream_errors_total"] += 1
        if error.kind == "connection" and request_id not in self._started:
            return EngineError("unavailable", error.message, retryable=error.retryable, param=error.param)
        return error

    # control: an upstream has no words for these

    async def pause(self, request_id: str) -> bool:
        return False

    async def resume(self, request_id: str) -> bool:
        return False

    async def modify(self, request_id: str, changes: dict[str, Any]) -> bool:
        return False

    def metrics(self) -> dict[str, float]:
        running = len(self._started)
        return {
            "num_requests_running": float(running),
            "num_requests_waiting": float(len(self._streams) - running),
            **{name: float(value) for name, value in self._counters.items()},
        }


__all__ = ["UpstreamEngine"]
