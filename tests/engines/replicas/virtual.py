"""An event loop whose time is counted, not waited for: a sleep costs nothing, and every run is the same."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


STEP = 1e-6
"""Seconds that one turn of the loop takes at least: time that stood still would never come to a deadline that
rounding has put just ahead of it."""


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: what would have been waited goes onto the clock."""

    clock = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            if timeout is None:
                raise RuntimeError("Nothing is left that could happen: a deadlock.")
            self.clock += max(timeout, STEP)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.clock


def run(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
