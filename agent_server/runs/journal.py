"""Save the events of runs, so that another server can continue a run exactly where its readers saw it.

An event is saved before readers get it, so a server that resumes the run knows every event that was read. One task
saves for all runs, every `interval` seconds in one transaction; a stream is behind its run by at most that time, and
the first events after a silence are saved at once. A failing database delays no stream: events are then passed on at
once and saved when it works again.

A saved part holds encoded events and, for a model's turn, the tokens they were made from and the ids that were used. A
turn is resumed by replaying the same tokens: its events are compared with those that readers have, which are not sent
again, and the engine continues after the tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import Delta
from agent_server.runs.log import EventLog
from agent_server.runs.store import SavedEvents, Store, StoreUnavailable, Superseded
from events.encode import decode, encode
from events.vocabulary import CONTROL_EVENT, LOADING_EVENT, PROGRESS_EVENT, WAITING_EVENT, Custom, Event, RunStarted

log = logging.getLogger("agent_server.runs")
INTERVAL_SECONDS = 0.05
PATIENCE_SECONDS = 0.5
"""How long a locked database may delay the streams before they continue without it."""
RETRY_SECONDS = 1.0
"""Seconds between attempts while the database fails."""
FORGET_SECONDS = 60.0
COMPRESSED_BYTES = 512
MOST_UNSAVED = 20_000
"""Events of one run that wait to be saved while the store fails. Above that the run is no longer saved, and makes no
tool call that must not be repeated."""
BURST_SHARE = 8
"""The part of a log's capacity that may be emitted before readers get the event loop."""
_STATUS = frozenset({LOADING_EVENT, PROGRESS_EVENT, CONTROL_EVENT, WAITING_EVENT})
"""Events about a momentary state: they are sent once, and a replay does not compare them."""


class ReplayDiverged(Exception):
    """A replayed turn produced another event than the one that readers have."""


class SavedPart(msgspec.Struct, array_like=True, gc=False):
    """One row of a run's saved events. last: the sequence number of the last event. turn: the number of the event after
    which the model's turn began that `deltas` belong to. ids: the ids used in that turn."""

    last: int
    turn: int
    events: list[bytes]
    deltas: list[Delta] = []
    ids: list[str] = []


class SavedTurn(msgspec.Struct, kw_only=True):
    """A model's turn that a server left unfinished: the events that readers have, the tokens they were made from, and
    the ids that were used."""

    sent_events: deque[Event]
    deltas: list[Delta]
    ids: deque[str]


def pack(part: SavedPart) -> bytes:
    """Encode a part. The first byte says whether the rest is compressed."""
    data = msgspec.msgpack.encode(part)
    return b"z" + zlib.compress(data, 1) if len(data) >= COMPRESSED_BYTES else b"-" + data


def unpack(data: bytes) -> SavedPart:
    """Decode a part. Raises ValueError for data that this version cannot have written."""
    try:
        encoded = zlib.decompress(data[1:]) if data[:1] == b"z" else data[1:]
        return msgspec.msgpack.decode(encoded, type=SavedPart)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise ValueError(str(error)) from error


class SavedRun:
    """A run's saved events. packed: its parts, in order. Raises ValueError for parts that cannot be read."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._parts = [unpack(data) for data in packed]
        self.events: list[Event] = [decode(each) for part in self._parts for each in part.events]
        if self._parts and self._parts[-1].last != len(self.events):
            raise ValueError("Events are missing between the saved parts of a run.")

    def beginning(self) -> SavedTurn:
        """Return the events of a run whose agent had not begun, as a turn: all but RUN_STARTED and status events."""
        own = [each for each in self.events if not (type(each) is RunStarted or _is_status(each))]
        return SavedTurn(sent_events=deque(own), deltas=[], ids=deque())

    def turn(self, at: int) -> SavedTurn:
        """Return the model's turn that began after the event with that sequence number."""
        parts = [part for part in self._parts if part.turn == at]
        return SavedTurn(
            sent_events=deque(each for each in self.events[at:] if not _is_status(each)),
            deltas=[delta for part in parts for delta in part.deltas],
            ids=deque(id for part in parts for id in part.ids),
        )


