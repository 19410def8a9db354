"""Admission of runs: interfaces of quotas, limits on concurrent runs, and checks of client-chosen ids."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Protocol

from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.settings import RunLimits
from events.options import GenerationOptions

RETRY_AFTER = 1.0
SHARE = 3
ID_LENGTH = 512
CONTROLS = re.compile(r"[\x00-\x1f\x7f]")


class Admission(Protocol):
    """A run that the quotas admit: its options, its caller for counting, and a callback for the tokens it has used."""

    @property
    def options(self) -> GenerationOptions: ...

    @property
    def caller(self) -> str: ...

    @property
    def spent(self) -> Callable[[int], None]: ...


class RunQuotas(Protocol):
    """Refuses runs of callers who have used up their quota. running: counts a caller's runs that have not ended."""

    async def admit(self, options: GenerationOptions, running: Callable[[str], int], tenant: str) -> Admission: ...


class Capacity:
    """Counts unfinished runs, in total and per tenant, and refuses a new one above the limits."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._active_by_tenant: dict[str, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0
        self.closing = False
        """Set during shutdown: no new run may begin."""

    def check_open(self) -> None:
        """Raise RequestError("unavailable") while the server is shutting down."""
        if self.closing:
            raise RequestError("unavailable", "The server is shutting down.", retry_after=RETRY_AFTER)

    def check_room(self, tenant: str) -> None:
        """Raise RequestError: "unavailable" (shutting down) or "overloaded" (no room for this tenant's run)."""
        self.check_open()
        limits = self._limits
        if self.active >= limits.runs:
            raise RequestError(
                "overloaded", "The server has reached its limit of concurrent runs.", retry_after=RETRY_AFTER
            )
        allowed = limits.runs_per_tenant
        if not allowed:
            # One tenant may have SHARE times the free places: the dynamic threshold of Choudhury and Hahne, "Dynamic
            # queue length thresholds for shared-memory packet switches".
            allowed = limits.runs if limits.tenants == 1 else max(1, SHARE * (limits.runs - self.active))
        if self._active_by_tenant.get(tenant, 0) >= allowed:
            raise RequestError("overloaded", "You have reached your limit of concurrent runs.", retry_after=RETRY_AFTER)

    def enter(self, tenant: str) -> None:
        self.active += 1
        self._active_by_tenant[tenant] = self._active_by_tenant.get(tenant, 0) + 1
        self._idle.clear()

    def leave(self, tenant: str) -> None:
        self.active -= 1
        self._active_by_tenant[tenant] -= 1
        # Tenants come and go, so one without runs is removed.
        if not self._active_by_tenant[tenant]:
            del self._active_by_tenant[tenant]
        if not self.active:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Wait at most `seconds` until no run is active. Return whether none is."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return self.active == 0
        return True


def check_ids(input: RunAgentInput) -> None:
    """Raise RequestError("invalid_request") for an id that cannot be used in database keys, headers and logs."""
    for param, value in (("threadId", input.thread_id), ("runId", input.run_id)):
        if len(value) > ID_LENGTH:
            raise RequestError("invalid_request", f"An id may not be longer than {ID_LENGTH} characters.", param)
        if CONTROLS.search(value):
            raise RequestError("invalid_request", "An id may not contain control characters.", param)
        if value in (".", ".."):
            message = (
                f"An id may not be {value!r}: clients resolve that as a path segment, even when it is percent-encoded."
            )
            raise RequestError("invalid_request", message, param)
