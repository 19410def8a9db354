"""A database that cannot be used: what its errors mean, what callers are told, and whether it works again."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterator

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from adapters.errors import RequestError

log = logging.getLogger("agent_server.store")
RETRY_AFTER = 2.0
LOCKED = "another process holds its lock"
UNREACHABLE = "it cannot be reached"
PASSING = frozenset({LOCKED, UNREACHABLE})
"""Faults that may be over in a moment, so that a write is tried again for a while."""
_SQLITE = {
    sqlite3.SQLITE_BUSY: LOCKED,
    sqlite3.SQLITE_LOCKED: LOCKED,
    sqlite3.SQLITE_FULL: "its disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing its file failed",
    sqlite3.SQLITE_READONLY: "it may not be written to",
    sqlite3.SQLITE_CANTOPEN: "its file cannot be opened",
    sqlite3.SQLITE_CORRUPT: "its file is damaged",
    sqlite3.SQLITE_NOTADB: "its file is no database",
}
_POSTGRES = {
    "08": UNREACHABLE,  # connection exceptions
    "25006": "it may not be written to",
    "53100": "its disk is full",
    "53": "it has no more resources",
    "57": UNREACHABLE,  # shutting down, or starting
    "58": "reading or writing its files failed",
}
"""By SQLSTATE or its class (PostgreSQL, appendix A)."""


NO_TEXT = "22021"
"""character_not_in_repertoire: PostgreSQL's text holds no NUL, and SQLite's does."""


@contextlib.contextmanager
def refusing_nul() -> Iterator[None]:
    """RequestError "invalid_request" for an id or a name with a NUL, wherever a client wrote it."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != NO_TEXT:
            raise
        raise RequestError("invalid_request", "An id or a name may not contain NUL.") from None


class StoreUnavailable(RequestError):
    """The database cannot be used now; the request may be sent again."""

    def __init__(self, fault: str) -> None:
        super().__init__("unavailable", f"The database of conversations cannot be used: {fault}.", None, RETRY_AFTER)
        self.fault = fault


class Superseded(RequestError):
    """Another server has resumed the run, or its thread goes on without it: what its former owner writes is refused."""

    def __init__(self) -> None:
        super().__init__("conflict", "Another server goes on with this run.", None, RETRY_AFTER)


def fault_of(error: BaseException) -> str | None:
    """What an error says about the database; None if it is not the database that is at fault."""
    if isinstance(error, StoreUnavailable):
        return error.fault
    if isinstance(error, PoolTimeout):
        return LOCKED
    if isinstance(error, DBAPIError):
        return _of_driver(error.orig) or (UNREACHABLE if error.connection_invalidated else None)
    return UNREACHABLE if isinstance(error, OSError | TimeoutError) else _of_driver(error)


def _of_driver(error: BaseException | None) -> str | None:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return _SQLITE.get(code & 0xFF)
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _POSTGRES.get(state) or _POSTGRES.get(state[:2])
    return UNREACHABLE if isinstance(error, OSError) else None


class Health:
    """Whether the database works, as the last attempts told. One line in the log for each change, not for each
    attempt."""

    def __init__(self) -> None:
        self.fault: str | None = None

    def failed(self, fault: str) -> None:
        if fault != self.fault:
            log.error("the database of conversations cannot be used: %s", fault)
        self.fault = fault

    def worked(self) -> None:
        if self.fault is not None:
            log.warning("the database of conversations can be used again")
        self.fault = None
