"""The task of one run: wait for the thread's turn, let the agent work, end with exactly one terminal event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

import msgspec
from sqlalchemy import Connection

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.observability.telemetry import note_ids
from agent_server.observability.tracing import current_trace, failed, note, span
from agent_server.pacing import collect_yielding
from agent_server.runs.execution import Ending, OpenThread, Recorder, Resumes, RunContext, Runnable
from agent_server.runs.journal import Journal, JournalWriter, SavedRun
from agent_server.runs.run import Run
from agent_server.runs.store import Conclusion, KeptRecord, SavedEvents, Store, Superseded, ThreadState
from agent_server.user import current_user
from events.message import each_dict
from events.metadata import ErrorMetadata, as_metadata
from events.vocabulary import (
    PROTOCOL_VERSION,
    WAITING_EVENT,
    CancelledOutcome,
    Custom,
    Event,
    RunError,
    RunFinished,
    RunStarted,
)

log = logging.getLogger("agent_server.runs")
GOES_ON = "The server stopped. The run goes on at the next one: read it again under its id."
ELSEWHERE = "The run goes on at another server: read it again under its id."
BEFORE = "The server stopped before the run began."
STOPPED_SECONDS = 1.0
RECORD_SECONDS = 30.0  # how long the store may take to record an ending


class ThreadTurn(Protocol):
    """A run's turn on its thread."""

    async def before(self) -> Sequence[str]:
        """The ids of the runs that must end first, as far as is known."""

    async def come(self) -> None:
        """Wait for it."""


