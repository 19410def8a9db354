"""Admission of runs: quotas, limits on concurrent runs, checks of client-chosen ids, and the queue of a thread."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.settings import RunLimits
from events.options import GenerationOptions

if TYPE_CHECKING:
    from agent_server.runs.run import Run
    from agent_server.runs.sharing.interfaces import Sharing

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


class QueuedTurn:
    """A run's turn on its thread: after the earlier runs of this gateway, then after those of other gateways.

    queue: this gateway's unfinished runs of the thread. It may change while the run waits: a run that is resumed for a
    dead gateway takes its former position.
    """

    def __init__(self, run: Run, queue: Sequence[Run], sharing: Sharing | None) -> None:
        self._run = run
        self._queue = queue
        self._sharing = sharing

    def _earlier(self) -> list[Run]:
        return [run for run in takewhile(lambda run: run is not self._run, self._queue) if not run.finished]

    async def before(self) -> list[str]:
        here = [run.id for run in self._earlier()]
        return here if self._sharing is None else [*await self._sharing.before(self._run), *here]

    async def come(self) -> None:
        while True:
            while earlier := self._earlier():
                await earlier[0].done.wait()
            if self._sharing is not None:
                await self._sharing.turn(self._run)
            if not self._earlier():
                return
