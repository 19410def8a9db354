"""Runs that ended lately, kept to be replayed: a bound on their number, their bytes and their time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from agent_server.runs.run import Run
from agent_server.settings import RunLimits


class FinishedRuns:
    """Runs that ended, oldest first."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._kept: deque[tuple[float, Run]] = deque()
        self._bytes = 0

    def keep(self, run: Run) -> None:
        # All are kept equally long, so the oldest stands in front and expiry looks no further.
        self._kept.append((time.monotonic() + self._limits.replay_seconds, run))
        self._bytes += run.size

    def expired(self) -> Iterator[Run]:
        """Those that are kept no longer; they are let go of as they are given."""
        now, limits = time.monotonic(), self._limits
        while self._kept and (
            self._kept[0][0] <= now or self._bytes > limits.replay_bytes or len(self._kept) > limits.replay_runs
        ):
            _, run = self._kept.popleft()
            self._bytes -= run.size
            yield run

    def drop(self, run: Run) -> None:
        """Let go of a run whose id is used again. Nothing happens for one that is not kept."""
        kept = next((item for item in self._kept if item[1] is run), None)
        if kept is not None:
            self._kept.remove(kept)
            self._bytes -= run.size
