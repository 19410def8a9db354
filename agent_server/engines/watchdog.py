"""How long the engine's process has owed a word, and when that is too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

CHECKS = 8
"""Looks within the limit, and so the part of it by which a stall may be noticed late."""
SILENT_SHARE = 0.5
"""The part of the limit from which on a process counts as silent: it gets no new work, and may still recover."""
READ_SECONDS = 0.05


class Watchdog:
    """Asks for a word at every look and measures the time since the first question that has had no answer.

    limit: seconds of silence until the process is given up. ask: sends the question. active: False while silence means
    nothing, for instance while a model is loaded. Time in which this process itself stood still is not counted, since
    answers that came meanwhile are not read yet.
    """

    def __init__(
        self,
        limit: float,
        ask: Callable[[], None],
        active: Callable[[], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.limit = limit
        self._ask = ask
        self._active = active
        self._clock = clock
        self._sleep = sleep
        self._asked: float | None = None

    def heard(self) -> None:
        """The process said something, whatever it was."""
        self._asked = None

    @property
    def silence(self) -> float:
        """Seconds since the first question without an answer."""
        return 0.0 if self._asked is None else self._clock() - self._asked

    @property
    def silent(self) -> bool:
        return self.silence >= self.limit * SILENT_SHARE

    async def overdue(self) -> None:
        """Look until nothing has been heard for the limit. A stall is found at most one look after the limit: the look
        that asks comes at most `limit / CHECKS` after the stall, and the last one comes when the limit is reached."""
        while self.silence < self.limit:
            pause = min(self.limit / CHECKS, self.limit - self.silence)
            begun = self._clock()
            await self._sleep(pause)
            late = self._clock() - begun - pause
            if late > pause and self._asked is not None:
                self._asked += late
                await self._sleep(READ_SECONDS)
            if not self._active():
                self._asked = None
            elif self._asked is None:
                self._asked = self._clock()
                self._ask()
