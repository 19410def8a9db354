"""A model as the rest of the server uses it: an engine with its prompt builder, and the loading of both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from adapters.body import KINDS
from agent_server.engine_protocol.protocol import Engine, EngineError, EngineStatus, LoraEngine
from agent_server.media.intake import Intake
from agent_server.settings import OutputSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder

Tell = Callable[[EngineStatus], None]
"""Called with the status of a model that is being loaded."""

logger = logging.getLogger("agent_server")
POLL_SECONDS = 0.1
_ALWAYS_LOADED: AbstractAsyncContextManager[None] = contextlib.nullcontext()


async def loading_states(read: Callable[[], EngineStatus]) -> AsyncGenerator[EngineStatus, None]:
    """Yield each new status while a model is loading or its engine does not answer, and the one after that."""
    last: EngineStatus | None = None
    while True:
        status = read()
        if status != last:
            yield status
        if status.state not in ("starting", "loading") and not status.silent:
            return
        last = status
        await asyncio.sleep(POLL_SECONDS)


class ChatModel:
    """One model with its own engine. `prompts` raises EngineError("unavailable") until it is ready. adapter: always "",
    since it is served with its own weights."""

    adapter = ""

    def __init__(
        self,
        name: str,
        engine: Engine,
        load_prompts: Callable[[], PromptBuilder],
        output: OutputSettings | None = None,
        intake: Intake | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.output = output or OutputSettings()
        self.intake = intake or Intake()
        self.load_prompts = load_prompts
        self._prompts: PromptBuilder | None = None
        self._failure: EngineError | None = None

    async def load(self) -> None:
        """Load the tokenizer and template first, which is fast and reveals most mistakes, then the weights. Never
        raises; the outcome is in `status`."""
        try:
            self._prompts = await asyncio.to_thread(self.load_prompts)
            await self.engine.start()
        except EngineError as error:
            self._failure = error
        except Exception as error:
            logger.debug("The model cannot be loaded", exc_info=True)
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._failure = EngineError("unavailable", f"Cannot load {self.name}: {reason}")

    async def become(self, other: ChatModel) -> None:
        """Unload this model and load the other one in its place, so that everything that references this model uses the
        other one from then on. Never raises; the outcome is in `status`."""
        engine, self._prompts, self._failure = self.engine, None, None
        self.name, self.engine, self.load_prompts = other.name, other.engine, other.load_prompts
        with contextlib.suppress(EngineError):
            await engine.close()
        await self.load()

    @property
    def root(self) -> ChatModel:
        """The model itself; for an adapter, the model that it is applied to."""
        return self

    @property
    def failure(self) -> EngineError | None:
        """The error of the last load, or None."""
        return self._failure

    @property
    def status(self) -> EngineStatus:
        if self._failure is not None:
            return EngineStatus(state="failed", message=self._failure.message)
        if self._prompts is None:
            return EngineStatus(state="loading", progress=0.0, message="tokenizer")
        return self.engine.status

    @property
    def ready(self) -> bool:
        return self.status.state in ("ready", "degraded")

    @property
    def takes(self) -> frozenset[str]:
        """The kinds of content besides text that the model accepts; all kinds while it is not loaded. Every model
        accepts documents, as text."""
        return frozenset({"document", *self.engine.info.placeholders}) if self.ready else frozenset(KINDS)

    @property
    def prompts(self) -> PromptBuilder:
        """The prompt builder. Raises EngineError("unavailable") with the model's state until it is ready."""
        if self._prompts is None or not self.ready:
            status = self.status
            share = "" if status.progress is None else f" ({status.progress:.0%})"
            message = f"The model {self.name} is {status.state}{share}. {status.message}".strip()
            raise EngineError("unavailable", message, retryable=True)
        return self._prompts

    def use(self, tell: Tell) -> AbstractAsyncContextManager[None]:
        """Return the context in which a turn uses the model. This model stays loaded, so the context does nothing."""
        return _ALWAYS_LOADED

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter beside the weights. Raises EngineError."""
        await self._adaptable.load_adapter(name, folder)

    async def remove_adapter(self, name: str) -> None:
        await self._adaptable.remove_adapter(name)

    @property
    def _adaptable(self) -> LoraEngine:
        if not isinstance(self.engine, LoraEngine):
            message = (
                f"The LoRA adapters of {self.name} cannot be changed, because its engine does not support it. "
                "Use one embedded engine."
            )
            raise EngineError("invalid_request", message)
        return self.engine

    async def tokenizing(self) -> PromptBuilder:
        """Return the prompt builder for requests that need no weights. Raises EngineError."""
        return self.prompts

    def states(self) -> AsyncGenerator[EngineStatus, None]:
        return loading_states(lambda: self.status)

    async def close(self) -> None:
        await self.intake.close()
        with contextlib.suppress(EngineError):
            await self.engine.close()
