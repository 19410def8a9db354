"""What the run manager knows of sharing, and what a route knows of a run, wherever it is."""

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
    """An asynchronous iterator of (sequence, event) that can be left."""

    def __aiter__(self) -> AsyncIterator[tuple[int, Event]]: ...

    async def __anext__(self) -> tuple[int, Event]: ...

    def ready(self) -> tuple[int, Event] | None: ...

    def arrival(self) -> asyncio.Future[None] | None: ...

    async def aclose(self) -> None: ...


class AnyRun(Protocol):
    """A run of this gateway or of another: read and steered the same way. See `Run` for what the parts mean.

    `log` is this gateway's copy of the events; of a run elsewhere it follows what its gateway sends.
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
    """What becomes of the runs of a gateway that was found dead: the run manager of another one."""

    async def resume_dead(self, tenant: str, run_id: str, thread_id: str, owner: int) -> bool:
        """Go on with a run that was the store's owner's of that number, which may write nothing of it from here on.
        False if nobody goes on with it."""

    async def ended_events(self, tenant: str, run_id: str) -> list[Event]:
        """All events of a run whose end the store has; none of others."""


class Sharing(Protocol):
    """Where runs are made known to other gateways and theirs are found. None of it raises because it is out of order:
    then this gateway's runs go on alone."""

    async def open(self, successor: Successor) -> None:
        """Begin. successor: goes on with runs of gateways that are found dead. Others are ended."""

    async def close(self) -> None:
        """Send what is left, end what is read here of other gateways, and say goodbye. Safe to call twice."""

    async def enter(self, run: Run, earlier: Sequence[Run], queued: int, *, resumed: bool = False) -> None:
        """Make a run known and queue it on its thread, behind `earlier`. resumed: it is another gateway's that ended,
        and keeps its place and its stream.

        RequestError("conflict") if its id is in use elsewhere, or more than `queued` runs wait on its thread."""

    async def before(self, run: Run) -> list[str]:
        """The ids of other gateways' runs that are before it on its thread."""

    async def turn(self, run: Run) -> None:
        """Wait until no run of another gateway is before it on its thread."""

    def leave(self, run: Run) -> None:
        """It ended. The others get its last events and the thread's turn passes on."""

    def hand_over(self, run: Run) -> None:
        """It goes on at another gateway: nothing more of it is sent from here."""

    def forget(self, run: Run) -> None:
        """It need not be kept to be replayed any more."""

    async def find(self, run_id: str, tenant: str, own: Run | None) -> AnyRun | None:
        """A run of another gateway; None if there is none, or if `own` is the latest of that id.

        RequestError("unavailable") if that cannot be known now."""

    async def elsewhere(self, thread_id: str, tenant: str) -> list[tuple[str, bool]]:
        """A thread's queue as far as it is known: (run id, whether it is another gateway's)."""
