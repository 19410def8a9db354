"""One of several models, as the rest of the server uses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from adapters.part_kinds import KINDS
from agent_server.engine_protocol.protocol import Engine, EngineError, EngineStatus
from agent_server.media.intake import Intake
from agent_server.models.model import POLL_SECONDS, ChatModel, Tell
from agent_server.settings import OutputSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder

HELD: ContextVar[frozenset[str]] = ContextVar("held_models", default=frozenset())
"""The models that the current task uses already: it is let in again, also where the model is leaving."""
UNLOADED = EngineStatus(state="unloaded", message="It is loaded with the first request.")
QUEUED = EngineStatus(state="loading", progress=0.0, message="It waits until other models are loaded or unloaded.")


class Pool(Protocol):
    """Loads models and makes room for them, as a model asks of it. `ModelPool` implements it."""

    async def enter(self, model: PooledModel, tell: Tell, *, again: bool = False) -> None:
        """Wait until the model is loaded and held. again: the task holds it already. Raises EngineError."""

    def leave(self, model: PooledModel) -> None:
        """The end of what `enter` began."""

    async def close(self) -> None:
        """Unload every model."""


class PooledModel:
    """A model that its pool loads and unloads. make: makes it anew for each load. bytes: of its weights and cache, as
    far as its files tell, until it was loaded once.

    users: turns that use it now; used: when one last began or ended to; waiting: those who wait until it is loaded;
    adapters: folders of its LoRA adapters, by their names."""

    adapter = ""

    def __init__(
        self,
        name: str,
        make: Callable[[], ChatModel],
        load_prompts: Callable[[], PromptBuilder],
        output: OutputSettings | None = None,
        intake: Intake | None = None,
        bytes: int = 0,
    ) -> None:
        self.name = name
        self.output = output or OutputSettings()
        self.intake = intake or Intake()
        self.make = make
        self.bytes = bytes
        self.pool: Pool | None = None
        self.current: ChatModel | None = None
        self.users = 0
        self.used = 0.0
        self.unloading: asyncio.Task[None] | None = None
        self.loading: asyncio.Task[None] | None = None
        self.failed: tuple[float, EngineError] | None = None
        self.adapters: dict[str, str] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.unused = asyncio.Event()
        self._load_prompts = load_prompts

    @property
    def root(self) -> PooledModel:
        return self

    @property
    def leaving(self) -> bool:
        return self.unloading is not None

    @property
    def status(self) -> EngineStatus:
        if self.leaving or (self.current is None and self.loading is not None):
            return QUEUED
        if self.current is not None:
            return self.current.status
        if self.failed is not None:
            return EngineStatus(state="failed", message=self.failed[1].message)
        return UNLOADED

    @property
    def ready(self) -> bool:
        return self.current is not None and self.current.ready

    @property
    def engine(self) -> Engine:
        """Raises EngineError while it is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.engine

    @property
    def prompts(self) -> PromptBuilder:
        """Raises EngineError while it is not loaded."""
        if self.current is None:
            raise EngineError("unavailable", f"The model {self.name} is not loaded.", retryable=True)
        return self.current.prompts

    @property
    def takes(self) -> frozenset[str]:
        return self.current.takes if self.current is not None else frozenset(KINDS)

    async def tokenizing(self) -> PromptBuilder:
        """The prompt builder for what needs no weights: nothing is loaded for it but the tokenizer."""
        if self.ready:
            return self.prompts
        try:
            return await asyncio.to_thread(self._load_prompts)
        except EngineError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise EngineError("unavailable", f"Cannot load {self.name}: {reason}") from error

    @contextlib.asynccontextmanager
    async def use(self, tell: Tell) -> AsyncIterator[None]:
        """Around everything that a turn asks of the model: it is loaded before, and stays until after. tell: of the
        wait. Raises EngineError where it cannot be loaded."""
        assert self.pool is not None
        held = HELD.get()
        await self.pool.enter(self, tell, again=self.name in held)
        HELD.set(held | {self.name})
        try:
            yield
        finally:
            HELD.set(held)
            self.pool.leave(self)

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter beside the weights, which are loaded for it, and keep it for later loads. Raises
        EngineError."""
        async with self.use(lambda status: None):
            assert self.current is not None
            await self.current.load_adapter(name, folder)
            self.adapters[name] = folder

    async def remove_adapter(self, name: str) -> None:
        del self.adapters[name]
        if self.current is not None and self.ready:
            await self.current.remove_adapter(name)

    async def load(self) -> None:
        """Load it before anyone asks for it. Never raises: the outcome is `status`."""
        with contextlib.suppress(EngineError):
            async with self.use(lambda status: None):
                pass

    async def states(self) -> AsyncGenerator[EngineStatus, None]:
        """Each new status while it is being loaded, and the one after it."""
        last: EngineStatus | None = None
        while True:
            status = self.status
            if status != last:
                yield status
            if status.state not in ("starting", "loading"):
                return
            last = status
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        await self.intake.close()
        if self.pool is not None:
            await self.pool.close()
