"""The file of an SQLite database: who may read it, whether it is sound, and whether it is still there."""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_server.store.faults import StoreUnavailable

log = logging.getLogger("agent_server.store")
GONE = "its file was deleted or replaced while the server was running"
OTHERS = stat.S_IRWXO


class DatabaseFile:
    """Conversations are private: the file is made for its owner alone, as is a folder that does not exist yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._gone = GONE

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
        """StoreUnavailable if the file is not the one that was opened: SQLite would go on writing into a file that has
        no name any more, and all of it would be lost."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise StoreUnavailable(self._gone) from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise StoreUnavailable(self._gone)

    @property
    def lost(self) -> bool:
        """Whether the file that was opened has no name any more, and was not saved yet."""
        try:
            self.check()
        except StoreUnavailable:
            return self._gone == GONE
        return False

    async def prove_sound(self, engine: AsyncEngine) -> None:
        """StoreUnavailable if the file's structure is damaged. Reads the whole file, but for the indexes' order."""
        async with engine.connect() as connection:
            found = (await connection.exec_driver_sql("PRAGMA quick_check(1)")).scalar()
        if found != "ok":
            raise StoreUnavailable(f"its file is damaged ({found}); restore a backup of it")

    async def rescue(self, engine: AsyncEngine) -> None:
        """Save what is in the file that has no name any more, beside its former place. Connections still hold it."""
        saved = self._path.with_name(f"{self._path.name}.rescued-{int(time.time())}")
        try:
            os.close(os.open(saved, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            async with engine.connect() as connection:
                await connection.exec_driver_sql("VACUUM INTO ?", (str(saved),))
        except (OSError, SQLAlchemyError) as error:
            log.error("the deleted database could not be saved: %s", str(error).partition("\n")[0])
            self._gone = f"{GONE}, and could not be saved"
        else:
            self._gone = f"{GONE}; what was in it is saved as {saved}: stop the server and put it back"
