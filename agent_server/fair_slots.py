"""Slots that tenants get in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Hold:
    """A held slot. rest: seconds to keep the slot unused after it is released, so that other work can run."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = 0.0


class FairSlots:
    """A number of slots that waiting tenants get in turn: a tenant that waits for many delays another by one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def hold(self, tenant: str) -> AsyncIterator[Hold]:
        """Wait for a slot, and hold it."""
        if self._free:
            self._free -= 1
        else:
            slot = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, deque()).append(slot)
            try:
                await slot
            except asyncio.CancelledError:
                if slot.done() and not slot.cancelled():
                    self._release()
                raise
        hold = Hold()
        try:
            yield hold
        finally:
            if hold.rest:
                asyncio.get_running_loop().call_later(hold.rest, self._release)
            else:
                self._release()

    def _release(self) -> None:
        while self._waiting:
            tenant = next(iter(self._waiting))
            queue = self._waiting.pop(tenant)
            slot = queue.popleft()
            if queue:
                self._waiting[tenant] = queue  # behind the other tenants
            if not slot.done():
                slot.set_result(None)
                return
        self._free += 1