def _is_status(event: Event) -> bool:
    return type(event) is Custom and event.name in _STATUS


class _Part(msgspec.Struct):
    """What is being written to the store."""

    sent_events: list[Event]
    waiting: list[Event]
    deltas: list[Delta]
    ids: list[str]
    has_body: bool
    flushed: list[asyncio.Future[None]]


class Journal:
    """The saver between a run and its log. Until `open`, events are passed on at once and nothing is saved.

    body: makes the agent's checkpoint after a change, in the same step that collects the events which are saved with
    it. on_lost: called when another server has taken over the run.
    """

    def __init__(self, log: EventLog, new_id: Callable[[str], str]) -> None:
        self.body: Callable[[], str] | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self.replayed: SavedTurn | None = None
        self.muted = False
        self.state: Literal["closed", "open", "unsaved", "frozen", "lost"] = "closed"
        self._log = log
        self._new_id = new_id
        self._writer: JournalWriter | None = None
        self._key = ("", "", "")
        self._waiting: list[Event] = []
        self._sent_unsaved: list[Event] = []  # and not saved: the store was at fault, or they are certain to come again
        self._deltas: list[Delta] = []
        self._ids: list[str] = []
        self._turn = -1
        self._changed = False
        self._since_pause = 0
        self._flushed: list[asyncio.Future[None]] = []
        self._under_way: _Part | None = None

    @property
    def is_open(self) -> bool:
        return self._writer is not None

    @property
    def count(self) -> int:
        """The sequence number of the newest event, whether readers have it or not."""
        under_way = 0 if self._under_way is None else len(self._under_way.waiting)
        return self._log.last + under_way + len(self._waiting)

    def open(self, writer: JournalWriter, tenant: str, thread_id: str, run_id: str) -> None:
        self._writer, self._key, self.state = writer, (tenant, thread_id, run_id), "open"

    def emit(self, event: Event, *, certain: bool = False) -> None:
        """Save an event, then show it. certain: a server that resumes the run would make the same, so it is shown at
        once."""
        self._since_pause += 1
        if self._writer is None or self.state == "unsaved":
            self._log.append(event)
        elif self.state != "open":
            return
        elif (certain or self._writer.at_fault) and not self._waiting and self._under_way is None:
            self._log.append(event)
            self._sent_unsaved.append(event)
        else:
            self._waiting.append(event)
            self._writer.wake(self)

    @property
    def is_bursting(self) -> bool:
        """Whether whoever emits must `pause` before more."""
        return self._since_pause * BURST_SHARE >= self._log.limits.events

    async def pause(self) -> None:
        """Let readers take what was emitted. A log keeps a bounded number of events, so more than that at once would
        overtake the readers that follow it."""
        self._since_pause = 0
        if self._waiting:
            with contextlib.suppress(RequestError, Superseded):  # the run hears of both where it has to
                await self.flush()
        await asyncio.sleep(0)

    def was_shown(self, event: Event) -> bool:
        """Return whether readers have the event. Raises ReplayDiverged if they have another one in its place."""
        turn = self.replayed
        if self.muted or turn is None:
            return self.muted
        if not turn.sent_events:
            if not turn.ids:
                self.replayed = None
            return False
        if not _is_status(event):
            if type(turn.sent_events[0]) is not type(event):
                raise ReplayDiverged(
                    f"The replay made {type(event).__name__} instead of {type(turn.sent_events[0]).__name__}."
                )
            turn.sent_events.popleft()
        return True

    # ---- a model's turn ---------------------------------------------------------------------------------------------

    def new_id(self, prefix: str) -> str:
        """Return a fresh id or, in a replayed turn, the id that was used there the first time."""
        if self.replayed is not None and self.replayed.ids and not self.muted:
            return self.replayed.ids.popleft()
        id = self._new_id(prefix)
        if self._turn >= 0 and self.state == "open":
            self._ids.append(id)
        return id

    def begin_turn(self) -> int:
        """Begin a turn. Return the number of the event after which it begins."""
        self.replayed = None
        self._turn = self.count
        self._deltas, self._ids = [], []
        return self._turn

    def resume_turn(self, at: int, turn: SavedTurn) -> None:
        """Continue a turn that began after event number `at`. Its ids and tokens are already saved."""
        self._turn, self.replayed = at, turn

    def forget_turn(self) -> None:
        """Stop comparing: the events from here on are new."""
        self.replayed = None
        self.end_turn()

    def end_turn(self) -> None:
        self._turn = -1
        self._deltas, self._ids = [], []

    def add(self, delta: Delta) -> None:
        """Add tokens of the turn, before the events that are made from them."""
        if self._turn >= 0 and self.state == "open":
            self._deltas.append(delta)

    # ---- saving -----------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Save the checkpoint, which has changed."""
        self._changed = True
        if self._writer is not None:
            self._writer.wake(self)

    async def flush(self) -> None:
        """Wait until all emitted events and the checkpoint are saved.

        Raises RequestError if the store fails, Superseded if another server has taken over the run.
        """
        if self._writer is None:
            return
        if self.state == "lost":
            raise Superseded
        if self.state == "unsaved":
            raise StoreUnavailable("too many events of the run could not be saved")
        future = asyncio.get_running_loop().create_future()
        self._flushed.append(future)
        self._writer.wake(self, at_once=True)
        await future

    def take(self) -> SavedEvents | None:
        """Collect what is to be saved now, or return None if there is nothing."""
        if self.state != "open" or not (self._waiting or self._changed or self._flushed):
            return None
        body = self.body() if self._changed and self.body is not None else None
        self._changed = False
        last = self.count
        packed = self._pack(last) if self._waiting or self._sent_unsaved else b""
        self._under_way = _Part(
            self._sent_unsaved, self._waiting, self._deltas if packed else [], self._ids if packed else [],
            body is not None, self._flushed,
        )  # fmt: skip
        self._sent_unsaved, self._waiting, self._flushed = [], [], []
        if packed:  # tokens without an event wait for one, since a part is known by its last event
            self._deltas, self._ids = [], []
        return self._saved_events(last, packed, body)

    def _pack(self, last: int, *more: Event) -> bytes:
        events = [encode(each) for each in (*self._sent_unsaved, *self._waiting, *more)]
        return pack(SavedPart(last, self._turn, events, self._deltas, self._ids))

    def _saved_events(self, last: int, packed: bytes, body: str | None) -> SavedEvents:
        tenant, thread_id, run_id = self._key
        return SavedEvents(tenant=tenant, thread_id=thread_id, run_id=run_id, number=last, packed=packed, body=body)

    def on_saved(self) -> None:
        """Pass on the events of the last `take`, which the store has now."""
        part = self._leave_under_way()
        for event in part.waiting:
            self._log.append(event)
        for future in part.flushed:
            _resolve(future, None)

    def on_save_failed(self, error: RequestError) -> None:
        """Pass on the events of the last `take`, which the store failed to save, and save them with the next ones."""
        part = self._leave_under_way()
        for event in (*part.waiting, *self._waiting):
            self._log.append(event)
        self._sent_unsaved = [*part.sent_events, *part.waiting, *self._waiting]
        self._waiting = []
        self._deltas, self._ids = [*part.deltas, *self._deltas], [*part.ids, *self._ids]
        self._changed = self._changed or part.has_body
        for future in part.flushed:
            _resolve(future, error)
        if len(self._sent_unsaved) > MOST_UNSAVED:
            log.warning("A run is no longer saved, since the store has failed for too long. It cannot be resumed.")
            self.state = "unsaved"
            self._sent_unsaved, self._deltas, self._ids = [], [], []
            waiting, self._flushed = self._flushed, []
            for future in waiting:
                _resolve(future, error)

    def on_superseded(self) -> None:
        """Drop the events of the last `take`: another server has taken over the run, so none are passed on here."""
        part = self._leave_under_way()
        self.state = "lost"
        self._waiting.clear()
        for future in (*part.flushed, *self._flushed):
            _resolve(future, Superseded())
        self._flushed = []
        self.on_lost()

    def freeze(self) -> None:
        """Save and pass on nothing more: another server continues the run from here."""
        if self.state == "open":
            self.state = "frozen"

    async def seal(self, terminal: Event, body: str) -> SavedEvents | None:
        """Return the run's last events, which are saved with its ending, or None if the run is not saved. No event is
        passed on until `release`."""
        if self.state == "unsaved":
            return self._saved_events(self.count + 1, b"", body)
        if self._writer is None or self.state != "open":
            return None
        await self._writer.idle(self)
        if self.is_lost:
            return None
        self.state = "frozen"
        last = self.count + 1
        return self._saved_events(last, self._pack(last, terminal), body)

    def resealed(self, last: int, terminal: Event) -> bytes:
        """Return the sealed events with another terminal event."""
        return self._pack(last, terminal)

    def release(self) -> None:
        """Pass on the waiting events, at the run's end."""
        if self.state != "lost":
            waiting, self._waiting = self._waiting, []
            for event in waiting:
                self._log.append(event)

    @property
    def is_lost(self) -> bool:
        return self.state == "lost"

    @property
    def under_way(self) -> bool:
        return self._under_way is not None

    def _leave_under_way(self) -> _Part:
        part, self._under_way = self._under_way, None
        assert part is not None
        return part


