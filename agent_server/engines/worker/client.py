"""The gateway's side of a worker: an engine whose tokens come over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Literal

import msgspec

from agent_server.engine_protocol.protocol import (
    Delta,
    Engine,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    Finished,
    GenerationRequest,
)
from agent_server.engines.upstream.transport import TAIL_SECONDS, Transport, UpstreamAddress
from agent_server.engines.worker.frames import KIND, Command, Report, WorkerFrames, failure_of, fields, item_of
from agent_server.settings import UpstreamSettings

POLL_SECONDS = 0.5
LOOK_SECONDS = 1.0
"""Between two status requests to a worker; a stream that breaks causes one at once."""
ASK_SECONDS = 5.0


class WorkerEngine:
    """The engine of an `agent-server worker`. A stream without `complete_final` counts as lost."""

    def __init__(self, address: UpstreamAddress, settings: UpstreamSettings | None = None) -> None:
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
        """Wait until the worker has loaded its model. Raises EngineError if waiting longer does not help."""
        while self._info is None or self._status.state not in ("ready", "degraded"):
            try:
                self._apply(await self._ask())
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
            message = (
                f"The worker {self.address.url} refuses this server's key; "
                "set AGENT_SERVER_ENGINE_KEY to one of its keys."
            )
            raise EngineError("unavailable", message)
        try:
            return msgspec.json.decode(answer.body, type=Report)
        except (ValueError, RecursionError):
            raise EngineError(
                "unavailable",
                f"{self.address.url} is not an `agent-server worker`: its answer to GET /engine/status has status "
                f"{answer.status} and is not a status report.",
            ) from None

    def _apply(self, report: Report) -> None:
        self._metrics = report.metrics
        self._status = report.status
        if report.info is None or report.info == self._info:
            return
        # Gateways rely on the model and its vocabulary not changing; context length and abilities may change on a
        # restart.
        previous, self._info = self._info, self._info or report.info
        if previous is not None and (previous.model, previous.vocab_size) != (
            report.info.model,
            report.info.vocab_size,
        ):
            message = f"The worker {self.address.url} was restarted with another model, {report.info.model}."
            self._status = EngineStatus(state="failed", message=message)
        else:
            self._info = report.info

    async def _watch(self) -> None:
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                # Not asyncio.wait_for: it may lose a cancellation that comes together with the event.
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._look_now.wait()
            self._look_now.clear()
            try:
                self._apply(await self._ask())
            except EngineError as error:
                self._status = EngineStatus(state="starting", message=error.message)

    async def _alive(self) -> bool:
        with contextlib.suppress(EngineError):
            # A draining worker reports "stopped" and still finishes the generations that it has.
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
            if self._closed:
                raise EngineError("unavailable", "The engine was closed.", retryable=True) from error
            if error.kind in ("connection", "unavailable", "timeout"):
                self._look_now.set()
            # A stream that broke before its first token counts as a worker that was not there: the request can be
            # started elsewhere.
            if error.kind == "connection" and not began:
                raise EngineError("unavailable", error.message, retryable=error.retryable) from error
            raise

    # control

    async def pause(self, request_id: str) -> bool:
        return await self._command(request_id, "pause")

    async def resume(self, request_id: str) -> bool:
        return await self._command(request_id, "resume")

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        return await self._command(request_id, "modify", changes)

    async def _command(
        self, request_id: str, action: Literal["pause", "resume", "modify"], changes: dict[str, object] | None = None
    ) -> bool:
        """Send a command. Return whether the worker executed it; False if it cannot be reached. Raises EngineError if
        it refuses."""
        command = Command(request_id=request_id, action=action, changes=changes or {})
        try:
            answer = await self._transport.ask("/engine/control", command, seconds=ASK_SECONDS)
        except EngineError:
            return False
        if answer.status == 400:
            raise failure_of(answer.body)
        result = answer.json()
        return isinstance(result, dict) and result.get("done") is True

    def metrics(self) -> dict[str, float]:
        return self._metrics


async def _items(stream: AsyncGenerator[list[bytes], None]) -> AsyncGenerator[EngineItem, None]:
    """Yield the items as they arrive. Finished is held back until `complete_final` says that every item was sent."""
    finished: Finished | None = None
    async for frames in stream:
        for frame in frames:
            event, data = fields(frame)
            if event == b"complete_final" and finished is not None:
                # Read the body to its end, so that the connection can be used again.
                with contextlib.suppress(TimeoutError, EngineError):
                    async with asyncio.timeout(TAIL_SECONDS):
                        await anext(stream, None)
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
    raise EngineError(
        "connection", "The worker's stream ended without complete_final, so items are missing.", retryable=True
    )


class DiscoveredEngine:
    """Asks the server when it is started and passes every call on to the engine that fits it. upstream: makes the
    engine for a server that is not a worker."""

    def __init__(self, address: UpstreamAddress, upstream: Callable[[], Engine], settings: UpstreamSettings) -> None:
        self.address = address
        self._upstream = upstream
        self._settings = settings
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The engine that fits the server. Raises EngineError until the server has answered once."""
        if self._engine is None:
            raise EngineError("unavailable", f"Nothing has answered at {self.address.url} yet.", retryable=True)
        return self._engine

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    @property
    def status(self) -> EngineStatus:
        if self._engine is None:
            return EngineStatus(state="starting", message=f"Waiting for {self.address.url}.")
        return self._engine.status

    async def start(self) -> None:
        if self._engine is None:
            transport = Transport(self.address, self._settings)
            try:
                health = (await transport.ask("/health", seconds=self._settings.connect)).json()
            finally:
                await transport.close()
            worker = isinstance(health, dict) and health.get("engine") == KIND
            self._engine = WorkerEngine(self.address, self._settings) if worker else self._upstream()
        await self._engine.start()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        return self.engine.generate(request)

    async def pause(self, request_id: str) -> bool:
        return await self.engine.pause(request_id)

    async def resume(self, request_id: str) -> bool:
        return await self.engine.resume(request_id)

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
        return await self.engine.modify(request_id, changes)

    def metrics(self) -> dict[str, float]:
        return {} if self._engine is None else self._engine.metrics()
