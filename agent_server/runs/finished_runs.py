"""Runs that ended lately, kept to be replayed: a bound on their number, their bytes and their time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from agent_server.runs.run import Run
from agent_server.settings import RunLimits

LOOK_SECONDS = 1.0


class FinishedRuns:
    """Runs that ended, oldest first. forget: takes each one that is kept no longer, which is found when others are
    kept or asked for, and by a timer: a server without requests would hold its last runs for ever."""

    def __init__(self, limits: RunLimits, forget: Callable[[Run], None]) -> None:
        self._limits = limits
        self._forget = forget
        self._kept: deque[tuple[float, Run]] = deque()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, run: Run) -> None:
        # All are kept equally long, so the oldest stands in front and expiry looks no further.
        self._kept.append((time.monotonic() + self._limits.replay_seconds, run))
        self._bytes += run.size
        if self._timer is None:
            self._set_timer()

    def forget_expired(self) -> None:
        now, limits = time.monotonic(), self._limits
        while self._kept and (
            self._kept[0][0] <= now or self._bytes > limits.replay_bytes or len(self._kept) > limits.replay_runs
        ):
            _, run = self._kept.popleft()
            self._bytes -= run.size
            self._forget(run)

    def _set_timer(self) -> None:
        """Look again when the oldest expires, at intervals at least: one timer serves for all that expire together."""
        self._timer = None
        if self._kept:
            delay = max(self._kept[0][0] - time.monotonic(), min(LOOK_SECONDS, self._limits.replay_seconds))
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)

    def _on_time(self) -> None:
        self.forget_expired()
        self._set_timer()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def drop(self, run: Run) -> None:
        """Let go of a run whose id is used again. Nothing happens for one that is not kept."""
        kept = next((item for item in self._kept if item[1] is run), None)
        if kept is not None:
            self._kept.remove(kept)
            self._bytes -= run.size
