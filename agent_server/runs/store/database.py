"""The store's database: opening, monitoring, writing and reading.

All work happens in a separate thread with its own event loop. On the server's loop each statement would wait behind
everything that streams; with a thousand runs ending at once that took longer than the runs. Here an operation costs
the server's loop one hand-over between threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import URL, Connection, Executable

from agent_server.runs.store import removal, schema
from agent_server.runs.store.connections import (
    TEMPORARY,
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
from agent_server.runs.store.owners import AdvisoryOwners, FileOwners, Owners, SingleProcessOwners, new_owner
from agent_server.runs.store.rows import QueryRow

T = TypeVar("T")
Work = Callable[[Connection], object]
OPEN_SECONDS = 20.0
WATCH_SECONDS = 2.0
PROBE_BYTES = 256 * 1024
INCREMENTAL = 2
"""The value of `PRAGMA auto_vacuum` with which a file can give pages back."""
BATCH = 256
PATIENCE_SECONDS = 5.0
"""How long a write waits for a database that is locked or cannot be reached."""
PAUSE_SECONDS = 0.05


async def patiently(work: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Run `work`, repeating it for `seconds` while the database is locked or cannot be reached. Raises
    StoreUnavailable."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while True:
        try:
            return await work()
        except Exception as error:
            fault = fault_of(error)
            if fault is None:
                raise
            if fault not in TEMPORARY or loop.time() > until:
                raise StoreUnavailable(fault) from error
        await asyncio.sleep(PAUSE_SECONDS)


@dataclass(slots=True, eq=False)
class PendingWrite:
    """A write that waits for the writer. until: the monotonic time after which it fails while the database fails."""

    work: Work
    future: Future[Any]
    until: float

    def resolve(self, result: object) -> None:
        with contextlib.suppress(InvalidStateError):  # its caller was cancelled
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(error)
        del self.future  # the error's traceback refers to the frame that holds this write


class Writer:
    """One task that executes all writes, in batches of one transaction each.

    If some work of a batch fails, each item is repeated in a transaction of its own, so that no caller fails because
    of another; work must therefore be repeatable. If the database itself fails, the batch is retried while the fault
    may be temporary, and each caller gets an error when its own patience ends.
    check: raises StoreUnavailable if a transaction would be lost.
    """

    def __init__(self, connections: Connections, health: Health, check: Callable[[], None]) -> None:
        self._connections = connections
        self._health = health
        self._check = check
        self._waiting: asyncio.Queue[PendingWrite] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store writer")

    def add(self, pending: PendingWrite) -> None:
        if self._task is None or self._task.done():
            pending.fail(RuntimeError("The store is not open."))
        else:
            self._waiting.put_nowait(pending)

    async def stop(self) -> None:
        """Complete the pending writes, then stop."""
        if self._task is None:
            return
        await self._waiting.join()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None

    async def _run(self) -> None:
        batch: list[PendingWrite] = []
        while True:
            if not batch:
                batch.append(await self._waiting.get())
            while len(batch) < BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            retries: list[PendingWrite] = []
            try:
                retries = await self._write(batch)
            finally:
                for _ in range(len(batch) - len(retries)):
                    self._waiting.task_done()
            if retries:
                await asyncio.sleep(PAUSE_SECONDS)
            batch = retries

    async def _write(self, batch: list[PendingWrite]) -> list[PendingWrite]:
        """Write a batch in one transaction. Return the writes that are to be retried."""
        try:
            self._check()
            results = await self._connections.begin(lambda connection: [each.work(connection) for each in batch])
        except Exception as error:
            fault = fault_of(error)
        else:
            self._health.record_success()
            for each, result in zip(batch, results, strict=True):
                each.resolve(result)
            return []
        if fault is None:  # one caller's work failed: each is repeated in a transaction of its own
            for each in batch:
                try:
                    result = await self._connections.begin(each.work)
                except Exception as error:
                    own_fault = fault_of(error)
                    each.fail(error if own_fault is None else StoreUnavailable(own_fault))
                else:
                    each.resolve(result)
            return []
        self._health.record_failure(fault)
        now = time.monotonic()
        retries = [each for each in batch if fault in TEMPORARY and each.until > now]
        for each in batch:
            if each not in retries:
                each.fail(StoreUnavailable(fault))
        return retries


class LoopThread:
    """A daemon thread that runs coroutines on an event loop of its own. Start it before use."""

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
        """Return the coroutine's result. Raises RuntimeError if the thread is not running."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._open_loop()))

    def call(self, function: Callable[[T], object], argument: T) -> None:
        """Call a function in the thread soon. Raises RuntimeError if the thread is not running."""
        self._open_loop().call_soon_threadsafe(function, argument)

    def _open_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError("The store is not open.")
        return self._loop

    async def stop(self) -> None:
        """End the loop and wait for the thread. Safe to call twice."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        await self.run(lambda: asyncio.sleep(0.01))  # the loop finishes closing sockets in its next iterations
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


class Database:
    """One database. `write` and `read` each run `work` in a transaction of its own, on the store's thread.

    url: see `Store`. owner: the number that marks this server's runs in the database.
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
        """The database's URL without the password, for messages."""
        return self._url.render_as_string(hide_password=True)

    @property
    def durable(self) -> bool:
        """Whether the data outlives the process."""
        return not self._memory

    @property
    def fault(self) -> str | None:
        """Why the database cannot be used now, or None if no fault is known."""
        return self._health.fault

    async def open(self) -> None:
        """Create or migrate the database, and take this owner's lock. Raises StoreUnavailable."""
        self._thread.start()
        await self._thread.run(self._open)

    async def _open(self) -> None:
        if self._memory:
            await self._connections.begin(schema.metadata.create_all)
        else:
            if self._file is not None:
                await asyncio.to_thread(self._file.make)

            async def prepare() -> None:
                if self._file is not None:
                    await self._file.prove_sound()
                await migrate(self._connections)

            await patiently(prepare, OPEN_SECONDS)
        await self._owners.claim(self.owner)
        self._writer.start()
        if not self._memory:
            self._watching = asyncio.create_task(self._watch(), name="store watch")

    async def _watch(self) -> None:
        """Detect faults and recoveries while the database is not in use."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                self._check()
                if self.fault is not None:
                    await self.write(probe, 0.0)
                elif self._file is None:
                    await self._reading(lambda connection: connection.exec_driver_sql("SELECT 1"))
            except Exception as error:
                self._health.record_failure(fault_of(error) or str(error))
                if self._file is not None and self._file.lost:
                    await self._file.rescue(self._connections)

    def _check(self) -> None:
        """Raise StoreUnavailable if a write would be lost."""
        if self._file is not None:
            self._file.check()

    async def close(self) -> None:
        """Complete pending writes and close the database. Safe to call twice."""
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
        """Return the result of `work` after its commit. Cancelling the caller does not undo the write.

        patience: seconds to wait for a database that is locked or cannot be reached. Raises StoreUnavailable.
        """
        future: Future[T] = Future()
        # The write is queued without a task of its own in the thread: the runs that stream are saved every 50 ms.
        self._thread.call(self._writer.add, PendingWrite(work, future, time.monotonic() + patience))
        with refusing_nul():
            try:
                return await asyncio.wrap_future(future)
            finally:
                del future  # an error's traceback refers to this frame

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work`, which only reads. A database in memory has only one connection, so its reads are
        queued with the writes."""
        if self._memory:
            return await self.write(work)
        with refusing_nul():
            return await self._thread.run(lambda: patiently(lambda: self._reading(work), PATIENCE_SECONDS))

    async def _reading(self, work: Callable[[Connection], T]) -> T:
        self._check()
        return await self._connections.snapshot(work)

    async def forget_removed(self) -> None:
        """Return SQLite's free pages to the disk, in short transactions, then checkpoint and empty the log.

        The log contains pages from before the removal. If a reader still needs it, the next call empties it.
        """
        if self._file is not None:
            await give_back(self.write)
            await self._thread.run(lambda: self._connections.connect(empty_log))

    async def rows(self, query: Executable) -> Sequence[QueryRow]:
        """Return all rows of a query."""

        return await self.read(lambda connection: connection.execute(query).all())

    async def lives(self, owner: int) -> bool:
        """Return whether the server with that owner number is still running."""
        return await self._thread.run(lambda: self._owners.alive(owner))