Written = Callable[[Connection], object]
"""A part of a transaction of the store's."""
Screen = Callable[[Run], Awaitable[None]]
"""Reads what a run was sent with. Raises RequestError for what may not go on."""


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a server that ended, which the store has given to this one. begun: see `Resumption`."""

    record: KeptRecord
    saved: SavedRun
    begun: bool


class Driver:
    """Drives one run. Whatever the agent raises becomes one RUN_ERROR whose code is the error's kind. orphan: where
    another server had it. writer: saves it beside its stream, so that another server can go on with it; None for a run
    that ends with its server. unsettled: takes an ending that the store did not take."""

    def __init__(
        self,
        run: Run,
        agent: Runnable,
        store: Store | None,
        new_id: Callable[[str], str],
        run_seconds: float,
        orphan: Orphan | None = None,
        screen: Screen | None = None,
        writer: JournalWriter | None = None,
        unsettled: Callable[[Conclusion], None] = lambda conclusion: None,
    ) -> None:
        self.run = run
        self.agent = agent
        self.journal = Journal(run.log, new_id)
        self.recorder = Recorder(self.journal, run.input.state, run.note_prompt)
        self._store = store
        self._new_id = new_id
        self._saver = agent if writer is not None and store is not None and isinstance(agent, Resumes) else None
        self._body: str | None = None
        self._unsettled = unsettled
        if self._saver is not None and writer is not None:
            self.journal.open(writer, run.tenant, run.thread_id, run.id)
            self.journal.on_lost = partial(run.stop, "superseded")
            if orphan is None:
                self._body = self._saver.checkpoint(run.input, run.options, whole=run.whole, user=run.user.name)
        self._thread: OpenThread | None = None
        self._run_seconds = run_seconds
        self._orphan = orphan
        self.joins: Callable[[Run], Awaitable[Runnable | None]] | None = None
        self.when_ready: Callable[[], Awaitable[None]] | None = None
        self._accepted = False  # its messages are in the store
        self._entered = False  # the store knows of it: its ending must follow
        self._screen = screen
        if orphan is not None:
            self.recorder.restore(orphan.saved.events)
            if not orphan.saved.events:  # readers may have this one, which is shown before it is saved
                self.recorder.begin_certainly(self._started())
            if not orphan.begun:
                self.journal.replayed = orphan.saved.beginning()

    async def accept(self, store: Store, also: Written) -> None:
        """Keep that the run was accepted, before it begins, and `also` with it. Its messages are not kept by it: nobody
        has read them yet. Raises what the store raises; the run must not begin then."""
        self._entered = True
        try:
            await self._enter(store, also=also)
        except asyncio.CancelledError:  # what the store was handed it writes
            await self._record(self._failed("unavailable", BEFORE, retryable=True))
            raise

    async def drive(self, turn: ThreadTurn) -> None:
        """turn: the run's turn on its thread."""
        current_user.set(self.run.user)
        note_ids(run=self.run.id, thread=self.run.thread_id, tenant=self.run.tenant)
        with span(
            "invoke_agent", self.run.agent, agent__name=self.run.agent, conversation__id=self.run.thread_id
        ) as traced:
            if traced.is_recording():  # else the trace is the request's, which was noted with it
                note_ids(trace=current_trace())
            terminal = await self._attempt(turn)
            traced.set_attribute("agent_server.run.id", self.run.id)
            if isinstance(terminal, RunError):
                failed(traced, terminal.code or "internal")
            used = self.recorder.usage.values()
            note(
                traced,
                usage__input_tokens=sum(each.input_tokens or 0 for each in used),
                usage__output_tokens=sum(each.output_tokens or 0 for each in used),
            )
        self.run.state = "ending"  # from here on it cannot be cancelled: its ending is being recorded
        if self._leaves(terminal):
            self.journal.freeze()
            self.run.leave(terminal)
            return
        try:
            terminal = await self._record(terminal)
        except asyncio.CancelledError:
            log.warning("a run's ending was not recorded: the server was stopped")
        except Superseded:
            self.run.leave(self._elsewhere())
            return
        self.journal.release()
        self.recorder.check(terminal)
        self.run.finish(terminal)

    async def _attempt(self, turn: ThreadTurn) -> Event:
        # A run that was stopped before its first step waits a moment for its turn, so that what was said is kept.
        seconds = self._run_seconds if self.run.stopped_by is None else STOPPED_SECONDS
        self.run.state = "queued"
        try:
            async with asyncio.timeout(seconds) as deadline:
                if self._screen is not None:
                    await self._screen(self.run)
                if before := await turn.before():
                    await self._wait_behind(before)
                await turn.come()
                if before and self.joins is not None and (followed := await self.joins(self.run)) is not None:
                    self.run.state = "running"
                    return self._finished(await followed.run(self._context(), self.recorder))
                if self._orphan is not None and self.when_ready is not None:
                    await self.when_ready()
                self.run.state = "running"
                await self._open()
                if self.run.stopped_by is not None:
                    return self._stopped()
                return self._finished(await self.agent.run(self._context(), self.recorder))
        except asyncio.CancelledError:
            return self._stopped()
        except TimeoutError:
            # Either the run was stopped and its short time is over, or its own time is over, or the agent's code let
            # a TimeoutError of its own out.
            if self.run.stopped_by is not None:
                return self._stopped()
            if deadline.expired():
                return self._failed("timeout", f"The run took longer than {self._run_seconds:g} s.", retryable=False)
            return self._crashed()
        except Superseded:
            return self._elsewhere()
        except (EngineError, RequestError) as error:
            return self._failed(error.kind, error.message, param=error.param, retryable=_retryable(error))
        except Exception:
            return self._crashed()

    async def _wait_behind(self, before: Sequence[str]) -> None:
        """Keep what the run was sent with, and say that it waits: its client may be gone before it begins."""
        if self._store is not None:
            self._accepted = self._entered = True  # also where this is cancelled
            await self._enter(self._store, await collect_yielding(each_dict(self.run.input.messages)))
        if self._orphan is None:
            self.recorder.emit(self._started())
        self.recorder.emit(Custom(name=WAITING_EVENT, value={"behind": list(before)}))

    async def _enter(
        self, store: Store, messages: Sequence[dict[str, object]] = (), also: Written | None = None
    ) -> None:
        run = self.run
        await store.accept_run(
            run.tenant,
            run.thread_id,
            run.id,
            agent=run.agent,
            parent_run_id=run.input.parent_run_id,
            messages=messages,
            also=also,
            body=self._body,
        )
        self._body = None

    async def _open(self) -> None:
        run, store = self.run, self._store
        if store is not None:
            try:
                orphan = self._orphan
                found = orphan.record.thread if orphan is not None and orphan.begun else await self._begin(store)
            except asyncio.CancelledError:
                self._entered = True  # what the store was handed it writes
                raise
            self._thread = OpenThread(store, run.tenant, run.thread_id, run.id, found)
        if run.log.empty and not self.journal.count:  # a run that waited has said so before
            self.recorder.begin_certainly(self._started())

    async def _begin(self, store: Store) -> ThreadState:
        run = self.run
        state = await store.begin_run(
            run.tenant,
            run.thread_id,
            run.id,
            agent=run.agent,
            parent_run_id=run.input.parent_run_id,
            messages=await collect_yielding(each_dict(run.input.messages)),
            edits=not self._accepted and not run.input.resume,
            recall=not run.whole,
            body=self._body,
        )
        self._body = None
        return state

    def _context(self) -> RunContext:
        run, orphan = self.run, self._orphan
        return RunContext(
            input=run.input,
            options=run.options,
            tenant=run.tenant,
            controls=run.controls,
            stopped_by=lambda: run.stopped_by,
            new_id=self.journal.new_id if self.journal.is_open else self._new_id,
            thread=self._thread,
            kept=None if orphan is None or not orphan.begun else orphan.record.body,
            saved=None if orphan is None else orphan.saved,
            user=run.user,
        )

    def _started(self) -> Event:
        return RunStarted(
            thread_id=self.run.thread_id,
            run_id=self.run.id,
            protocol_version=PROTOCOL_VERSION,
            parent_run_id=self.run.input.parent_run_id,
        )

    def _finished(self, ending: Ending) -> Event:
        return RunFinished(
            thread_id=self.run.thread_id,
            run_id=self.run.id,
            result=ending.result,
            outcome=ending.outcome,
            usage=list(self.recorder.usage.values()) or None,
            metadata=self.recorder.metadata(ending.reason),
        )

    def _failed(self, kind: str, message: str, *, param: str | None = None, retryable: bool = False) -> Event:
        metadata = as_metadata(ErrorMetadata(retryable=retryable, param=param))
        usage = list(self.recorder.usage.values()) or None
        return RunError(message=message, code=kind, usage=usage, metadata=metadata)

    def _crashed(self) -> Event:
        log.exception("a run failed inside the server")
        return self._failed("internal", "The server failed to complete this run.")

    def _stopped(self) -> Event:
        """The terminal event of a run whose task was cancelled, by the server or by what stops the event loop."""
        # The cancellation is dealt with here: what follows, recording the ending, must be able to await.
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        if self.run.stopped_by in ("cancelled", "disconnected"):
            if self.run.log.empty and not self.journal.count:
                self.recorder.emit(self._started())
            return self._finished(Ending(outcome=CancelledOutcome(), reason="cancelled"))
        if self.journal.state == "lost":
            return self._elsewhere()
        # The store knows of it, and what it has said is there: the next server goes on with it.
        goes_on = self.journal.state == "open" and (self._entered or self._thread is not None)
        message = GOES_ON if goes_on else "The server stopped before the run was complete."
        return self._failed("unavailable", message, retryable=True)

    def _elsewhere(self) -> Event:
        metadata = as_metadata(ErrorMetadata(retryable=True, next_event=self.run.log.last + 1))
        return RunError(message=ELSEWHERE, code="connection", metadata=metadata)

    def _leaves(self, terminal: Event) -> bool:
        """Whether another server goes on with the run, so that nothing of it ends."""
        return isinstance(terminal, RunError) and terminal.message in (GOES_ON, ELSEWHERE)

    def abandoned(self) -> None:
        """End a run whose task was killed from outside before it could say anything."""
        if not self.run.finished:
            self.run.finish(self._failed("unavailable", BEFORE, retryable=True))

    async def _record(self, terminal: Event) -> Event:
        """Close what is open and make the ending durable before anyone is told of it."""
        self.recorder.close_open()
        store = self._store
        if store is None or (self._thread is None and not self._entered):
            return terminal
        ending = await self._conclusion(terminal)
        error: RequestError | None = None
        try:
            async with asyncio.timeout(RECORD_SECONDS):
                await store.end_run(ending)
            return terminal
        except Superseded:
            raise
        except RequestError as refused:  # the store says by itself what is wrong with it, once
            error = refused
        except TimeoutError:
            log.error("the store did not record a run's ending within %g s", RECORD_SECONDS)
        except Exception:
            log.exception("the store failed to record a run's ending")
        terminal = self._unrecorded(terminal, error)
        self._unsettled(await self._conclusion(terminal, ending))
        return terminal

    async def _conclusion(self, terminal: Event, refused: Conclusion | None = None) -> Conclusion:
        """refused: what the store did not take. What its readers are told in its place is saved once it can be."""
        run, recorder = self.run, self.recorder
        if refused is not None:
            saved = refused.saved and self._saved(refused.saved, terminal)
            return msgspec.structs.replace(refused, terminal=terminal, saved=saved, interrupts=())
        saved = await self._seal(terminal)
        return Conclusion(
            tenant=run.tenant,
            thread_id=run.thread_id,
            run_id=run.id,
            terminal=terminal,
            messages=await collect_yielding(recorder.messages()),
            interrupts=recorder.interrupts,
            state=None if self._thread is None else recorder.state,
            saved=saved,
        )

    async def _seal(self, terminal: Event) -> SavedEvents | None:
        if self._saver is None:
            return None
        return await self.journal.seal(terminal, self._saver.ended_checkpoint(self.run.input, self.run.options))

    def _saved(self, refused: SavedEvents, terminal: Event) -> SavedEvents:
        return msgspec.structs.replace(refused, packed=self.journal.resealed(refused.number, terminal))

    def _unrecorded(self, terminal: Event, error: RequestError | None = None) -> Event:
        """A success that was not kept must not look like one that was: interrupts could never be answered."""
        if isinstance(terminal, RunError):
            return terminal
        if error is not None:
            message = f"The run was complete but could not be saved. {error.message}"
            return self._failed(error.kind, message, retryable=_retryable(error))
        return self._failed("internal", "The run was complete but could not be saved.")


def _retryable(error: EngineError | RequestError) -> bool:
    if isinstance(error, EngineError):
        return error.retryable
    return error.kind in ("overloaded", "unavailable", "rate_limited")
