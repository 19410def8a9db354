"""How many tool calls go on at once: of one run, of one tool, of one tenant.

A call takes its places together or waits for all of them, so that no call holds one place while it waits for another.
Who has waited longest goes first among those that there is room for. The wait counts for no time limit of a tool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable

import msgspec

from agent_server.settings import ToolLimits

Key = tuple[str, ...]


class _Wanted(msgspec.Struct, eq=False):
    keys: dict[Key, int]
    granted: asyncio.Future[None]


class ToolPlaces:
    """The places of one server's tool calls."""

    def __init__(self, limits: ToolLimits) -> None:
        self._limits = limits
        self._taken: Counter[Key] = Counter()
        self._waiting: list[_Wanted] = []

    @property
    def waiting(self) -> int:
        """Calls that wait for a place."""
        return len(self._waiting)

    @contextlib.asynccontextmanager
    async def place(self, *, tenant: str, run: str, tool: str, at_once: int | None = None) -> AsyncIterator[None]:
        """Hold a place for one call. at_once: the tool's own bound."""
        limits = self._limits
        bounds: dict[Key, int] = {
            ("run", tenant, run): limits.per_run,
            ("tool", tool): limits.per_tool if at_once is None else at_once,
            ("tenant", tenant): limits.per_tenant,
        }
        keys = {key: bound for key, bound in bounds.items() if bound}
        await self._take(keys)
        try:
            yield
        finally:
            self._give_back(keys)

    async def _take(self, keys: dict[Key, int]) -> None:
        if self._has_room(keys):  # whoever waits has no room: a place that is given back goes to them at once
            self._taken.update(keys.keys())
            return
        wanted = _Wanted(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(wanted)
        try:
            await wanted.granted
        except asyncio.CancelledError:
            if wanted in self._waiting:
                self._waiting.remove(wanted)
            elif not wanted.granted.cancelled():  # granted in the moment of the cancellation
                self._give_back(keys)
            raise

    def _has_room(self, keys: dict[Key, int]) -> bool:
        return all(self._taken[key] < limit for key, limit in keys.items())

    def _give_back(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]
        left: list[_Wanted] = []
        for wanted in self._waiting:
            if wanted.granted.cancelled():  # and its task has not run since
                continue
            if self._has_room(wanted.keys):
                self._taken.update(wanted.keys.keys())
                wanted.granted.set_result(None)
            else:
                left.append(wanted)
        self._waiting = left
