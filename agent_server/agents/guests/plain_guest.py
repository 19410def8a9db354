"""Any object with `run(RunAgentInput) -> AsyncIterator[BaseEvent]`, the interface of AG-UI's own bridges."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_server.agents.guests.guest import GuestInput
from agent_server.pacing import collect_yielding


class PlainGuest:
    """An object's `run` as a guest. An object with `clone()` is cloned for each run, since such objects store a run's
    state in themselves."""

    kind = "ag-ui"
    partial_snapshots = False

    def __init__(self, agent: object) -> None:
        self._agent = agent
        self.errors_for_clients = type(agent).__module__.partition(".")[0] not in BRIDGES

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        clone: Callable[[], object] | None = getattr(self._agent, "clone", None)
        agent: Any = self._agent if clone is None else clone()
        # A copy, which the guest may modify.
        plain = input.plain()
        own_input = copy.deepcopy(plain.model_copy(update={"messages": []}))
        own_input.messages = await collect_yielding(copy.deepcopy(message) for message in plain.messages)
        events = agent.run(own_input)
        if inspect.isawaitable(events):
            events = await events
        async for event in events:
            yield event

    async def close(self) -> None:
        close = getattr(self._agent, "aclose", None)
        if close is not None:
            await close()


BRIDGES = ("ag_ui_langgraph", "ag_ui_adk", "ag_ui_strands", "ag_ui_claude_sdk", "copilotkit")
"""Packages whose RUN_ERROR contains the text of any exception."""
