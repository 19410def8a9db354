"""How much each tenant stores, and whether it may store more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, LargeBinary, Table, cast, func, literal, select

from adapters.errors import RequestError
from agent_server.runs.store import schema
from agent_server.runs.store.connections import StoreUnavailable

logger = logging.getLogger("agent_server.store")
T = TypeVar("T")
BODIES: tuple[Table, ...] = (schema.messages, schema.removed_messages, schema.kept_runs, schema.responses)
CACHED_SECONDS = 10.0
SHARE_OF_TIME = 50
"""A measurement is cached for at least this many times its duration."""


class MeasuredStore(Protocol):
    async def read(self, work: Callable[[Connection], T]) -> T: ...

    @property
    def removals_made(self) -> int:
        """How often something was permanently removed."""


def byte_length(connection: Connection, column: ColumnElement[Any]) -> ColumnElement[int]:
    """Return the expression for the bytes of a text, in UTF-8, or of binary data."""
    # SQLite has octet_length only from 3.43 on. PostgreSQL would interpret escapes in a text that is cast to bytes.
    is_sqlite = connection.dialect.name == "sqlite"
    length: ColumnElement[int] = func.length(cast(column, LargeBinary)) if is_sqlite else func.octet_length(column)
    return length


def stored_bytes(connection: Connection, tenant: str) -> int:
    """Return the bytes of a tenant's bodies in UTF-8, plus those of the files in them, each counted once."""
    total = literal(0)
    for column in (*(table.c.body for table in BODIES), schema.contents.c.content):
        one = select(func.coalesce(func.sum(byte_length(connection, column)), 0)).where(column.table.c.tenant == tenant)
        total = total + one.scalar_subquery()  # type: ignore[assignment]
    return int(connection.scalar(select(total)) or 0)


class StorageLimit:
    """Refuses runs of tenants that store too much. most: bytes per tenant. The size is cached for some seconds, until
    something is removed."""

    def __init__(self, store: MeasuredStore, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._most = most
        self._clock = clock
        self._cache: dict[str, tuple[float, int, int]] = {}
        self._lock = asyncio.Lock()

    async def check(self, tenant: str) -> None:
        """Raise RequestError("forbidden") for a tenant that has reached its limit.

        If the size cannot be measured, nothing is refused here; a store that cannot write raises its own error.
        """
        try:
            if (size := self._cached_size(tenant)) is None:
                async with self._lock:  # runs that begin together wait for one measurement
                    if (size := self._cached_size(tenant)) is None:
                        started, removals = self._clock(), self._store.removals_made
                        size = await self._store.read(lambda connection: stored_bytes(connection, tenant))
                        now = self._clock()
                        self._cache = {name: each for name, each in self._cache.items() if each[0] > now}
                        self._cache[tenant] = now + max(CACHED_SECONDS, SHARE_OF_TIME * (now - started)), removals, size
        except StoreUnavailable as error:
            logger.warning("The stored size of a tenant cannot be measured: %s", error)
            return
        if size >= self._most:
            raise RequestError(
                "forbidden",
                f"{size} bytes are stored, and {self._most} are allowed. Delete threads or responses to make room.",
            )

    def _cached_size(self, tenant: str) -> int | None:
        until, removals, size = self._cache.get(tenant, (0.0, -1, 0))
        return size if removals == self._store.removals_made and self._clock() < until else None
