"""An engine on another inference server: sends token ids over HTTP, reads token ids, and raises EngineError.

Only a finish reason that means success counts as success; the status 200, `[DONE]` and the end of the body do not. The
tokenizer, the template, the detokenizer and the stop strings are on this side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

import msgspec

from agent_server.engine_protocol.continuation import as_prompt
from agent_server.engine_protocol.protocol import (
    CancelOnly,
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    GenerationRequest,
)
from agent_server.engines.upstream.connection import Upstream, admit, bounded
from agent_server.engines.upstream.detect import connect
from agent_server.engines.upstream.dialects import OutgoingRequest
from agent_server.engines.upstream.grammar import ConstraintVerifier, ConstraintVerifiers, translate
from agent_server.engines.upstream.model import UpstreamModel
from agent_server.engines.upstream.output import Output
from agent_server.engines.upstream.transport import TAIL_SECONDS, Transport, UpstreamAddress
from agent_server.settings import UpstreamSettings

FAILED_PROBES = 2
"""Consecutive failed health checks after which the engine is no longer ready."""
logger = logging.getLogger("agent_server")
CLOSED = "The engine was closed."


class UpstreamEngine(CancelOnly):
    """The Engine of an upstream. load: reads the model's tokenizer and defaults; called once, in a thread. The dialect
    is detected unless the address names it."""

    def __init__(
        self, address: UpstreamAddress, load: Callable[[], UpstreamModel], settings: UpstreamSettings | None = None
    ) -> None:
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
        self._verifiers: ConstraintVerifiers | None = None
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
        """The name of the dialect; None if the address has none and `start` has not detected it yet."""
        return self._upstream.dialect.name if self._upstream else self.address.dialect

    # starting and ending

    async def start(self) -> None:
        def report(message: str) -> None:
            self._status = EngineStatus(state="starting", message=message)

        try:
            model = await asyncio.to_thread(self._load)
            self._upstream = await connect(self._transport, model, self.settings, report)
        except EngineError as error:
            self._status = EngineStatus(state="failed", message=error.message)
            await self._transport.close()
            raise
        self._info = self._upstream.info
        self._status = EngineStatus(state="ready", progress=1.0)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

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
        """Check the server's health at intervals. A server that answers again must still serve the same model."""
        failures = 0
        while True:
            await asyncio.sleep(self.settings.health)
            # A single failed check may be chance, for example while the server is under full load.
            failures = 0 if await self._alive() else failures + 1
            if failures == 0 and self._status.state != "ready":
                assert self._upstream is not None
                try:
                    await self._upstream.verify(self._transport)
                except EngineError as error:
                    self._status = EngineStatus(state="starting", message=error.message)
                else:
                    self._status = EngineStatus(state="ready", progress=1.0)
            elif failures >= FAILED_PROBES:
                message = f"The upstream {self.address.url} does not answer; trying again."
                self._status = EngineStatus(state="starting", message=message)

    async def _alive(self) -> bool:
        assert self._upstream is not None
        with contextlib.suppress(EngineError):
            answer = await self._transport.ask(self._upstream.dialect.health, seconds=self.settings.connect)
            return answer.status == 200
        return False

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        admit(request, self, self._streams, self.settings.in_flight)
        assert self._upstream is not None
        upstream = self._upstream
        # Registered before the first await, because `admit` counts the streams of concurrent requests.
        self._streams.add(request.request_id)
        output: Output | None = None
        try:
            grammar = await translate(request.constraint, upstream.served.grammar, upstream.model.controls)
            outgoing = upstream.outgoing(request, bounded(request, upstream), grammar)
            upstream.dialect.check(outgoing)
            output = Output(upstream, outgoing, await self._verifier(request))
            if output.ended:  # the tokens so far are already the whole answer
                yield output.finished()
                return
            rest = as_prompt(msgspec.structs.replace(request, sampling=outgoing.sampling))
            outgoing = upstream.outgoing(rest, rest.sampling, grammar)
            body = (
                await asyncio.to_thread(_written, upstream, outgoing) if rest.pictures else _written(upstream, outgoing)
            )
            async with contextlib.aclosing(self._items(output, body)) as items:
                async for item in items:
                    yield item
        except EngineError as error:
            if output is None:  # refused before it was sent
                raise
            if self._closed:
                raise EngineError("unavailable", CLOSED, retryable=True) from error
            if error.kind not in ("invalid_request", "context_length_exceeded"):
                self._counters["upstream_errors_total"] += 1
            # A stream that broke before its first token counts as unavailable: the request can be started elsewhere.
            if error.kind == "connection" and request.request_id not in self._started:
                raise EngineError("unavailable", error.message, retryable=error.retryable, param=error.param) from error
            raise
        finally:
            self._streams.discard(request.request_id)
            self._started.discard(request.request_id)
            # A request that was refused before it was sent is not counted.
            if output is not None:
                self._counters["prompt_tokens_total"] += len(request.prompt_token_ids)
                self._counters["generation_tokens_total"] += output.count - len(request.generated)

    async def _verifier(self, request: GenerationRequest) -> ConstraintVerifier | None:
        """Grammars are written for llguidance. Another library may read one differently, so its output is verified."""
        assert self._upstream is not None
        if request.constraint is None or self._upstream.served.grammar == "llguidance":
            return None
        if self._verifiers is None:
            model = self._upstream.model
            self._verifiers = ConstraintVerifiers(model.vocabulary, self.info.vocab_size, model.ends, model.controls)
        return await asyncio.to_thread(self._verifiers.verifier, request.constraint)

    async def _items(self, output: Output, body: bytes) -> AsyncGenerator[EngineItem, None]:
        """Yield tokens as they arrive, then Finished. A stream without a finish reason has failed. After the finish
        reason only an error frame is a failure, not a broken connection."""
        assert self._upstream is not None
        stream = self._transport.stream(self._upstream.dialect.path, body, self._alive)
        tail: float | None = None
        async with contextlib.aclosing(stream):
            while not output.over:
                try:
                    # Usage may follow the finish reason, but it is not worth waiting for long.
                    if output.ended:
                        tail = tail or asyncio.get_running_loop().time() + TAIL_SECONDS
                        async with asyncio.timeout_at(tail):
                            frames = await anext(stream, None)
                    else:
                        frames = await anext(stream, None)
                except (TimeoutError, EngineError):
                    if output.ended:
                        break
                    raise
                if frames is None:
                    break
                for number, tokens in enumerate(output.read(frames)):
                    if number:
                        await asyncio.sleep(0)
                    if tokens:
                        self._started.add(output.request.request_id)
                        yield Delta(tuple(tokens))
        if output.overran:
            logger.warning(
                "the upstream %s does not stop at max_tokens: an answer was cut at %s tokens and its connection closed",
                self.address.url, output.count,
            )  # fmt: skip
        yield output.finished()

    def metrics(self) -> dict[str, float]:
        running = len(self._started)
        return {
            "num_requests_running": float(running),
            "num_requests_waiting": float(len(self._streams) - running),
            **{name: float(value) for name, value in self._counters.items()},
        }


def _written(upstream: Upstream, outgoing: OutgoingRequest) -> bytes:
    return msgspec.json.encode(upstream.dialect.body(outgoing))


__all__ = ["UpstreamEngine"]
