"""Retention: what was not used for longer than its tenant keeps it is removed while the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from agent_server.observability.audit import note
from agent_server.runs.store.faults import StoreUnavailable
from agent_server.runs.store.removal import Extent, Removed
from agent_server.runs.store.rows import now_ms

logger = logging.getLogger("agent_server.store")
DAY_MILLISECONDS = 24 * 3600 * 1000


class Removes(Protocol):
    async def remove(self, extent: Extent) -> Removed:
        """Remove all of an extent, in slices."""


class Retention:
    """days: after which unused threads are removed, of all tenants that are not named; 0 keeps them. tenants: days of
    those that have their own. every: seconds between two sweeps. observe: told of every sweep what it removed, or None
    where the store could not be used."""

    def __init__(
        self,
        store: Removes,
        days: float,
        tenants: Mapping[str, float],
        every: float,
        observe: Callable[[Removed | None], None],
    ) -> None:
        self._store = store
        self._days = days
        self._tenants = dict(tenants)
        self._every = every
        self._observe = observe

    @property
    def wanted(self) -> bool:
        return any((self._days, *self._tenants.values()))

    async def run(self) -> None:
        """Sweep, again and again. A store that cannot be used is tried again with the next sweep."""
        while True:
            try:
                self._observe(await self.sweep())
            except StoreUnavailable as error:
                logger.warning("unused threads could not be removed: %s", error)
                self._observe(None)
            await asyncio.sleep(self._every)

    async def sweep(self) -> Removed:
        """Remove once what is old enough now."""
        now, removed = now_ms(), Removed()
        for extent in self._extents(now):
            removed.add(await self._store.remove(extent))
        for tenant, (threads, responses) in removed.by_tenant().items():
            note("threads.removed", tenant=tenant, threads=threads, responses=responses, reason="retention")
        if removed:
            counts = removed.threads.total(), removed.responses.total()
            logger.info("removed %d threads and %d responses that were kept long enough", *counts)
        return removed

    def _extents(self, now: int) -> list[Extent]:
        found = [
            Extent(tenant=tenant, before=now - round(days * DAY_MILLISECONDS))
            for tenant, days in self._tenants.items()
            if days
        ]
        if self._days:
            found.append(Extent(before=now - round(self._days * DAY_MILLISECONDS), but=tuple(self._tenants)))
        return found
