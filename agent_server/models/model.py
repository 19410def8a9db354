"""A model as the rest of the server uses it: an engine with its prompt builder, and the loading of both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from adapters.body import KINDS
from agent_server.engine_protocol.protocol import Engine, EngineError, EngineStatus, TakesAdapters
from agent_server.media.intake import Intake
from agent_server.settings import OutputSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder

Tell = Callable[[EngineStatus], None]
"""Is told how far a model is that is being loaded."""

logger = logging.getLogger("agent_server")
TERMINAL_STATES = frozenset({"ready", "failed", "stopped"})
POLL_SECONDS = 0.1
_ALWAYS_THERE: AbstractAsyncContextManager[None] = contextlib.nullcontext()


class ChatModel:
    """One model. `prompts` raises EngineError("unavailable") until it is ready. adapter: "", its own weights."""

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
        """Load the tokenizer and template first, which is fast and shows most mistakes, then the weights. Never raises:
        the outcome is `status`."""
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
        """Let go of what is loaded and load the other in its place: whoever holds this model has the other one then.
        Never raises: the outcome is `status`."""
        engine, self._prompts, self._failure = self.engine, None, None
        self.name, self.engine, self.load_prompts = other.name, other.engine, other.load_prompts
        with contextlib.suppress(EngineError):
            await engine.close()
        await self.load()

    @property
    def root(self) -> ChatModel:
        """The model whose name answers go back to; an adapter's is the one that it changes."""
        return self

    @property
    def failure(self) -> EngineError | None:
        """Why it could not be loaded."""
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
        """Kinds of content besides text that the model takes; all kinds while that is not known, when it takes nothing
        at all yet. Documents reach every model, as text."""
        return frozenset({"document", *self.engine.info.placeholders}) if self.ready else frozenset(KINDS)

    @property
    def prompts(self) -> PromptBuilder:
        """The prompt builder. Raises EngineError("unavailable"), which tells the state, while the model is not
        ready."""
        if self._prompts is None or not self.ready:
            status = self.status
            share = "" if status.progress is None else f" ({status.progress:.0%})"
            absence = f"The model {self.name} is {status.state}{share}. {status.message}".strip()
            raise EngineError("unavailable", absence, retryable=True)
        return self._prompts

    def use(self, tell: Tell) -> AbstractAsyncContextManager[None]:
        """Around everything that a turn asks of the model. This one is there from the server's start to its end."""
        return _ALWAYS_THERE

    async def load_adapter(self, name: str, folder: str) -> None:
        """Load a LoRA adapter beside the weights. Raises EngineError."""
        await self._adaptable.load_adapter(name, folder)

    async def remove_adapter(self, name: str) -> None:
        await self._adaptable.remove_adapter(name)

    @property
    def _adaptable(self) -> TakesAdapters:
        if not isinstance(self.engine, TakesAdapters):
            message = (
                f"The adapters of {self.name} cannot be changed here: it is not computed by one engine of this process."
            )
            raise EngineError("invalid_request", message)
        return self.engine

    async def tokenizing(self) -> PromptBuilder:
        """The prompt builder for what needs no weights. Raises EngineError."""
        return self.prompts

    async def states(self) -> AsyncGenerator[EngineStatus, None]:
        """Each new status while the model is loading, up to "ready", "failed" or "stopped"."""
        last: EngineStatus | None = None
        while True:
            status = self.status
            if status != last:
                yield status
            if status.state in TERMINAL_STATES:
                return
            last = status
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        await self.intake.close()
        with contextlib.suppress(EngineError):
            await self.engine.close()
