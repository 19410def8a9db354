"""The interfaces of sharing for the run manager, and of a run on any gateway for the routes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from ag_ui.core import RunAgentInput

    from agent_server.runs.log import EventLog
    from agent_server.runs.run import Run
    from events.vocabulary import Event


class EventReader(Protocol):
    """An asynchronous iterator of (sequence, event) that can be closed early. See `ItemReader`."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]: ...

    async def __anext__(self) -> tuple[int, Event]: ...

    def ready(self) -> tuple[int, Event] | None: ...

    def arrival(self) -> asyncio.Future[None] | None: ...

    async def aclose(self) -> None: ...


class AnyRun(Protocol):
    """A run of this or another gateway, read and controlled the same way. See `Run` for the members.

    `log` is the run's own log or, for a run of another gateway, the copy that follows it.
    """

    @property
    def id(self) -> str: ...
    @property
    def thread_id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def input(self) -> RunAgentInput: ...
    @property
    def log(self) -> EventLog: ...
    @property
    def state(self) -> str: ...
    @property
    def paused(self) -> bool: ...
    @property
    def finished(self) -> bool: ...
    @property
    def is_resumed(self) -> bool: ...

    def events(self, after: int = 0) -> EventReader: ...

    def check_position(self, after: int) -> None: ...

    async def wait(self) -> Event: ...

    async def cancel(self) -> bool: ...

    async def pause(self) -> bool: ...

    async def resume(self) -> bool: ...

    async def modify(self, changes: dict[str, object]) -> bool: ...


class Successor(Protocol):
    """Takes over the runs of a dead gateway: the `Resumer` of another gateway."""

    async def resume_dead(self, tenant: str, run_id: str, thread_id: str, owner: int) -> bool:
        """Resume a run of the dead gateway with that owner number in the store; its writes are refused from now on.
        Return False if no server has resumed the run."""

    async def ended_events(self, tenant: str, run_id: str) -> list[Event]:
        """Return all events of a run whose ending is stored, and [] for others."""


class Sharing(Protocol):
    """Registers runs with other gateways and finds theirs. A failure of the sharing itself raises no error: this
    gateway's runs then continue unshared."""

    async def open(self, successor: Successor) -> None:
        """Start. successor: resumes runs of dead gateways; runs that it cannot resume are ended."""

    async def close(self) -> None:
        """Send the last events, end the local readers of other gateways' runs, and deregister. Safe to call twice."""

    async def enter(self, run: Run, earlier: Sequence[Run], queued: int, *, resumed: bool = False) -> None:
        """Register a run and queue it on its thread after `earlier`.

        resumed: the run of a dead gateway, which keeps its place and its stream. Raises RequestError("conflict") if its
        id is in use elsewhere, or more than `queued` runs wait on its thread.
        """

    async def before(self, run: Run) -> list[str]:
        """Return the ids of other gateways' runs that are queued before it on its thread."""

    async def turn(self, run: Run) -> None:
        """Wait until no run of another gateway is queued before it on its thread."""

    def leave(self, run: Run) -> None:
        """Publish a finished run's last events and pass the turn to the next run of its thread."""

    def hand_over(self, run: Run) -> None:
        """Stop publishing a run that continues on another gateway."""

    def forget(self, run: Run) -> None:
        """Delete the events of a finished run that need no longer be replayed."""

    async def find(self, run_id: str, tenant: str, own: Run | None) -> AnyRun | None:
        """Return another gateway's run, or None if there is none or `own` is the latest run with that id.

        Raises RequestError("unavailable") if Redis cannot be reached and there is no `own` run.
        """

    async def elsewhere(self, thread_id: str, tenant: str) -> list[tuple[str, bool]]:
        """Return a thread's queue as far as it is known: (run id, whether another gateway has the run)."""
