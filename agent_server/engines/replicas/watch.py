"""A limit on silence that is cheap for every item of every stream: one timer for each stream, set again only when
due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


class SilenceWatch:
    """Waits for the items of a generator, for each at most as long as the limit; then raises TimeoutError.

    Only the time spent waiting counts, not the time until the reader asks for the next item. Each item may be awaited
    by another task.
    """

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit: float | None = limit
        self._began = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def set_limit(self, limit: float | None) -> None:
        """Use another limit, counted from now; None for no limit."""
        self._limit = limit
        self._began = self._loop.time()
        self._arm()

    async def next(self, items: AsyncGenerator[T, None]) -> T:
        """The next item. Raises StopAsyncIteration at the end."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._began = self._loop.time()
        self._waiting = task
        # A timer that is already set is left alone: when it is due, it looks at `_began` and moves itself.
        if self._timer is None:
            self._arm()
        try:
            return await anext(items)
        except asyncio.CancelledError:
            # The timer cancels the task; a cancellation from elsewhere at the same time must not be swallowed.
            if self._expired and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        if self._limit is not None:
            self._timer = self._loop.call_at(self._began + self._limit, self._due)

    def _due(self) -> None:
        """The timer is due: end the wait if it has lasted for the whole limit, else set the timer for the rest of
        it."""
        self._timer = None
        if self._waiting is None or self._limit is None:
            return  # the next wait sets the timer again
        if self._loop.time() >= self._began + self._limit:
            self._expired = True
            self._waiting.cancel()
        else:
            self._arm()
