"""A limit on silence, cheap enough for every item of every stream: one timer a stream, moved only when it is due."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TypeVar

T = TypeVar("T")


class SilenceWatch:
    """Waits for a generator's items, each at most for the limit that is set; then TimeoutError.

    Only the time spent waiting counts, not what the reader takes. Whoever reads may be another task each time.
    """

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit: float | None = limit
        self._began = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def set_limit(self, limit: float | None) -> None:
        """Another limit, from now on; None is no limit."""
        self._limit = limit
        self._began = self._loop.time()
        self._arm()

    async def next(self, items: AsyncGenerator[T, None]) -> T:
        """The next item. StopAsyncIteration at the end."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._began = self._loop.time()
        self._waiting = task
        if self._timer is None:
            self._arm()
        try:
            return await anext(items)
        except asyncio.CancelledError:
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
            self._timer = self._loop.call_at(self._began + self._limit, self._look)

    def _look(self) -> None:
        """The timer is due: is somebody waiting, and since when?"""
        self._timer = None
        if self._waiting is None or self._limit is None:
            return  # the next wait sets the timer again
        if self._loop.time() >= self._began + self._limit:
            self._expired = True
            self._waiting.cancel()
        else:
            self._arm()
