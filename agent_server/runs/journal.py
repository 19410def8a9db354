"""Saving what runs say beside their streams, so that another server goes on with a run exactly where readers saw it.

What a run emits is saved before a reader sees it: nobody has read an event that a server which resumes the run does not
know. One task saves for all runs, every `interval` seconds in one transaction, so a stream is behind its run by that
time at most, and the first events after a silence are saved at once. A database that is at fault holds up no stream:
events are then shown at once and saved when it answers again.

A saved part holds the events' encodings and, of a model's turn, the tokens that they were made of and the ids that were
given out. The turn is resumed by reading the same tokens again: its events are compared with those that were shown,
which are not shown again, and the engine goes on behind the tokens.
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
"""How long a locked database holds up the streams before they go on without it."""
REST_SECONDS = 1.0
"""Between attempts while the database is at fault."""
FORGET_SECONDS = 60.0
COMPRESSED_BYTES = 512
MOST_UNSAVED = 20_000
"""Events of one run that are kept to be saved while the store takes nothing. With more the run is saved no further, and
makes no call that may not be made twice."""
BURST_SHARE = 8
"""A part of what a log keeps that is emitted at most before its readers get the event loop."""
_STATUS = frozenset({LOADING_EVENT, PROGRESS_EVENT, CONTROL_EVENT, WAITING_EVENT})
"""Events about the moment: they are shown once and no part of what is compared."""


class ReplayDiverged(Exception):
    """A turn that is read again does not say what was shown of it."""


class SavedPart(msgspec.Struct, array_like=True, gc=False):
    """One row of a run's saved events. last: the number of the last of `events`. turn: the number of the event behind
    which the model's turn began that `deltas` are of. ids: those given out in it."""

    last: int
    turn: int
    events: list[bytes]
    deltas: list[Delta] = []
    ids: list[str] = []


class SavedTurn(msgspec.Struct, kw_only=True):
    """What is known of a model's turn that a server left in the middle: the events that were shown of it, the tokens
    they were made of, and the ids that were given out."""

    shown: deque[Event]
    deltas: list[Delta]
    ids: deque[str]


def pack(part: SavedPart) -> bytes:
    """The part's bytes, behind one that says whether they are compressed."""
    data = msgspec.msgpack.encode(part)
    return b"z" + zlib.compress(data, 1) if len(data) >= COMPRESSED_BYTES else b"-" + data


def unpack(data: bytes) -> SavedPart:
    """ValueError for what no server of this version has written."""
    try:
        whole = zlib.decompress(data[1:]) if data[:1] == b"z" else data[1:]
        return msgspec.msgpack.decode(whole, type=SavedPart)
    except (msgspec.MsgspecError, zlib.error) as error:
        raise ValueError(str(error)) from error


class SavedRun:
    """What was saved of a run. packed: its parts, in order. ValueError for what cannot be read."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._parts = [unpack(data) for data in packed]
        self.events: list[Event] = [decode(each) for part in self._parts for each in part.events]
        if self._parts and self._parts[-1].last != len(self.events):
            raise ValueError("events are missing from what was saved of a run")

    def beginning(self) -> SavedTurn:
        """What was shown of a run whose agent had not begun: all of it but that it started, and waited."""
        own = [each for each in self.events if not (type(each) is RunStarted or _is_status(each))]
        return SavedTurn(shown=deque(own), deltas=[], ids=deque())

    def turn(self, at: int) -> SavedTurn:
        """The model's turn that began behind the event of that number."""
        parts = [part for part in self._parts if part.turn == at]
        return SavedTurn(
            shown=deque(each for each in self.events[at:] if not _is_status(each)),
            deltas=[delta for part in parts for delta in part.deltas],
            ids=deque(id for part in parts for id in part.ids),
        )


def _is_status(event: Event) -> bool:
    return type(event) is Custom and event.name in _STATUS


