"""An engine at an address without a dialect: it is asked whether it is an `agent-server worker` or another server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from agent_server.engine_protocol.protocol import (
    Engine,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    GenerationRequest,
)
from agent_server.engines.upstream.address import UpstreamAddress
from agent_server.engines.upstream.transport import Transport
from agent_server.engines.worker.client import WorkerEngine
from agent_server.engines.worker.frames import KIND
from agent_server.settings import UpstreamSettings


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
            worker = await self._is_worker()
            self._engine = WorkerEngine(self.address, self._settings) if worker else self._upstream()
        await self._engine.start()

    async def _is_worker(self) -> bool:
        transport = Transport(self.address, self._settings)
        try:
            health = (await transport.ask("/health", seconds=self._settings.connect)).json()
        finally:
            await transport.close()
        return isinstance(health, dict) and health.get("engine") == KIND

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
