"""The database under the store: opened, watched, written and read.

Everything is done on a loop of its own, in a thread of its own. On the server's loop each statement would wait for its
turn behind everything that streams; with a thousand runs ending at once that took longer than the runs. Here one
operation costs the server's loop one crossing.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Executable

from agent_server.runs.store import removal, schema
from agent_server.runs.store.connections import (
    PASSING,
    Connections,
    DatabaseFile,
    Health,
    StoreUnavailable,
    fault_of,
    is_memory,
    refusing_nul,
    with_driver,
)
from agent_server.runs.store.migrate import migrate
from agent_server.runs.store.owners import AdvisoryOwners, Alone, FileOwners, Owners, new_owner
from agent_server.runs.store.rows import FoundRow

T = TypeVar("T")
Work = Callable[[Connection], object]
OPEN_SECONDS = 20.0
WATCH_SECONDS = 2.0
PROBE_BYTES = 256 * 1024
INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` with which a file can give pages back."""
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

    def __init__(self, connections: Connections, health: Health, check: Callable[[], None]) -> None:
        self._connections = connections
        self._health = health
        self._check = check
        self._waiting: asyncio.Queue[Wanted] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store writer")

    async def write(self, work: Callable[[Connection], T], patience: float = PATIENCE_SECONDS) -> T:
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
            results = await self._connections.begin(lambda connection: [each.work(connection) for each in batch])
        except Exception as error:
            return error
        self._health.worked()
        for each, result in zip(batch, results, strict=True):
            each.give(result)
        return None

    async def _alone(self, each: Wanted) -> None:
        try:
            result = await self._connections.begin(each.work)
        except Exception as error:
            fault = fault_of(error)
            each.fail(error if fault is None else StoreUnavailable(fault))
        else:
            each.give(result)


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


class Database:
    """One database. `write` and `read` each do one piece of work in a transaction of its own, on the store's thread.

    url: as the store's. owner: what this server's runs are marked with there.
    """

    def __init__(self, url: str) -> None:
        self._url = with_driver(url)
        self._memory = is_memory(self._url)
        self.owner = new_owner()
        self._connections = Connections(self._url)
        self._owners = make_owners(self._connections)
        self._file = None if self._memory else make_file(self._url)
        self._health = Health()
        self._writer = Writer(self._connections, self._health, self._check)
        self._watching: asyncio.Task[None] | None = None
        self._thread = LoopThread("store")

    @property
    def place(self) -> str:
        """Its URL, for people: without the password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def durable(self) -> bool:
        """Whether it outlives the process."""
        return not self._memory

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now; None if nothing is known to be wrong with it."""
        return self._health.fault

    async def open(self) -> None:
        """Make or migrate the database, and say that this owner lives. StoreUnavailable if it cannot be used."""
        self._thread.start()
        await self._thread.run(self._open)

    async def _open(self) -> None:
        if self._memory:
            await self._connections.begin(schema.metadata.create_all)
        else:
            if self._file is not None:
                await asyncio.to_thread(self._file.make)
            await patiently(self._prepare, OPEN_SECONDS)
        await self._owners.claim(self.owner)
        self._writer.start()
        if not self._memory:
            self._watching = asyncio.create_task(self._watch(), name="store watch")

    async def _prepare(self) -> None:
        if self._file is not None:
            await self._file.prove_sound()
        await migrate(self._connections)

    async def _watch(self) -> None:
        """Notice what is wrong while nothing is asked of the database, and that it works again."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                self._check()
                if self.fault is not None:
                    await self._writer.write(probe, 0.0)
                elif self._file is None:
                    await self._reading(_look)
            except Exception as error:
                self._health.failed(fault_of(error) or str(error))
                if self._file is not None and self._file.lost:
                    await self._file.rescue(self._connections)

    def _check(self) -> None:
        """StoreUnavailable where what is written would be lost."""
        if self._file is not None:
            self._file.check()

    async def close(self) -> None:
        """Write what is waiting and let go of the database. Safe to call twice."""
        if self._thread.running:
            await self._thread.run(self._close)
            await self._thread.stop()

    async def _close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._writer.stop()
        if self._file is not None:
            await self._file.close()
        await self._owners.release()
        await self._connections.dispose()

    async def write(self, work: Callable[[Connection], T], patience: float = PATIENCE_SECONDS) -> T:
        """What `work` returned, once it is committed; see `Writer.write`."""
        with refusing_nul():
            return await self._thread.run(lambda: self._writer.write(work, patience))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """In memory there is one connection alone, so reading waits its turn behind the writer."""
        if self._memory:
            return await self.write(work)
        with refusing_nul():
            return await self._thread.run(lambda: patiently(lambda: self._reading(work), PATIENCE_SECONDS))

    async def _reading(self, work: Callable[[Connection], T]) -> T:
        self._check()
        return await self._connections.snapshot(work)

    async def forget_removed(self) -> None:
        """Give SQLite's free pages back to the disk, in short transactions. Then write what its log still has into the
        file and empty the log: it holds pages as they were before something was removed from them. A reader may keep
        it; the next time empties it then."""
        if self._file is not None:
            await give_back(self.write)
            await self._thread.run(lambda: self._connections.connect(empty_log))

    async def rows(self, query: Executable) -> Sequence[FoundRow]:
        """All rows that a query finds."""

        return await self.read(lambda connection: connection.execute(query).all())

    async def lives(self, owner: int) -> bool:
        """Whether the server whose runs have that mark still runs."""
        return await self._thread.run(lambda: self._owners.alive(owner))


def probe(connection: Connection) -> None:
    """A write that leaves nothing behind. It is as large as a long message: a database that has room for a changed row
    alone still refuses what it is there for."""
    row = {"tenant": "", "id": f"probe-{secrets.token_hex(8)}", "body": "x" * PROBE_BYTES, "created_at": 0}
    connection.execute(schema.responses.insert().values(row))
    connection.execute(schema.responses.delete().where(schema.responses.c.id == row["id"]))


async def give_back(write: removal.Writes) -> None:
    """Give the free pages of an SQLite file back to the disk, in short transactions."""
    left = True
    while left:
        left = await write(shrink)
        await asyncio.sleep(removal.PAUSE_SECONDS)


def shrink(connection: Connection) -> bool:
    """Give some free pages of an SQLite file back; False if there are none, or if the file was made without that."""
    if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != INCREMENTAL:
        return False
    end = time.perf_counter() + removal.SLICE_SECONDS
    connection.exec_driver_sql("SAVEPOINT shrinking")
    while (free := connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()) > 0:
        if time.perf_counter() > end:
            break
        # one page at a time: Python's driver takes one step of a statement that has no columns, whatever its number
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    connection.exec_driver_sql("RELEASE shrinking")
    return bool(free)


def empty_log(connection: Connection) -> None:
    """Write what SQLite's log has into the file, and make the log empty."""
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def _look(connection: Connection) -> None:
    connection.exec_driver_sql("SELECT 1")


def make_file(url: URL) -> DatabaseFile | None:
    """The file of an SQLite database, not made yet; None for databases elsewhere."""
    return DatabaseFile(Path(str(url.database))) if url.get_backend_name() == "sqlite" else None


def make_owners(connections: Connections) -> Owners:
    if connections.asyncpg is not None:
        return AdvisoryOwners(connections.asyncpg)
    return Alone() if is_memory(connections.url) else FileOwners(Path(str(connections.url.database)))
