"""An event loop of the store's own, in a thread of its own.

A database driver awaits once or more for every statement. On the server's loop each of these would wait for its turn
behind everything that streams; with a thousand runs ending at once that took longer than the runs. Here one operation
costs the server's loop one crossing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines on its own loop. Start it before use; a daemon, so it never holds up the process's end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name=self._name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._loop is not None

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The coroutine's result. RuntimeError if the thread is not running."""
        if self._loop is None:
            raise RuntimeError("the store is not open")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))

    async def stop(self) -> None:
        """End the loop and wait for the thread. Safe to call twice."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        await self.run(lambda: asyncio.sleep(0.01))  # sockets that were closed are so on the loop's next turns
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()
