"""Resuming runs after a crash: runs of servers that ended, and the clients that repeat their requests for them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import msgspec
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.runs.admission import Capacity, QueuedTurn
from agent_server.runs.broken_streams import closing_events
from agent_server.runs.driver import Driver, Orphan
from agent_server.runs.execution import Ending, Resumes, RunContext, Runnable
from agent_server.runs.journal import SavedPart, SavedRun, pack
from agent_server.runs.run import Run, no_such_run
from agent_server.runs.store import KeptRecord, SavedEvents, Store
from agent_server.user import User
from events.encode import encode
from events.metadata import error_metadata
from events.options import GenerationOptions
from events.vocabulary import CancelledOutcome, Event, RunError, RunFinished, RunStarted, SuccessOutcome

if TYPE_CHECKING:
    from agent_server.runs.run import FinishedRuns
    from agent_server.runs.sharing.interfaces import AnyRun, Sharing
    from agent_server.settings import RunLimits

log = logging.getLogger("agent_server.runs")
MOST_RESUMPTIONS = 3
"""How often a run is resumed without progress. A run that ended this many servers may be what ends them."""
RETRY_SECONDS = 30.0
"""How long after a run's end a client may repeat its request because its server ended before sending the end."""


class Manager(Protocol):
    """The run manager, as far as resuming needs it. See `RunManager`."""

    agents: Mapping[str, Runnable]
    store: Store | None
    limits: RunLimits
    new_id: Callable[[str], str]
    sharing: Sharing | None

    def admit(self, input: RunAgentInput, agent: str, tenant: str, *, waits: bool = True) -> Runnable: ...

    async def begin(self, run: Run, runnable: Runnable, *, orphan: Orphan | None = None) -> None: ...

    async def find(self, run_id: str, tenant: str = "") -> AnyRun: ...

    async def going_on(self, thread_id: str, tenant: str = "") -> list[AnyRun]: ...


