"""A model with a LoRA adapter, under a name of its own: the same engine and prompts, other weights for its rows."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from agent_server.engine_protocol.protocol import Engine, EngineStatus
from agent_server.media.intake import Intake
from agent_server.models.model import ChatModel, Tell
from agent_server.models.pool.pooled import PooledModel
from agent_server.settings import OutputSettings

if TYPE_CHECKING:
    from agent_server.models.prompting.prompt import PromptBuilder


class AdaptedModel:
    """name: the adapter's, by which the engine knows it, too."""

    def __init__(self, name: str, root: ChatModel | PooledModel) -> None:
        self.name = self.adapter = name
        self.root = root

    @property
    def output(self) -> OutputSettings:
        return self.root.output

    @property
    def intake(self) -> Intake:
        return self.root.intake

    @property
    def engine(self) -> Engine:
        return self.root.engine

    @property
    def prompts(self) -> PromptBuilder:
        return self.root.prompts

    @property
    def status(self) -> EngineStatus:
        return self.root.status

    @property
    def ready(self) -> bool:
        return self.root.ready

    @property
    def takes(self) -> frozenset[str]:
        return self.root.takes

    def use(self, tell: Tell) -> AbstractAsyncContextManager[None]:
        return self.root.use(tell)

    async def tokenizing(self) -> PromptBuilder:
        return await self.root.tokenizing()

    def states(self) -> AsyncGenerator[EngineStatus, None]:
        return self.root.states()
