"""Group commit: whatever wants to be written while a transaction is under way shares the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[Any]]
BATCH = 256


class Writer:
    """One task that writes. A batch in which something fails is taken apart and each part tried on its own, so that
    nobody fails for another's sake; work must therefore be repeatable."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._waiting: asyncio.Queue[tuple[Work, asyncio.Future[Any]]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]]) -> T:
        """What `work` returned, once it is committed. Not undone when the caller is cancelled."""
        if self._task is None or self._task.done():
            raise RuntimeError("the store is not open")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.put_nowait((work, future))
        return await future

    async def stop(self) -> None:
        """Write what is waiting, then end."""
        if self._task is None:
            return
        await self._waiting.join()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    async def _run(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                if not await self._together(batch):
                    for work, future in batch:
                        await self._alone(work, future)
            finally:
                for _ in batch:
                    self._waiting.task_done()

    async def _together(self, batch: list[tuple[Work, asyncio.Future[Any]]]) -> bool:
        try:
            async with self._engine.begin() as connection:
                results = [await work(connection) for work, _ in batch]
        except Exception:
            return False
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
        return True

    async def _alone(self, work: Work, future: asyncio.Future[Any]) -> None:
        try:
            async with self._engine.begin() as connection:
                result = await work(connection)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(result)