class Resumer:
    """Resumes the runs of servers that ended, from their saved events. It is the `Successor` of dead gateways.

    runs, capacity, finished: the manager's own objects.
    """

    def __init__(
        self, manager: Manager, runs: dict[tuple[str, str], Run], capacity: Capacity, finished: FinishedRuns
    ) -> None:
        self._manager = manager
        self._runs = runs
        self._capacity = capacity
        self._finished = finished
        self._limits = manager.limits
        store = manager.store
        self._store = store
        self._journal_store = store if store is not None and store.durable and self._limits.take_up else None
        """The store, if this server saves the events of its runs there."""
        self._resuming = asyncio.Lock()
        self._started_at = time.monotonic()
        self.may_have_orphans = store is not None and store.durable
        """Whether the store has not been searched yet since this server began."""

    async def resume_orphans(self) -> None:
        """Resume the runs of servers that ended, if enough of them was saved. A run whose agent this server does not
        have is left to another server."""
        if self._store is None:
            return
        async with self._resuming:
            await self._resume_all(self._store, await self._store.find_broken())
            self.may_have_orphans = False

    async def resume_thread(self, thread_id: str, tenant: str) -> None:
        """Resume one thread's orphans before a run begins in it. The only server of a database searches once."""
        store = self._store
        if store is None or not self._limits.take_up:
            return
        if not (self.may_have_orphans or self._manager.sharing is not None):
            return
        if (orphans := await store.orphans(tenant, thread_id)) or self.may_have_orphans:
            async with self._resuming:
                await self._resume_all(store, orphans)

    async def resume_dead(self, tenant: str, run_id: str, thread_id: str, owner: int) -> bool:
        """Resume a run whose gateway was declared dead; see `Successor`."""
        if self._store is None or not self._limits.take_up:
            return False
        async with self._resuming:
            record = await self._store.orphan(tenant, run_id, owner)
            if record is not None:
                await self._resume_all(self._store, [record])
        return await self._store.run_owner(tenant, thread_id, run_id) not in (None, owner)

    async def ended_events(self, tenant: str, run_id: str) -> list[Event]:
        """Return all events of a run whose ending is stored; see `Successor`."""
        record = None if self._store is None else await self._store.ended_run(tenant, run_id)
        try:
            events = SavedRun(record.packed).events if record is not None else []
        except ValueError:
            return []
        return events if events and isinstance(events[-1], RunFinished | RunError) else []

    async def _resume_all(self, store: Store, records: Sequence[KeptRecord]) -> None:
        for record in records:
            agent: object = self._manager.agents.get(record.agent)
            if not self._limits.take_up or not isinstance(agent, Resumes) or self._capacity.closing:
                continue
            existing = self._runs.get((record.tenant, record.run_id))
            if existing is not None and not existing.finished:
                continue
            try:
                await self._resume(store, record, agent)
            except RequestError as error:
                log.warning("A run of a server that ended was not resumed: %s", error.message)
            except Exception:
                log.exception("A run of a server that ended could not be resumed.")

    async def _resume(self, store: Store, record: KeptRecord, agent: Resumes) -> None:
        """Resume one run, unless its time is over or it has already ended several servers. Raises RequestError."""
        if record.attempts >= MOST_RESUMPTIONS or time.time() - record.created_at / 1000 > self._limits.run_seconds:
            await self._give_up(store, record, agent)
            return
        self._capacity.check_open()
        claimed = await store.claim_orphan(record)
        if claimed is None:  # another server was first
            return
        try:
            resumption, saved = agent.resumption(claimed.body), SavedRun(claimed.packed)
        except (msgspec.MsgspecError, ValueError):
            log.warning("A run was saved by another version of this server and cannot be read.")
            await store.give_up(claimed, None)
            return
        log.info("Resuming a run of a server that ended.")
        run = Run(
            input=resumption.input, options=resumption.options, agent=record.agent, tenant=record.tenant, grace=None,
            limits=self._limits.log, whole=resumption.whole, user=User(tenant=record.tenant, name=resumption.user),
        )  # fmt: skip
        run.is_resumed = True
        for event in saved.events:
            run.log.append(event)
        orphan = Orphan(record=claimed, saved=saved, has_begun=resumption.has_begun)
        await self._manager.begin(run, cast("Runnable", agent), orphan=orphan)

    async def _give_up(self, store: Store, record: KeptRecord, agent: Resumes) -> None:
        """End a run that is not resumed, for its readers too. A client that repeats its request starts a new run."""
        ending: SavedEvents | None = None
        saved_record = await store.orphan(record.tenant, record.run_id, record.owner) or record
        with contextlib.suppress(msgspec.MsgspecError, ValueError):  # it was saved by another version of this server
            resumption, events = agent.resumption(saved_record.body), SavedRun(saved_record.packed).events
            last_events = closing_events(enumerate(events, 1), record.thread_id, record.run_id)
            number = len(events) + len(last_events)
            without_request = resumption.input.model_copy(update={"messages": [], "resume": None})
            ending = SavedEvents(
                tenant=record.tenant, thread_id=record.thread_id, run_id=record.run_id, number=number,
                packed=pack(SavedPart(number, -1, [encode(each) for each in last_events])),
                body=agent.ended_checkpoint(without_request, resumption.options),
            )  # fmt: skip
        await store.give_up(record, ending)

    async def find_resumed(
        self, input: RunAgentInput, agent: str, tenant: str, except_run: str | None = None
    ) -> AnyRun | None:
        """Find the resumed run that a client requests again because its server ended: one that still runs, or that
        ended so recently that the client has not read its last event."""
        store = self._journal_store
        if store is None or not (digest := request_digest(input)):
            return None
        for run in await self._manager.going_on(input.thread_id, tenant):
            if run.id != except_run and run.is_resumed and run.agent == agent and request_digest(run.input) == digest:
                return run
        if self._manager.sharing is None and time.monotonic() - self._started_at > 2 * RETRY_SECONDS:
            return None  # no other server can have ended since
        since = int((time.time() - RETRY_SECONDS) * 1000)
        record = await store.last_ended(tenant, input.thread_id, since, except_run or "")
        served: object = self._manager.agents.get(agent)
        if record is None or record.agent != agent or not isinstance(served, Resumes):
            return None
        try:
            if served.resumption(record.body).request_digest != digest:
                return None
            ended = await self._manager.find(record.run_id, tenant)
        except (RequestError, msgspec.MsgspecError, ValueError):
            return None
        return None if ended.log.last_was_read else ended

    async def follower(self, run: Run) -> Runnable | None:
        """Return a follower of an earlier run with the same request, for a run whose turn has come: its client repeated
        the request before the end of the former server was known."""
        followed = await self.find_resumed(run.input, run.agent, run.tenant, except_run=run.id)
        return None if followed is None else Joining(followed)

    async def join(self, resumed: AnyRun, input: RunAgentInput, agent: str, tenant: str, grace: float) -> Run:
        """Join a client that repeats its request to the resumed run. Under the run's own id it is the same run. Under
        another id a new run repeats its events; the answer is stored once, under the resumed run."""
        if resumed.id == input.run_id and isinstance(resumed, Run):
            return resumed
        self._manager.admit(input, agent, tenant, waits=False)
        if self._store is not None:  # so that the client finds it under this id after another restart
            joined = JoinedRun(joins=resumed.id, agent=agent, input=bare_input(input))
            until = int((time.time() + self._limits.run_seconds) * 1000)
            body = msgspec.json.encode(joined).decode()
            await self._store.join_run(tenant, input.thread_id, input.run_id, body, until)
        return self._follow(resumed, input, tenant, grace)

    def _follow(self, resumed: AnyRun, input: RunAgentInput, tenant: str, grace: float) -> Run:
        existing = self._runs.get((tenant, input.run_id))
        if existing is not None and not existing.finished:  # another reader was first
            return existing
        run = Run(
            input=input, options=GenerationOptions(store=False), agent=resumed.agent, tenant=tenant,
            grace=None if grace == float("inf") else grace, limits=self._limits.log,
        )  # fmt: skip
        run.is_resumed = True  # a client may be ahead of this run until it has caught up
        self._runs[run.key] = run
        self._capacity.enter(run.tenant)
        joining = Joining(resumed)
        joining.is_cancelled = lambda: run.stopped_by == "cancelled"
        driver = Driver(run, joining, None, self._manager.new_id, self._limits.run_seconds)

        def leave(_: asyncio.Task[None]) -> None:
            driver.abandoned()
            run.task = None
            self._capacity.leave(run.tenant)
            self._finished.keep(run)

        run.task = asyncio.create_task(driver.drive(QueuedTurn(run, (), None)), name=f"run {run.id}")
        run.task.add_done_callback(leave)
        run.await_reader()
        return run

    async def restore(self, run_id: str, tenant: str) -> Run:
        """Restore a run of a server that has ended: a finished one from its saved events, or one that follows another.

        Raises RequestError: "not_found", or "unavailable" while one gateway hands the run over to another.
        """
        store = self._journal_store
        body = None if store is None else await store.joined_run(tenant, run_id)
        if body is not None:
            joined = msgspec.json.decode(body, type=JoinedRun)
            followed = await self._manager.find(joined.joins, tenant)
            return self._follow(followed, RunAgentInput.model_validate_json(bytes(joined.input)), tenant, float("inf"))
        record = None if store is None else await store.ended_run(tenant, run_id)
        agent: object = None if record is None else self._manager.agents.get(record.agent)
        if record is None or not isinstance(agent, Resumes):
            # Another gateway may have claimed the run in the store and not registered it in Redis yet.
            shared_store = None if self._manager.sharing is None else self._store
            if shared_store is not None and await shared_store.is_unfinished(tenant, run_id):
                raise RequestError("unavailable", "The run is being handed to another server.", retry_after=1.0)
            raise no_such_run()
        try:
            resumption, events = agent.resumption(record.body), SavedRun(record.packed).events
        except (msgspec.MsgspecError, ValueError):
            raise no_such_run() from None
        if not events or not isinstance(events[-1], RunFinished | RunError):
            raise no_such_run()
        run = Run(
            input=resumption.input, options=resumption.options, agent=record.agent, tenant=tenant, grace=None,
            limits=self._limits.log,
        )  # fmt: skip
        for event in events[:-1]:
            run.log.append(event)
        run.finish(events[-1])
        if (tenant, run_id) not in self._runs:
            self._runs[run.key] = run
            self._finished.keep(run)
        return self._runs[run.key]


