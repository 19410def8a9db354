"""Group commit: whatever wants to be written while a transaction is under way shares the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agent_server.runs.store.faults import PASSING, Health, StoreUnavailable, fault_of

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[object]]
BATCH = 256
PATIENCE_SECONDS = 5.0
"""How long a write waits for a database that is locked or out of reach."""
PAUSE_SECONDS = 0.05


async def patiently(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The work's result, tried again for so long while the database is locked or out of reach. StoreUnavailable."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            return await work()
        except Exception as error:
            fault = fault_of(error)
            if fault is None:
                raise
            if fault not in PASSING or loop.time() > until:
                raise StoreUnavailable(fault) from error
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(slots=True, eq=False)
class Wanted:
    """One thing to be written. until: the loop's time at which it is given up while the database is at fault."""

    work: Work
    future: asyncio.Future[Any]
    until: float

    def give(self, result: object) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Writer:
    """One task that writes.

    A batch in which some work fails is taken apart and each part tried on its own, so that no caller fails for
    another's sake; work must therefore be repeatable. A batch that the database itself fails is tried again as a whole
    while that may pass, and each caller is told when its own patience ends.
    check: raises StoreUnavailable where a transaction would be lost.
    """

    def __init__(self, engine: AsyncEngine, health: Health, check: Callable[[], None]) -> None:
        self._engine = engine
        self._health = health
        self._check = check
        self._waiting: asyncio.Queue[Wanted] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def write(self, work: Callable[[AsyncConnection], Awaitable[T]], patience: float = PATIENCE_SECONDS) -> T:
        """What `work` returned, once it is committed. Not undone when the caller is cancelled. patience: seconds to
        wait for a database that is locked or out of reach. StoreUnavailable if it cannot be used."""
        if self._task is None or self._task.done():
            raise RuntimeError("the store is not open")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._waiting.put_nowait(Wanted(work, future, loop.time() + patience))
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
        batch: list[Wanted] = []
        while True:
            if not batch:
                batch.append(await self._waiting.get())
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            left: list[Wanted] = []
            try:
                left = await self._write(batch)
            finally:
                for _ in range(len(batch) - len(left)):
                    self._waiting.task_done()
            if left:
                await asyncio.sleep(PAUSE_SECONDS)
            batch = left

    async def _write(self, batch: list[Wanted]) -> list[Wanted]:
        """Write a batch; those of it that are to be tried again."""
        error = await self._together(batch)
        if error is None:
            return []
        fault = fault_of(error)
        if fault is None:
            for each in batch:
                await self._alone(each)
            return []
        self._health.failed(fault)
        now = asyncio.get_running_loop().time()
        left = [each for each in batch if fault in PASSING and each.until > now]
        for each in batch:
            if each not in left:
                each.fail(StoreUnavailable(fault))
        return left

    async def _together(self, batch: list[Wanted]) -> Exception | None:
        try:
            self._check()
            async with self._engine.begin() as connection:
                results = [await each.work(connection) for each in batch]
        except Exception as error:
            return error
        self._health.worked()
        for each, result in zip(batch, results, strict=True):
            each.give(result)
        return None

    async def _alone(self, each: Wanted) -> None:
        try:
            async with self._engine.begin() as connection:
                result = await each.work(connection)
        except Exception as error:
            fault = fault_of(error)
            each.fail(error if fault is None else StoreUnavailable(fault))
        else:
            each.give(result)
