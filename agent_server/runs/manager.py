"""The run manager: starts runs as tasks that outlive a connection, queues them per thread, and bounds everything."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.runs.admission import RETRY_AFTER, Admission, Capacity, QueuedTurn, RunQuotas, check_ids
from agent_server.runs.controls import EarlyStops
from agent_server.runs.driver import Driver, Orphan, Screen, StoreWrite
from agent_server.runs.execution import Runnable
from agent_server.runs.journal import JournalWriter
from agent_server.runs.resumption import Resumer
from agent_server.runs.run import INSIST_SECONDS, FinishedRuns, Observer, Run, no_such_run
from agent_server.runs.store import Conclusion, Store, Superseded
from agent_server.settings import RunLimits
from agent_server.user import current_user
from events.options import GenerationOptions
from events.vocabulary import RunError, RunFinished

if TYPE_CHECKING:
    from agent_server.runs.sharing.interfaces import AnyRun, Sharing

log = logging.getLogger("agent_server.runs")
SETTLE_SECONDS = 1.0
MOST_UNSETTLED = 1000


class RunManager:
    """Starts, finds and ends runs.

    agents: by name; wires without agents use "default". new_id: makes a fresh id from a prefix. observe: called once
    with every run that has ended. quotas: consulted before every run. screen: checks a run's input before any of it is
    stored. may_store: called before every run that stores something; raises RequestError for a tenant that stores too
    much. sharing: shares runs with other gateways; None if there are none.
    """

    def __init__(
        self,
        agents: Mapping[str, Runnable],
        *,
        store: Store | None = None,
        limits: RunLimits | None = None,
        new_id: Callable[[str], str],
        observe: Observer | None = None,
        sharing: Sharing | None = None,
        quotas: RunQuotas | None = None,
        screen: Screen | None = None,
        may_store: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.agents = agents
        self.store = store
        self.limits = limits or RunLimits()
        self.new_id = new_id
        self.sharing = sharing
        self._observe = observe
        self._quotas = quotas
        self._screen = screen
        self._may_store = may_store
        self._runs: dict[tuple[str, str], Run] = {}
        self._threads: dict[tuple[str, str], deque[Run]] = {}
        self._finished = FinishedRuns(self.limits, self._forget)
        self._capacity = Capacity(self.limits)
        self._early_stops = EarlyStops()
        self.when_ready: Callable[[], Awaitable[None]] | None = None
        """Waits until the model can answer. Only resumed runs wait for it; new ones fail instead."""
        self._writer: JournalWriter | None = None
        if store is not None and store.durable and self.limits.take_up:
            self._writer = JournalWriter(store, self.limits.save_every, self.limits.replay_seconds)
        self.resumer = Resumer(self, self._runs, self._capacity, self._finished)
        self._unsettled: deque[Conclusion] = deque(maxlen=MOST_UNSETTLED)
        self._settling: asyncio.Task[None] | None = None

    @property
    def active(self) -> int:
        """The number of runs that have not ended, including those that wait for their turn."""
        return self._capacity.active

    async def resume_orphans(self) -> None:
        """Resume the runs of servers that ended. See `Resumer`."""
        await self.resumer.resume_orphans()

    async def open(self) -> None:
        """Start sharing runs with other gateways, if there are any."""
        if self.sharing is not None:
            await self.sharing.open(self.resumer)

    async def start(
        self,
        input: RunAgentInput,
        options: GenerationOptions,
        *,
        agent: str = "default",
        tenant: str = "",
        grace: float | None = None,
        whole: bool = False,
        warnings: Sequence[str] = (),
        on_accept: StoreWrite | None = None,
    ) -> Run:
        """Begin a run and return at once; its outcome is in its events.

        grace: seconds that the run outlives its last reader; None means the server's setting, `float("inf")` for
        ever. whole: the messages are the whole conversation, whatever the thread has stored. warnings: the wire's
        warnings about the request, for RUN_FINISHED's metadata. on_accept: written to the store in the transaction that
        accepts the run; if that fails, no run begins and the store's error is raised.
        Raises RequestError: "not_found" (no such agent), "invalid_request" (an id that cannot be stored, sent in a
        header or logged), "overloaded", "unavailable" (shutting down), "conflict" (the run id is in use, or the thread
        is busy and queueing is off or full).
        """
        self._finished.forget_expired()
        grace = self.limits.grace if grace is None else grace
        admission = None
        if self._quotas is not None:

            def running(caller: str) -> int:
                return sum(run.caller == caller for queue in self._threads.values() for run in queue)

            admission = await self._quotas.admit(options, running, tenant)
            options = admission.options
        if self._may_store is not None and self.store is not None and options.store:
            await self._may_store(tenant)
        if options.store:
            await self.resumer.resume_thread(input.thread_id, tenant)
            if (resumed := await self.resumer.find_resumed(input, agent, tenant)) is not None:
                return await self.resumer.join(resumed, input, agent, tenant, grace)
        # Quotas may wait for Redis, so room is checked after them, with no await between this and `_enter`.
        runnable = self.admit(input, agent, tenant)
        run = Run(
            input=input,
            options=options,
            agent=agent,
            tenant=tenant,
            grace=None if grace == float("inf") else grace,
            limits=self.limits.log,
            whole=whole,
            caller="" if admission is None else admission.caller,
            user=current_user.get(),
        )
        await self.begin(run, runnable, admission=admission, warnings=warnings, on_accept=on_accept)
        return run

    async def begin(
        self,
        run: Run,
        runnable: Runnable,
        *,
        admission: Admission | None = None,
        warnings: Sequence[str] = (),
        orphan: Orphan | None = None,
        on_accept: StoreWrite | None = None,
    ) -> None:
        """Register an admitted run with its thread and the other gateways, accept it in the store, and start its task.

        If one of these fails, the run is removed again and the error is raised: RequestError("conflict") if other
        gateways refuse it.
        """
        behind: set[str] = set()  # runs that already wait, on any gateway, behind one that is resumed
        if orphan is not None:
            ids = [run_id for run_id, _ in await self._queue(run.thread_id, run.tenant)]
            behind = set(ids[ids.index(run.id) + 1 :]) if run.id in ids else set()
        # With no await since the check for room: two runs must not both take the last free place.
        queue, earlier = self._enter(run, behind)
        store, screen = self.store if run.options.store else None, self._screen
        # A run that ends with its reader is not resumed, so it needs no journal.
        writer = None if run.ends_with_reader else self._writer
        driver = Driver(
            run, runnable, store, self.new_id, self.limits.run_seconds, orphan, screen, writer, self._settle
        )
        driver.when_ready = self.when_ready
        if store is not None:
            run.owner = store.owner
            if orphan is None:
                driver.joins = self.resumer.follower
        for warning in warnings:
            driver.recorder.warn(warning)
        try:
            if self.sharing is not None:
                await self.sharing.enter(run, earlier, self.limits.queued_per_thread, resumed=orphan is not None)
                self._capacity.check_open()
            if self.store is not None and on_accept is not None:
                await driver.accept(self.store, on_accept)
        except BaseException:
            # Also after a cancellation: a run that was registered and never removed would block its thread for ever.
            driver.abandoned()
            self._withdraw(run)
            # Another run may have registered under the same id while this one waited.
            if self._runs.get(run.key) is run:
                del self._runs[run.key]
            if self.sharing is not None:
                self.sharing.leave(run)
            raise
        run.task = asyncio.create_task(driver.drive(QueuedTurn(run, queue, self.sharing)), name=f"run {run.id}")
        run.task.add_done_callback(lambda _: self._leave(run, driver, admission))
        run.await_reader()
        # The stop arrived first, on another connection. The run still starts, so that its stream ends like any other.
        if self._early_stops.take(*run.key):
            run.stop("cancelled")

    def stop_early(self, run_id: str, tenant: str = "") -> None:
        """Stop a run that has not arrived yet: a stop on one connection may overtake its run on another. If the run
        starts within EARLY_SECONDS, it ends at once. A run that has ended is not affected."""
        if (tenant, run_id) not in self._runs:
            self._early_stops.add(tenant, run_id)

    def get(self, run_id: str, tenant: str = "") -> Run:
        """Return a run of this gateway that is active or ended recently. Raises RequestError("not_found")."""
        self._finished.forget_expired()
        run = self._runs.get((tenant, run_id))
        if run is None:
            raise no_such_run()
        return run

    async def find(self, run_id: str, tenant: str = "") -> AnyRun:
        """Return a run of any gateway that is active or ended recently.

        Raises RequestError: "not_found" if there is none for this tenant, "unavailable" while the other gateways
        cannot be reached.
        """
        self._finished.forget_expired()
        if self.resumer.may_have_orphans and (tenant, run_id) not in self._runs:  # the server has just started
            await self.resume_orphans()
        run = self._runs.get((tenant, run_id))
        # Another gateway may have used the id again since the run here ended.
        if self.sharing is not None and (run is None or run.finished):
            other = await self.sharing.find(run_id, tenant, run)
            if other is not None:
                return other
        return run or await self.resumer.restore(run_id, tenant)

    def on_thread(self, thread_id: str, tenant: str = "") -> list[Run]:
        """Return this gateway's unfinished runs of a thread: the current one, then those that wait."""
        return list(self._threads.get((tenant, thread_id), ()))

    async def going_on(self, thread_id: str, tenant: str = "") -> list[AnyRun]:
        """Return a thread's unfinished runs on all gateways: the current one, then those that wait."""
        active: list[AnyRun] = []
        for run_id, elsewhere in await self._queue(thread_id, tenant):
            run = self._runs.get((tenant, run_id))
            if not elsewhere and run is not None:
                active.append(run)
            elif elsewhere and self.sharing is not None:
                other = await self.sharing.find(run_id, tenant, run)
                active += [] if other is None or other.finished else [other]
        return active + [run for run in self.on_thread(thread_id, tenant) if run not in active]

    async def ids_on_thread(self, thread_id: str, tenant: str = "") -> list[str]:
        """Return the ids of the runs of `going_on`, without fetching them."""
        shared = [run_id for run_id, _ in await self._queue(thread_id, tenant)]
        return list(dict.fromkeys([*shared, *(run.id for run in self.on_thread(thread_id, tenant))]))

    async def _queue(self, thread_id: str, tenant: str) -> list[tuple[str, bool]]:
        return [] if self.sharing is None else await self.sharing.elsewhere(thread_id, tenant)

    def begin_shutdown(self) -> None:
        """Refuse new runs from now on."""
        self._capacity.closing = True

    async def close(self, drain: float = 30.0) -> None:
        """Refuse new runs, give active ones `drain` seconds to end, then end them with RUN_ERROR."""
        self.begin_shutdown()
        if not await self._capacity.idle(drain):
            # Runs that have not ended get RUN_ERROR, so that every stream has an end.
            while self.active:
                # Repeatedly, since a tool or a store may swallow one cancellation.
                for run in self._runs.values():
                    run.stop("shutdown")
                await self._capacity.idle(INSIST_SECONDS)
        await asyncio.gather(*(agent.close() for agent in set(self.agents.values())))
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)
        self._finished.close()
        if self._writer is not None:
            await self._writer.close()
        if self.sharing is not None:
            await self.sharing.close()

    def _settle(self, ending: Conclusion) -> None:
        """Record a run's ending later, when the store works again, after its first attempt failed."""
        self._unsettled.append(ending)
        if self._settling is None or self._settling.done():
            self._settling = asyncio.create_task(self._settle_all(), name="settle runs")

    async def _settle_all(self) -> None:
        store = self.store
        while self._unsettled and store is not None:
            await asyncio.sleep(SETTLE_SECONDS)
            if store.fault is not None:  # the store checks by itself whether it works again
                continue
            ending = self._unsettled[0]
            try:
                await store.settle_run(ending)
            except Superseded:
                pass
            except RequestError:
                continue
            except Exception:
                log.exception("A run's ending could not be recorded later either.")
            if self._unsettled and self._unsettled[0] is ending:
                self._unsettled.popleft()

    def admit(self, input: RunAgentInput, agent: str, tenant: str, *, waits: bool = True) -> Runnable:
        runnable = self.agents.get(agent)
        if runnable is None:
            raise RequestError("not_found", "There is no agent of that name.", "agent")
        self._capacity.check_open()
        check_ids(input)
        existing = self._runs.get((tenant, input.run_id))
        if existing is not None and not existing.finished:
            raise RequestError("conflict", "A run with this id is going on.", "runId")
        waiting = len(self._threads.get((tenant, input.thread_id), ()))
        # The first of the queue is running, so `queued_per_thread` runs may wait behind it.
        if waits and waiting > self.limits.queued_per_thread:
            raise RequestError("conflict", "This thread has a run going on.", "threadId", retry_after=RETRY_AFTER)
        self.check_room(tenant)
        return runnable

    def check_room(self, tenant: str = "") -> None:
        """Raise RequestError if there is no room for another run of this tenant: "unavailable" (shutting down) or
        "overloaded". Routes call it before they read a request's body."""
        self._capacity.check_room(tenant)

    def _enter(self, run: Run, behind: Collection[str] = ()) -> tuple[deque[Run], list[Run]]:
        """Register a run. behind: ids of runs that it goes before. Return its thread's queue, and the runs in it that
        must end before it begins."""
        previous = self._runs.get(run.key)
        # The new run takes over the id of a finished one, which can no longer be replayed.
        if previous is not None:
            self._finished.drop(previous)
        self._runs[run.key] = run
        self._capacity.enter(run.tenant)
        queue = self._threads.setdefault((run.tenant, run.thread_id), deque())
        earlier = list(takewhile(lambda each: each.id not in behind, queue))
        queue.insert(len(earlier), run)
        return queue, earlier

    def _leave(self, run: Run, driver: Driver, admission: Admission | None) -> None:
        driver.abandoned()
        run.task = None  # the run is kept for replay; its task would keep everything that it worked with
        self._withdraw(run)
        if run.log.handover is not None:  # the run continues on another server
            if self._runs.get(run.key) is run:
                del self._runs[run.key]
            if self.sharing is not None:
                self.sharing.hand_over(run)
        else:
            self._finished.keep(run)
            self._finished.forget_expired()
            if self.sharing is not None:
                self.sharing.leave(run)
        if admission is not None:
            usages = run.terminal.usage if isinstance(run.terminal, RunFinished | RunError) else None
            admission.spent(sum((usage.input_tokens or 0) + (usage.output_tokens or 0) for usage in usages or ()))
        if self._observe is not None:
            self._observe(run)

    def forget_thread(self, thread_id: str, tenant: str = "") -> None:
        """Drop the finished runs of a thread, so that they cannot be replayed."""
        for run in [run for run in self._runs.values() if (run.tenant, run.thread_id) == (tenant, thread_id)]:
            if run.finished:
                self._finished.drop(run)
                del self._runs[run.key]
                if self.sharing is not None:
                    self.sharing.forget(run)

    def _withdraw(self, run: Run) -> None:
        """Remove a run from its thread's queue and from the counts."""
        thread = run.tenant, run.thread_id
        queue = self._threads[thread]
        queue.remove(run)
        if not queue:
            del self._threads[thread]
        self._capacity.leave(run.tenant)

    def _forget(self, run: Run) -> None:
        if self._runs.get(run.key) is run:
            del self._runs[run.key]
        if self.sharing is not None:
            self.sharing.forget(run)
