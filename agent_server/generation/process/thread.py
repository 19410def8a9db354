"""The engine in a thread of the server's process: for tests, and where a second process is not wanted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from agent_server.generation.scheduling.messages import Command, Report, StopWorker

STOP_SECONDS = 30.0


class ThreadLink:
    """The same contract as ProcessLink's. `work` is the worker's function."""

    def __init__(self, report: Callable[[Report], None], work: Callable[..., None]) -> None:
        self._report = report
        self._work = work
        self._inbox: SimpleQueue[object] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def open(self, config: object) -> None:
        loop = asyncio.get_running_loop()

        def send(report: Report) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._report, report)

        self._thread = threading.Thread(target=self._work, args=(config, self._inbox, send), name="engine", daemon=True)
        self._thread.start()

    def send(self, command: Command) -> None:
        self._inbox.put(command)

    async def close(self) -> None:
        if self._thread is not None:
            self.send(StopWorker())
            await asyncio.to_thread(self._thread.join, STOP_SECONDS)