class _Part(msgspec.Struct):
    """What is under way to the store."""

    shown: list[Event]
    waiting: list[Event]
    deltas: list[Delta]
    ids: list[str]
    has_body: bool
    flushed: list[asyncio.Future[None]]


class Journal:
    """Between one run and its log. Until it is opened every event goes through at once, and nothing is saved.

    body: makes the agent's checkpoint when that has changed; it is made in the same step in which the events are taken
    that are saved with it. on_lost: called when another server goes on with the run.
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
        self._shown: list[Event] = []  # and not saved: the store was at fault, or they are certain to come again
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
        """The number of the newest event, shown or not."""
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
            self._shown.append(event)
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
        """Whether readers have the event. ReplayDiverged if they have another in its place."""
        turn = self.replayed
        if self.muted or turn is None:
            return self.muted
        if not turn.shown:
            if not turn.ids:
                self.replayed = None
            return False
        if not _is_status(event):
            if type(turn.shown[0]) is not type(event):
                raise ReplayDiverged(f"{type(event).__name__} came for {type(turn.shown[0]).__name__}")
            turn.shown.popleft()
        return True

    # ---- a model's turn ---------------------------------------------------------------------------------------------

    def new_id(self, prefix: str) -> str:
        """A fresh id; in a turn that is read again the one that was given out then."""
        if self.replayed is not None and self.replayed.ids and not self.muted:
            return self.replayed.ids.popleft()
        id = self._new_id(prefix)
        if self._turn >= 0 and self.state == "open":
            self._ids.append(id)
        return id

    def begin_turn(self) -> int:
        """The number of the event behind which a turn begins."""
        self.replayed = None
        self._turn = self.count
        self._deltas, self._ids = [], []
        return self._turn

    def resume_turn(self, at: int, turn: SavedTurn) -> None:
        """Go on with a turn that began behind that event. Its ids and tokens are saved already."""
        self._turn, self.replayed = at, turn

    def forget_turn(self) -> None:
        """What comes from here on is said anew."""
        self.replayed = None
        self.end_turn()

    def end_turn(self) -> None:
        self._turn = -1
        self._deltas, self._ids = [], []

    def add(self, delta: Delta) -> None:
        """Tokens of the turn, before their events."""
        if self._turn >= 0 and self.state == "open":
            self._deltas.append(delta)

    # ---- saving -----------------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The checkpoint has changed, and is to be saved."""
        self._changed = True
        if self._writer is not None:
            self._writer.wake(self)

    async def flush(self) -> None:
        """Wait until all that was emitted, and the checkpoint, are saved. RequestError if the store does not take them,
        Superseded if another server goes on with the run."""
        if self._writer is None:
            return
        if self.state == "lost":
            raise Superseded
        if self.state == "unsaved":
            raise StoreUnavailable("too much of what the run said could not be written")
        future = asyncio.get_running_loop().create_future()
        self._flushed.append(future)
        self._writer.wake(self, at_once=True)
        await future

    def take(self) -> SavedEvents | None:
        """What is to be saved now; None if there is nothing."""
        if self.state != "open" or not (self._waiting or self._changed or self._flushed):
            return None
        body = self.body() if self._changed and self.body is not None else None
        self._changed = False
        last = self.count
        packed = self._pack(last) if self._waiting or self._shown else b""
        self._under_way = _Part(
            self._shown, self._waiting, self._deltas if packed else [], self._ids if packed else [],
            body is not None, self._flushed,
        )  # fmt: skip
        self._shown, self._waiting, self._flushed = [], [], []
        if packed:  # tokens without an event wait for one, since a part is known by its last event
            self._deltas, self._ids = [], []
        return self._saved_events(last, packed, body)

    def _pack(self, last: int, *more: Event) -> bytes:
        events = [encode(each) for each in (*self._shown, *self._waiting, *more)]
        return pack(SavedPart(last, self._turn, events, self._deltas, self._ids))

    def _saved_events(self, last: int, packed: bytes, body: str | None) -> SavedEvents:
        tenant, thread_id, run_id = self._key
        return SavedEvents(tenant=tenant, thread_id=thread_id, run_id=run_id, number=last, packed=packed, body=body)

    def saved(self) -> None:
        """The store has what was taken: show it."""
        part = self._leave_under_way()
        for event in part.waiting:
            self._log.append(event)
        for future in part.flushed:
            _resolve(future, None)

    def failed(self, error: RequestError) -> None:
        """The store did not take it: show it, and save it with what follows."""
        part = self._leave_under_way()
        for event in (*part.waiting, *self._waiting):
            self._log.append(event)
        self._shown = [*part.shown, *part.waiting, *self._waiting]
        self._waiting = []
        self._deltas, self._ids = [*part.deltas, *self._deltas], [*part.ids, *self._ids]
        self._changed = self._changed or part.has_body
        for future in part.flushed:
            _resolve(future, error)
        if len(self._shown) > MOST_UNSAVED:
            log.warning("a run is saved no further: the store took nothing of it for too long")
            self.state = "unsaved"
            self._shown, self._deltas, self._ids = [], [], []
            waiting, self._flushed = self._flushed, []
            for future in waiting:
                _resolve(future, error)

    def superseded(self) -> None:
        """Another server goes on with the run: nothing more of it is shown here."""
        part = self._leave_under_way()
        self.state = "lost"
        self._waiting.clear()
        for future in (*part.flushed, *self._flushed):
            _resolve(future, Superseded())
        self._flushed = []
        self.on_lost()

    def freeze(self) -> None:
        """Save and show nothing more: the run is left to another server as it stands."""
        if self.state == "open":
            self.state = "frozen"

    async def seal(self, terminal: Event, body: str) -> SavedEvents | None:
        """The run's last events, to be saved with its ending; None if nothing of it is saved. Until `release` no event
        is shown."""
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
        """The sealed events with another ending."""
        return self._pack(last, terminal)

    def release(self) -> None:
        """Show what is waiting, at the run's end."""
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
    """Saves the journals of all runs. replay: seconds for which the events of runs that ended are kept."""

    def __init__(self, store: Store, interval: float, replay: float) -> None:
        self.at_fault = False
        self._store = store
        self._interval = interval
        self._replay = replay
        self._wanted: dict[Journal, None] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self._idle: list[tuple[Journal, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._swept = time.monotonic()

    def wake(self, journal: Journal, *, at_once: bool = False) -> None:
        self._wanted[journal] = None
        self._wake.set()
        if at_once:
            self._hurry.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="save runs")

    async def idle(self, journal: Journal) -> None:
        """Wait until nothing of a journal is under way."""
        if journal.under_way:
            future = asyncio.get_running_loop().create_future()
            self._idle.append((journal, future))
            await future

    async def close(self) -> None:
        """End the saving. What is not saved by now stays unsaved."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            begun = time.monotonic()
            await self._save()
            rest = REST_SECONDS if self.at_fault else self._interval - (time.monotonic() - begun)
            if rest > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await self._hurry.wait()
            self._hurry.clear()

    async def _save(self) -> None:
        self._wake.clear()
        wanted, self._wanted = self._wanted, {}
        taken = [(journal, saved) for journal in wanted if (saved := journal.take()) is not None]
        if not taken:
            return
        try:
            held = await self._store.save_events([saved for _, saved in taken], PATIENCE_SECONDS)
        except RequestError as error:
            self._failed([journal for journal, _ in taken], error)
        except Exception:
            log.exception("runs could not be saved")
            self._failed([journal for journal, _ in taken], StoreUnavailable("what runs said could not be written"))
        else:
            self.at_fault = False
            for (journal, _), is_held in zip(taken, held, strict=True):
                if is_held:
                    journal.saved()
                else:
                    journal.superseded()
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
            journal.failed(error)
            if journal.state == "open":
                self.wake(journal)
