"""Anything with `run(RunAgentInput) -> AsyncIterator[BaseEvent]`, which is what AG-UI's own bridges have."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from agent_server.agents.guests.guest import GuestInput
from agent_server.pacing import collect_yielding


class PlainGuest:
    """An object's `run` as a guest. An object with `clone()` is cloned for each run, since those that have it keep what
    belongs to a run in themselves."""

    kind = "ag-ui"
    partial_snapshots = False

    def __init__(self, agent: object) -> None:
        self._agent = agent
        self.careful = type(agent).__module__.partition(".")[0] not in BRIDGES

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        clone: Callable[[], object] | None = getattr(self._agent, "clone", None)
        agent: Any = self._agent if clone is None else clone()
        # A copy that may be changed.
        given = input.plain()
        copied = copy.deepcopy(given.model_copy(update={"messages": []}))
        copied.messages = await collect_yielding(copy.deepcopy(message) for message in given.messages)
        events = agent.run(copied)
        if inspect.isawaitable(events):
            events = await events
        async for event in events:
            yield event

    async def close(self) -> None:
        close = getattr(self._agent, "aclose", None)
        if close is not None:
            await close()


BRIDGES = ("ag_ui_langgraph", "ag_ui_adk", "ag_ui_strands", "ag_ui_claude_sdk", "copilotkit")
"""Packages whose RUN_ERROR carries the text of any exception."""
