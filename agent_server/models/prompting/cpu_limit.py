"""A limit of CPU time for work that a client can make arbitrarily long."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator


class CpuTimeout(Exception):
    """The work of a thread has taken the CPU time that it may take."""


class CpuLimit(threading.local):
    """The limit of each thread. The work looks at it at short intervals; without a limit it takes what it takes."""

    _end = float("inf")

    @property
    def reached(self) -> bool:
        return time.thread_time() > self._end

    def check(self, seconds: float = 0.0) -> None:
        """Raise CpuTimeout if not more than `seconds` are left, which the next piece of work takes."""
        if time.thread_time() + seconds > self._end:
            raise CpuTimeout

    @contextlib.contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        """Limit the CPU time of this thread within the block, or for each call of a decorated function."""
        outer = self._end
        self._end = min(outer, time.thread_time() + seconds)
        try:
            yield
        finally:
            self._end = outer


CPU_LIMIT = CpuLimit()
