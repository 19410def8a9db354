"""One run of this gateway as it is shared: what was sent of it, whose turn it is, who reads it elsewhere."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_server.runs.sharing.entries import StreamEntry
from agent_server.runs.sharing.keys import RunPlace

if TYPE_CHECKING:
    from agent_server.runs.run import Run


class Shared:
    """`known`: Redis has it. `entered`: whether it does was settled. `sent`: the last event that Redis has."""

    def __init__(self, run: Run, place: RunPlace, *, resumed: bool = False) -> None:
        """resumed: another gateway had it, and it is not in that one's place yet."""
        self.run = run
        self.place = place
        self.resumed = resumed
        self.known = False
        self.left = False
        self.sent = 0
        self.paused = False
        self.entered = asyncio.Event()
        self.may_begin = asyncio.Event()
        self._held: dict[str, Callable[[], None]] = {}
        self._kept: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0

    @property
    def behind(self) -> bool:
        """Whether there is something to send."""
        return self.known and self.run.log.last > self.sent

    @property
    def over(self) -> bool:
        """It ended, and everything of it was sent."""
        return self.left and self.known and self.run.log.last == self.sent

    def accepted(self, before: int, sent: int) -> None:
        """Redis has it: `before` runs are before it on its thread, `sent` is the last event there."""
        # Entering may be repeated after an answer was lost; then Redis already has some of the events.
        self.known, self.sent = True, min(sent, self.run.log.last)
        self.entered.set()
        if before == 0:
            self.may_begin.set()

    def replaces(self, sent: int) -> None:
        """The stream has `sent` events of the gateway before, which are kept as this one's own would be."""
        if sent:
            self._kept.append((1, self.run.log.bytes))
            self._kept_bytes += self.run.log.bytes

    def alone(self) -> None:
        """It goes on unshared."""
        self.known = False
        self.entered.set()
        self.may_begin.set()

    def oldest(self, entry: StreamEntry, limit: int) -> int:
        """The number of the oldest entry that Redis is to keep with this one, so that they hold `limit` bytes."""
        if not self._kept or self._kept[-1][0] < entry.last:
            self._kept.append((entry.last, len(entry.data)))
            self._kept_bytes += len(entry.data)
        # The newest entry is kept even if it alone is larger, or readers would find nothing.
        while len(self._kept) > 1 and self._kept_bytes > limit:
            self._kept_bytes -= self._kept.popleft()[1]
        return self._kept[0][0]

    def hold(self, gateway: str) -> None:
        """A reader at another gateway counts like one here."""
        if gateway not in self._held and not self.run.finished:
            self._held[gateway] = self.run.hold()

    def release(self, gateway: str) -> None:
        if (held := self._held.pop(gateway, None)) is not None:
            held()
