"""How much each tenant keeps, and whether it may keep more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import Column, Connection, LargeBinary, Table, cast, func, literal, select

from adapters.errors import RequestError
from agent_server.runs.store import schema
from agent_server.runs.store.connections import StoreUnavailable

logger = logging.getLogger("agent_server.store")
T = TypeVar("T")
BODIES: tuple[Table, ...] = (schema.messages, schema.removed_messages, schema.kept_runs, schema.responses)
CACHED_SECONDS = 10.0
SHARE_OF_TIME = 50
"""A sum that takes long is made so many times its duration apart at least."""


class Measured(Protocol):
    async def read(self, work: Callable[[Connection], T]) -> T: ...

    @property
    def removals_made(self) -> int:
        """How often something was removed for good."""


def kept_bytes(connection: Connection, tenant: str) -> int:
    """Bytes of the bodies that a tenant keeps, as UTF-8, and of the files in them, each once."""
    total = literal(0)
    for column in (*(table.c.body for table in BODIES), schema.contents.c.content):
        length = _octets(connection.dialect.name, column)
        one = select(func.coalesce(func.sum(length), 0)).where(column.table.c.tenant == tenant)
        total = total + one.scalar_subquery()  # type: ignore[assignment]
    return int(connection.scalar(select(total)) or 0)


def _octets(dialect: str, column: Column[str] | Column[bytes]) -> object:
    # octet_length is SQLite's from 3.43 on; PostgreSQL would read escapes in a text that is cast to bytes
    return func.length(cast(column, LargeBinary)) if dialect == "sqlite" else func.octet_length(column)


class StorageLimit:
    """most: bytes that one tenant may keep. What is kept is measured once in some seconds, and after a removal."""

    def __init__(self, store: Measured, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._most = most
        self._clock = clock
        self._known: dict[str, tuple[float, int, int]] = {}
        self._lock = asyncio.Lock()

    async def check(self, tenant: str) -> None:
        """RequestError("forbidden") for a tenant that keeps as much as it may. A store that cannot be asked refuses
        nobody: what it cannot take it refuses itself."""
        try:
            kept = await self._kept(tenant)
        except StoreUnavailable as error:
            logger.warning("what a tenant keeps cannot be measured: %s", error)
            return
        if kept >= self._most:
            raise RequestError(
                "forbidden",
                f"{kept} bytes are kept, and {self._most} are allowed. Delete threads or responses to make room.",
            )

    async def _kept(self, tenant: str) -> int:
        if (known := self._fresh(tenant)) is None:
            async with self._lock:  # runs that begin together wait for one sum
                if (known := self._fresh(tenant)) is None:
                    began, removals = self._clock(), self._store.removals_made
                    known = await self._store.read(lambda connection: kept_bytes(connection, tenant))
                    now = self._clock()
                    self._known = {name: each for name, each in self._known.items() if each[0] > now}
                    self._known[tenant] = now + max(CACHED_SECONDS, SHARE_OF_TIME * (now - began)), removals, known
        return known

    def _fresh(self, tenant: str) -> int | None:
        until, removals, kept = self._known.get(tenant, (0.0, -1, 0))
        return kept if removals == self._store.removals_made and self._clock() < until else None
