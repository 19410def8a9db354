"""The task of one run: wait for the thread's turn, run the agent, end with exactly one terminal event."""

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
from agent_server.observability.tracing import current_trace, mark_failed, note, span
from agent_server.pacing import collect_yielding
from agent_server.runs.execution import Ending, OpenThread, Recorder, Resumes, RunContext, Runnable
from agent_server.runs.journal import Journal, JournalWriter, SavedRun
from agent_server.runs.run import Run
from agent_server.runs.store import Conclusion, KeptRecord, Store, Superseded
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
RESUMES_LATER = "The server stopped. The run continues on the next one: read it again under its id."
CONTINUES_ELSEWHERE = "The run continues on another server: read it again under its id."
STOPPED_BEFORE_START = "The server stopped before the run began."
STOPPED_SECONDS = 1.0
RECORD_SECONDS = 30.0  # how long the store may take to record an ending


class ThreadTurn(Protocol):
    """A run's turn on its thread."""

    async def before(self) -> Sequence[str]:
        """Return the ids of the runs that must end first, as far as they are known."""

    async def come(self) -> None:
        """Wait until it is this run's turn."""


StoreWrite = Callable[[Connection], object]
"""A write that is part of a transaction of the store."""
Screen = Callable[[Run], Awaitable[None]]
"""Checks a run's input. Raises RequestError to refuse it."""


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a server that ended, which this server has claimed. has_begun: see `Resumption`."""

    record: KeptRecord
    saved: SavedRun
    has_begun: bool


class Driver:
    """Drives one run. Every error of the agent becomes one RUN_ERROR whose code is the error's kind.

    orphan: set if another server had started the run. writer: saves the run's events, so that another server can
    resume it; None for a run that ends with its server. on_unsettled: called with an ending that the store failed to
    record.
    """

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
        on_unsettled: Callable[[Conclusion], None] = lambda conclusion: None,
    ) -> None:
        self.run = run
        self.agent = agent
        self.journal = Journal(run.log, new_id)
        self.recorder = Recorder(self.journal, run.input.state, run.note_prompt)
        self._store = store
        self._new_id = new_id
        self._saver = agent if writer is not None and store is not None and isinstance(agent, Resumes) else None
        self._body: str | None = None
        self._on_unsettled = on_unsettled
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
        self._accepted = False  # the run's messages are stored
        self._entered = False  # the run is stored, so its ending must be too
        self._screen = screen
        if orphan is not None:
            self.recorder.restore(orphan.saved.events)
            if not orphan.saved.events:  # readers may have this event, since it is emitted before it is saved
                self.recorder.emit_reproducible(self._started())
            if not orphan.has_begun:
                self.journal.replayed = orphan.saved.beginning()

    async def accept(self, store: Store, on_accept: StoreWrite) -> None:
        """Store that the run was accepted, and write `on_accept` in the same transaction, before the run begins.

        The messages are not stored yet, since they have not been screened. Passes on the store's errors; the run must
        not begin then.
        """
        self._entered = True
        try:
            await self._enter(store, on_accept=on_accept)
        except asyncio.CancelledError:  # the store completes a write that has been passed to it
            await self._record(self._failed("unavailable", STOPPED_BEFORE_START, retryable=True))
            raise

    async def drive(self, turn: ThreadTurn) -> None:
        """Run the agent when it is the run's turn on its thread, and finish the run."""
        current_user.set(self.run.user)
        note_ids(run=self.run.id, thread=self.run.thread_id, tenant=self.run.tenant)
        with span(
            "invoke_agent", self.run.agent, agent__name=self.run.agent, conversation__id=self.run.thread_id
        ) as traced:
            if traced.is_recording():  # otherwise the trace is the request's, which is already noted
                note_ids(trace=current_trace())
            terminal = await self._attempt(turn)
            traced.set_attribute("agent_server.run.id", self.run.id)
            if isinstance(terminal, RunError):
                mark_failed(traced, terminal.code or "internal")
            usages = self.recorder.usage.values()
            note(
                traced,
                usage__input_tokens=sum(each.input_tokens or 0 for each in usages),
                usage__output_tokens=sum(each.output_tokens or 0 for each in usages),
            )
        self.run.state = "ending"  # from here on it cannot be cancelled: its ending is being recorded
        # If another server continues the run, its ending must not be recorded.
        if isinstance(terminal, RunError) and terminal.message in (RESUMES_LATER, CONTINUES_ELSEWHERE):
            self.journal.freeze()
            self.run.leave(terminal)
            return
        try:
            terminal = await self._record(terminal)
        except asyncio.CancelledError:
            log.warning("A run's ending was not recorded: the server was stopped.")
        except Superseded:
            self.run.leave(self._elsewhere())
            return
        self.journal.release()
        self.recorder.check(terminal)
        self.run.finish(terminal)

    async def _attempt(self, turn: ThreadTurn) -> Event:
        # A run that was stopped before its first step waits a moment for its turn, so that its messages are stored.
        seconds = self._run_seconds if self.run.stopped_by is None else STOPPED_SECONDS
        self.run.state = "queued"
        try:
            async with asyncio.timeout(seconds) as deadline:
                if self._screen is not None:
                    await self._screen(self.run)
                if before := await turn.before():
                    # Store the run's messages and emit that it waits: its client may disconnect before it begins.
                    if self._store is not None:
                        self._accepted = self._entered = True  # also where this is cancelled
                        await self._enter(self._store, await collect_yielding(each_dict(self.run.input.messages)))
                    if self._orphan is None:
                        self.recorder.emit(self._started())
                    self.recorder.emit(Custom(name=WAITING_EVENT, value={"behind": list(before)}))
                await turn.come()
                if before and self.joins is not None and (joining := await self.joins(self.run)) is not None:
                    self.run.state = "running"
                    return self._finished(await joining.run(self._context()))
                if self._orphan is not None and self.when_ready is not None:
                    await self.when_ready()
                self.run.state = "running"
                await self._open()
                if self.run.stopped_by is not None:
                    return self._stopped()
                return self._finished(await self.agent.run(self._context()))
        except asyncio.CancelledError:
            return self._stopped()
        except TimeoutError:
            # The run was stopped and its short time is over, or its own time is over, or the agent's code raised a
            # TimeoutError of its own.
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

    async def _enter(
        self, store: Store, messages: Sequence[dict[str, object]] = (), on_accept: StoreWrite | None = None
    ) -> None:
        run = self.run
        await store.accept_run(
            run.tenant,
            run.thread_id,
            run.id,
            agent=run.agent,
            parent_run_id=run.input.parent_run_id,
            messages=messages,
            on_accept=on_accept,
            body=self._body,
        )
        self._body = None

    async def _open(self) -> None:
        run, store = self.run, self._store
        if store is not None:
            try:
                orphan = self._orphan
                if orphan is not None and orphan.has_begun:
                    snapshot = orphan.record.thread
                else:
                    snapshot = await store.begin_run(
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
            except asyncio.CancelledError:
                self._entered = True  # the store completes a write that has been passed to it
                raise
            self._thread = OpenThread(store, run.tenant, run.thread_id, run.id, snapshot)
        if run.log.empty and not self.journal.count:  # a run that waited has already emitted RUN_STARTED
            self.recorder.emit_reproducible(self._started())

    def _context(self) -> RunContext:
        run, orphan = self.run, self._orphan
        return RunContext(
            input=run.input,
            options=run.options,
            tenant=run.tenant,
            recorder=self.recorder,
            controls=run.controls,
            stopped_by=lambda: run.stopped_by,
            new_id=self.journal.new_id if self.journal.is_open else self._new_id,
            thread=self._thread,
            checkpoint=None if orphan is None or not orphan.has_begun else orphan.record.body,
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
        log.exception("A run failed inside the server.")
        return self._failed("internal", "The server failed to complete this run.")

    def _stopped(self) -> Event:
        """Return the terminal event of a run whose task was cancelled by the server or at the end of the event loop."""
        # The cancellation ends here, so that recording the run's ending can await.
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()
        if self.run.stopped_by in ("cancelled", "disconnected"):
            if self.run.log.empty and not self.journal.count:
                self.recorder.emit(self._started())
            return self._finished(Ending(outcome=CancelledOutcome(), reason="cancelled"))
        if self.journal.state == "lost":
            return self._elsewhere()
        # The run and its events are stored, so the next server resumes it.
        resumable = self.journal.state == "open" and (self._entered or self._thread is not None)
        message = RESUMES_LATER if resumable else "The server stopped before the run was complete."
        return self._failed("unavailable", message, retryable=True)

    def _elsewhere(self) -> Event:
        metadata = as_metadata(ErrorMetadata(retryable=True, next_event=self.run.log.last + 1))
        return RunError(message=CONTINUES_ELSEWHERE, code="connection", metadata=metadata)

    def abandoned(self) -> None:
        """End a run whose task was cancelled from outside before its first step."""
        if not self.run.finished:
            self.run.finish(self._failed("unavailable", STOPPED_BEFORE_START, retryable=True))

    async def _record(self, terminal: Event) -> Event:
        """Close what is open and store the ending before any reader gets the terminal event."""
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
        except RequestError as store_error:  # the store itself logs what is wrong with it, once
            error = store_error
        except TimeoutError:
            log.error("The store did not record a run's ending within %g s.", RECORD_SECONDS)
        except Exception:
            log.exception("The store failed to record a run's ending.")
        # Replace a success that was not stored by an error: its interrupts could never be answered.
        if not isinstance(terminal, RunError):
            message = "The run was complete but could not be saved."
            if error is None:
                terminal = self._failed("internal", message)
            else:
                terminal = self._failed(error.kind, f"{message} {error.message}", retryable=_retryable(error))
        self._on_unsettled(await self._conclusion(terminal, ending))
        return terminal

    async def _conclusion(self, terminal: Event, refused: Conclusion | None = None) -> Conclusion:
        """Collect what the store records at the run's end.

        refused: the conclusion that the store failed to record; the result is the same with the terminal event that
        readers get in its place.
        """
        run, recorder = self.run, self.recorder
        if refused is not None:
            saved = refused.saved
            if saved is not None:
                saved = msgspec.structs.replace(saved, packed=self.journal.resealed(saved.number, terminal))
            return msgspec.structs.replace(refused, terminal=terminal, saved=saved, interrupts=())
        saved = None
        if self._saver is not None:
            saved = await self.journal.seal(terminal, self._saver.ended_checkpoint(run.input, run.options))
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


def _retryable(error: EngineError | RequestError) -> bool:
    if isinstance(error, EngineError):
        return error.retryable
    return error.kind in ("overloaded", "unavailable", "rate_limited")
