"""The file of an SQLite database: who may read it, whether it is sound, and whether it is still there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
import stat
import time
from pathlib import Path
from urllib.parse import quote

from sqlalchemy.exc import SQLAlchemyError

from agent_server.runs.store.connections import Connections
from agent_server.runs.store.faults import PASSING, StoreUnavailable, fault_of

log = logging.getLogger("agent_server.store")
GONE = "its file was deleted or replaced while the server was running"
OTHERS = stat.S_IRWXO
CHECK_SECONDS = 5.0
"""How long the start waits for a file to be checked; about a second is needed for 1 GiB that is in memory."""


class DatabaseFile:
    """Conversations are private: the file is made for its owner alone, as is a folder that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._gone = GONE
        self._damage: str | None = None
        self._checking: sqlite3.Connection | None = None
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    def make(self) -> None:
        """Make the file if there is none. One that all users of the machine can read is closed to them."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        found = self._path.stat()
        self._identity = found.st_dev, found.st_ino
        for path in (self._path, *(self._path.with_name(self._path.name + end) for end in ("-wal", "-shm"))):
            with contextlib.suppress(OSError):
                mode = stat.S_IMODE(path.stat().st_mode)
                if mode & OTHERS:
                    path.chmod(mode & ~OTHERS)
                    log.warning("%s could be read by every user of this machine; it is closed to them", path.name)

    def check(self) -> None:
        """StoreUnavailable if the file is damaged, or not the one that was opened: SQLite would go on writing into a
        file that has no name any more, and all of it would be lost."""
        if self._damage is not None:
            raise StoreUnavailable(self._damage)
        if not self._is_there():
            raise StoreUnavailable(self._gone)

    def _is_there(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    @property
    def lost(self) -> bool:
        """Whether the file that was opened has no name any more, and was not saved yet."""
        return self._gone == GONE and not self._is_there()

    async def prove_sound(self) -> None:
        """StoreUnavailable if the file's structure is damaged. What is not read after CHECK_SECONDS is read while the
        server runs; damage that is found then makes `check` refuse."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait((self._reading,), timeout=CHECK_SECONDS)
        if self._reading.done():
            self._reading.result()
        else:
            log.info("%s is large: it is checked for damage while the server runs", self._path.name)
            self._reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _read(self) -> None:
        try:
            found = await asyncio.to_thread(self._quick_check)
        except sqlite3.Error as error:
            if self._closed:
                return
            if (fault := fault_of(error)) not in PASSING:
                self._damage = fault
            raise
        if found != "ok":
            self._damage = f"its file is damaged ({found}); restore a backup of it"
            raise StoreUnavailable(self._damage)

    def _quick_check(self) -> str:
        """Reads the whole file, but for the indexes' order; SQLite lets other threads run meanwhile."""
        place = f"file:{quote(str(self._path))}?mode=rw"
        with contextlib.closing(sqlite3.connect(place, uri=True, check_same_thread=False)) as connection:
            self._checking = connection
            try:
                return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
            finally:
                self._checking = None

    async def close(self) -> None:
        """End a check that goes on."""
        self._closed = True
        if self._checking is not None:
            self._checking.interrupt()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    async def rescue(self, connections: Connections) -> None:
        """Save what is in the file that has no name any more, beside its former place. Connections still hold it."""
        saved = self._path.with_name(f"{self._path.name}.rescued-{int(time.time())}")
        try:
            os.close(os.open(saved, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            await connections.connect(lambda connection: connection.exec_driver_sql("VACUUM INTO ?", (str(saved),)))
        except (OSError, SQLAlchemyError) as error:
            log.error("the deleted database could not be saved: %s", str(error).partition("\n")[0])
            self._gone = f"{GONE}, and could not be saved"
        else:
            self._gone = f"{GONE}; what was in it is saved as {saved}: stop the server and put it back"
