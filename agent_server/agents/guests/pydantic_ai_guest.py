"""A pydantic-ai agent as a guest, through pydantic-ai's own AG-UI adapter."""

from __future__ import annotations

import typing
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from pydantic_ai import DeferredToolRequests
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter

from agent_server.agents.guests.guest import GuestInput, context_in_words
from agent_server.agents.guests.in_process import pydantic_ai_model


class PydanticAiGuest:
    """Serves one agent. It stores nothing: every run gets the whole conversation. An agent without a model uses this
    server's. Dependencies of type `StateDeps[Model]` are created for each run; others are None."""

    kind = "pydantic-ai"
    errors_for_clients = False
    partial_snapshots = False

    def __init__(self, agent: AbstractAgent[object, object]) -> None:
        self._agent = agent
        dependencies = agent.deps_type
        is_state = typing.get_origin(dependencies) is StateDeps
        self._state_model: type[BaseModel] | None = typing.get_args(dependencies)[0] if is_state else None

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        adapter: AGUIAdapter[object, Any] = AGUIAdapter(agent=self._agent, run_input=input.plain(), include_usage=True)
        dependencies: StateDeps[BaseModel] | None = None
        if (model := self._state_model) is not None:  # its fields may have no defaults
            dependencies = StateDeps(model.model_validate(input.state) if input.state else model())
        stream = adapter.run_stream(
            deps=dependencies,
            model=None if self._agent.model is not None else pydantic_ai_model(),
            instructions=context_in_words(input.context or ()),
            output_type=[self._agent.output_type, DeferredToolRequests],
        )
        async for event in stream:
            yield event

    async def close(self) -> None:
        pass