# ---- clients that repeat a request after their server ended --------------------------------------------------------


def request_digest(input: RunAgentInput) -> str:
    """Hash a run's answers to interrupts or its last message, "" if it has neither. A client that repeats a request
    sends the same, except for the ids of messages."""
    if input.resume:
        request: object = [entry.model_dump(mode="json", by_alias=True) for entry in input.resume]
    elif input.messages:
        request = input.messages[-1].model_dump(mode="json", by_alias=True, exclude={"id"})
    else:
        return ""
    return hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()


def bare_input(input: RunAgentInput) -> msgspec.Raw:
    """Return the input without its content, in wire form: enough to replay a run's events."""
    bare = input.model_copy(
        update={"messages": [], "tools": [], "context": [], "forwarded_props": {}, "state": None, "resume": None}
    )
    return msgspec.Raw(bare.model_dump_json(by_alias=True, exclude_none=True).encode())


class JoinedRun(msgspec.Struct):
    """The stored form of a run that follows another one, so that every server finds it under its id. joins: the id of
    the followed run. input: see `bare_input`."""

    joins: str
    agent: str
    input: msgspec.Raw


class Joining:
    """An agent that repeats the events of another run under this run's id. Cancelling it cancels the other run."""

    def __init__(self, followed: AnyRun) -> None:
        self.name = followed.agent
        self.is_cancelled: Callable[[], bool] = lambda: False
        self._followed = followed

    async def run(self, context: RunContext) -> Ending:
        reader = self._followed.events()
        try:
            async for _, event in reader:
                if isinstance(event, RunError):
                    retryable = bool(error_metadata(event).retryable)
                    raise RequestError(
                        "unavailable" if retryable else "internal", event.message, None, 1.0 if retryable else None
                    )
                if isinstance(event, RunFinished):
                    context.recorder.usage = {each.model or "": each for each in event.usage or ()}
                    was_cancelled = isinstance(event.outcome, CancelledOutcome)
                    reason = "cancelled" if was_cancelled else str((event.metadata or {}).get("finishReason") or "stop")
                    return Ending(outcome=event.outcome or SuccessOutcome(), result=event.result, reason=reason)
                if not isinstance(event, RunStarted):
                    context.recorder.emit(event)
        except asyncio.CancelledError:
            if self.is_cancelled():
                with contextlib.suppress(RequestError):
                    await self._followed.cancel()
            raise
        finally:
            await reader.aclose()
        raise RequestError("unavailable", "The resumed run can no longer be followed.", retry_after=1.0)

    async def close(self) -> None:
        """Nothing to release."""
