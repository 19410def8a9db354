"""Whether a run may begin: quotas of its caller, places for it, ids that can be carried."""

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
    """What quotas say of a run that may begin."""

    @property
    def options(self) -> GenerationOptions: ...

    @property
    def caller(self) -> str: ...

    @property
    def spent(self) -> Callable[[int], None]: ...


class RunQuotas(Protocol):
    """Refuses runs of those who have taken what they may. running: caller → its runs that have not ended."""

    async def admit(self, options: GenerationOptions, running: Callable[[str], int], tenant: str) -> Admission: ...


class Capacity:
    """How many runs go on, in all and of each tenant, and whether there is room for one more."""

    def __init__(self, limits: RunLimits) -> None:
        self._limits = limits
        self._of: dict[str, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self.active = 0
        self.closing = False
        """No more runs may begin."""

    def check_open(self) -> None:
        """RequestError "unavailable" while the server is shutting down."""
        if self.closing:
            raise RequestError("unavailable", "The server is shutting down.", retry_after=RETRY_AFTER)

    def check_room(self, tenant: str) -> None:
        """RequestError "unavailable" (shutting down) or "overloaded"."""
        self.check_open()
        if self.active >= self._limits.runs:
            raise RequestError("overloaded", "Too many runs are going on.", retry_after=RETRY_AFTER)
        if self._of.get(tenant, 0) >= self._allowed():
            raise RequestError("overloaded", "Too many runs of yours are going on.", retry_after=RETRY_AFTER)

    def _allowed(self) -> int:
        """How many runs one tenant may have: its limit, or a share that shrinks as places are taken (the dynamic
        threshold of Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches")."""
        limits = self._limits
        if limits.runs_per_tenant or limits.tenants == 1:
            return limits.runs_per_tenant or limits.runs
        return max(1, SHARE * (limits.runs - self.active))

    def enter(self, tenant: str) -> None:
        self.active += 1
        self._of[tenant] = self._of.get(tenant, 0) + 1
        self._idle.clear()

    def leave(self, tenant: str) -> None:
        self.active -= 1
        self._of[tenant] -= 1
        # Tenants come and go, so one that has no run is not kept.
        if not self._of[tenant]:
            del self._of[tenant]
        if not self.active:
            self._idle.set()

    async def idle(self, seconds: float) -> bool:
        """Wait until no run goes on, for at most so long; whether it came to that."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return self.active == 0
        return True


def check_ids(input: RunAgentInput) -> None:
    """Ids go into keys of databases, headers and logs. RequestError "invalid_request" for one that none could carry."""
    for param, value in (("threadId", input.thread_id), ("runId", input.run_id)):
        if len(value) > ID_LENGTH:
            raise RequestError("invalid_request", f"An id may not be longer than {ID_LENGTH} characters.", param)
        if CONTROLS.search(value):
            raise RequestError("invalid_request", "An id may not contain control characters.", param)
        if value in (".", ".."):
            message = f"An id may not be {value!r}: clients read that as a step in a path, however it is encoded."
            raise RequestError("invalid_request", message, param)