def _resolve(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


class JournalWriter:
    """Saves the journals of all runs. interval: seconds between writes. replay: seconds for which the events of
    finished runs are kept."""

    def __init__(self, store: Store, interval: float, replay: float) -> None:
        self.at_fault = False
        self._store = store
        self._interval = interval
        self._replay = replay
        self._changed: dict[Journal, None] = {}
        self._wake = asyncio.Event()
        self._flush_now = asyncio.Event()
        self._idle: list[tuple[Journal, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._swept = time.monotonic()

    def wake(self, journal: Journal, *, at_once: bool = False) -> None:
        self._changed[journal] = None
        self._wake.set()
        if at_once:
            self._flush_now.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="save runs")

    async def idle(self, journal: Journal) -> None:
        """Wait until no part of a journal is being written."""
        if journal.under_way:
            future = asyncio.get_running_loop().create_future()
            self._idle.append((journal, future))
            await future

    async def close(self) -> None:
        """Stop saving. Events that are not saved by now are lost."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            started = time.monotonic()
            await self._save()
            pause = RETRY_SECONDS if self.at_fault else self._interval - (time.monotonic() - started)
            if pause > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._flush_now.wait()
            self._flush_now.clear()

    async def _save(self) -> None:
        self._wake.clear()
        changed, self._changed = self._changed, {}
        batch = [(journal, events) for journal in changed if (events := journal.take()) is not None]
        if not batch:
            return
        try:
            owned = await self._store.save_events([events for _, events in batch], PATIENCE_SECONDS)
        except RequestError as error:
            self._failed([journal for journal, _ in batch], error)
        except Exception:
            log.exception("The events of runs could not be saved.")
            self._failed([journal for journal, _ in batch], StoreUnavailable("the events of runs could not be saved"))
        else:
            self.at_fault = False
            for (journal, _), is_owned in zip(batch, owned, strict=True):
                if is_owned:
                    journal.on_saved()
                else:
                    journal.on_superseded()
        idle, self._idle = self._idle, []
        for journal, future in idle:
            if journal.under_way:
                self._idle.append((journal, future))
            else:
                _resolve(future, None)
        now = time.monotonic()
        if not self.at_fault and now - self._swept > FORGET_SECONDS:
            self._swept = now
            with contextlib.suppress(RequestError):
                await self._store.forget_ended(int((time.time() - self._replay) * 1000))

    def _failed(self, journals: Sequence[Journal], error: RequestError) -> None:
        self.at_fault = True
        for journal in journals:
            journal.on_save_failed(error)
            if journal.state == "open":
                self.wake(journal)