def probe(connection: Connection) -> None:
    """Write and delete a row. It is as large as a long message, since a database with room for only a small change
    would still refuse messages."""
    row = {"tenant": "", "id": f"probe-{secrets.token_hex(8)}", "body": "x" * PROBE_BYTES, "created_at": 0}
    connection.execute(schema.responses.insert().values(row))
    connection.execute(schema.responses.delete().where(schema.responses.c.id == row["id"]))


async def give_back(write: removal.Writes) -> None:
    """Return the free pages of an SQLite file to the disk, in short transactions."""
    has_more = True
    while has_more:
        has_more = await write(shrink)
        await asyncio.sleep(removal.PAUSE_SECONDS)


def shrink(connection: Connection) -> bool:
    """Return some free pages of an SQLite file to the disk. Return False if none are left or the file does not support
    it."""
    if connection.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != INCREMENTAL:
        return False
    end = time.perf_counter() + removal.SLICE_SECONDS
    connection.exec_driver_sql("SAVEPOINT shrinking")
    while (free := connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()) > 0:
        if time.perf_counter() > end:
            break
        # one page at a time: Python's driver executes only one step of a statement without columns
        connection.exec_driver_sql("PRAGMA incremental_vacuum(1)")
    connection.exec_driver_sql("RELEASE shrinking")
    return bool(free)


def empty_log(connection: Connection) -> None:
    """Write SQLite's log into the database file and truncate it."""
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")


def make_file(url: URL) -> DatabaseFile | None:
    """Return the file of an SQLite database, without creating it, or None for another database."""
    return DatabaseFile(Path(str(url.database))) if url.get_backend_name() == "sqlite" else None


def make_owners(connections: Connections) -> Owners:
    if connections.asyncpg is not None:
        return AdvisoryOwners(connections.asyncpg)
    return SingleProcessOwners() if is_memory(connections.url) else FileOwners(Path(str(connections.url.database)))
