"""The gateway's side of a worker: an engine whose tokens come over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Literal

import msgspec

from agent_server.engine.protocol import (
    Delta,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    Finished,
    GenerationRequest,
)
from agent_server.engines.upstream.address import Address
from agent_server.engines.upstream.settings import UpstreamSettings
from agent_server.engines.upstream.transport import TAIL_SECONDS, Transport
from agent_server.engines.worker.frames import Command, Report, WorkerFrames, failure_of, fields, item_of

POLL_SECONDS = 0.5
LOOK_SECONDS = 1.0
"""Between two looks at a worker; a stream that breaks is a reason to look at once."""
ASK_SECONDS = 5.0


class WorkerEngine:
    """Speaks to `agent-server worker`. A stream without its last word is a lost one."""

    def __init__(self, address: Address, settings: UpstreamSettings | None = None) -> None:
        self.address = address
        self.settings = settings or UpstreamSettings()
        self._transport = Transport(address, self.settings)
        self._status = EngineStatus(state="starting", message=f"Waiting for the worker {address.url}.")
        self._info: EngineInfo | None = None
        self._metrics: dict[str, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._look_now = asyncio.Event()
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("unavailable", self._status.message or "The worker is not ready yet.", retryable=True)
        return self._info

    @property
    def status(self) -> EngineStatus:
        return self._status

    # beginning and ending

    async def start(self) -> None:
        """Wait until the worker has loaded its model. Raises EngineError where waiting does not help."""
        while self._info is None or self._status.state not in ("ready", "degraded"):
            try:
                self._heed(await self._ask())
            except EngineError as error:
                self._status = EngineStatus(state="starting", message=error.message)
                if not error.retryable:
                    self._status = EngineStatus(state="failed", message=error.message)
                    await self._transport.close()
                    raise
            if self._status.state == "failed":
                raise EngineError("unavailable", self._status.message, retryable=True)
            if self._status.state not in ("ready", "degraded"):
                await asyncio.sleep(POLL_SECONDS)
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._status = EngineStatus(state="stopped")
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._transport.close()

    async def _ask(self) -> Report:
        answer = await self._transport.ask("/engine/status", seconds=ASK_SECONDS)
        if answer.status in (401, 403):
            raise EngineError("unavailable", f"The worker {self.address.url} refuses this server's key.")
        try:
            return msgspec.json.decode(answer.body, type=Report)
        except msgspec.MsgspecError:
            raise EngineError(
                "unavailable", f"{self.address.url} answers, but not as a worker does ({answer.status})."
            ) from None

    def _heed(self, report: Report) -> None:
        self._metrics = report.metrics
        self._status = report.status
        if report.info is None or report.info == self._info:
            return
        known, self._info = self._info, self._info or report.info
        if known is not None and (known.model, known.vocab_size) != (report.info.model, report.info.vocab_size):
            message = f"The worker {self.address.url} came back with another model, {report.info.model}."
            self._status = EngineStatus(state="failed", message=message)
        else:
            self._info = report.info

    async def _watch(self) -> None:
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):  # wait_for may lose a cancellation that comes with the event
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                self._heed(await self._ask())
            except EngineError as error:
                self._status = EngineStatus(state="starting", message=error.message)

    async def _alive(self) -> bool:
        with contextlib.suppress(EngineError):
            return (await self._ask()).status.state in ("ready", "degraded", "stopped")
        return False

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        if self._closed:
            raise EngineError("unavailable", "The engine was closed.", retryable=True)
        body, began = msgspec.json.encode(request), False
        stream = self._transport.stream("/engine/generate", body, self._alive, WorkerFrames())
        try:
            async with contextlib.aclosing(stream):
                async for item in _items(stream):
                    began = began or isinstance(item, Delta)
                    yield item
        except EngineError as error:
            raise self._failure(error, began) from error

    def _failure(self, error: EngineError, began: bool) -> EngineError:
        if self._closed:
            return EngineError("unavailable", "The engine was closed.", retryable=True)
        if error.kind in ("connection", "unavailable", "timeout"):
            self._look_now.set()
        if error.kind == "connection" and not began:
            return EngineError("unavailable", error.message, retryable=error.retryable)
        return error

    # control

    async def pause(self, request_id: str) -> bool:
        return await self._command(request_id, "pause")

    async def resume(self, request_id: str) -> bool:
        return await self._command(request_id, "resume")

    async def modify(self, request_id: str, changes: dict[str, Any]) -> bool:
        return await self._command(request_id, "modify", changes)

    async def _command(
        self, request_id: str, action: Literal["pause", "resume", "modify"], changes: dict[str, Any] | None = None
    ) -> bool:
        """Whether the worker did it; an unreachable one did not. EngineError where it refuses."""
        command = Command(request_id=request_id, action=action, changes=changes or {})
        try:
            answer = await self._transport.ask("/engine/control", command, seconds=ASK_SECONDS)
        except EngineError:
            return False
        if answer.status == 400:
            raise failure_of(answer.body)
        found = answer.json()
        return isinstance(found, dict) and found.get("done") is True

    def metrics(self) -> dict[str, float]:
        return self._metrics


async def _items(stream: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[EngineItem, None]:
    """Items as they come. The end is held back until the stream's own last word says that everything was sent."""
    finished: Finished | None = None
    async for frames in stream:
        for frame in frames:
            event, data = fields(frame)
            if event == b"complete_final" and finished is not None:
                await _exhaust(stream)
                yield finished
                return
            if event == b"error":
                raise failure_of(data)
            if event == b"":
                item = item_of(data)
                if isinstance(item, Finished):
                    finished = item
                else:
                    yield item
    raise EngineError("connection", "The worker's stream ended before it was complete.", retryable=True)


async def _exhaust(stream: AsyncGenerator[list[bytes], None]) -> None:
    """Read to the end of the body, so that the connection can be used again."""
    with contextlib.suppress(TimeoutError, EngineError):
        async with asyncio.timeout(TAIL_SECONDS):
            await anext(stream, None)
