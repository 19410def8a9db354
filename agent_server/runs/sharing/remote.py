"""Runs of other gateways, followed here: one copy of a run's events for any number of readers.

One command reads the streams of all such runs, about forty times a second.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.observability.audit import note
from agent_server.runs.log import EventLog, ItemReader, LogReader
from agent_server.runs.run import AHEAD, check_position, fell_behind_error
from agent_server.runs.sharing.link import RedisLink, RedisUnreachable
from agent_server.runs.sharing.streams import TERMINAL, RedisKeys, RunPlace, entry_id, opened, place_of
from agent_server.settings import LogLimits, SharingLimits
from events.encode import DecodeError
from events.metadata import ErrorMetadata, as_metadata, error_metadata
from events.vocabulary import Event, RunError

if TYPE_CHECKING:
    from agent_server.runs.run import Run

Ask = Callable[["RemoteRun", str, dict[str, object]], Awaitable[Mapping[str, object]]]
IDLE_SECONDS = 5.0
"""How long a copy without readers is kept up to date."""


def record_of(run: Run) -> dict[str, bytes]:
    """Return the fields of a run's record in Redis: what other gateways need besides its events. Tools are left out."""
    input = run.input.model_copy(update={"tools": [], "context": [], "forwarded_props": {}})
    return {
        "agent": run.agent.encode(),
        "thread": run.thread_id.encode(),
        "owner": str(run.owner or "").encode(),
        "input": zlib.compress(input.model_dump_json(by_alias=True, exclude_none=True).encode(), 1),
    }


class RemoteRun:
    """A run of another gateway, read and controlled like `Run` through Redis. Created only by a Gateway.

    When its gateway or Redis can no longer be followed, the copy is cut off: each reader gets a RUN_ERROR without a
    sequence number, and may continue elsewhere from `nextEvent`. on_presence: called with True when the first reader
    arrives and with False when the last one leaves.
    """

    def __init__(
        self,
        place: RunPlace,
        record: Mapping[bytes, bytes],
        limits: LogLimits,
        *,
        ask: Ask,
        on_presence: Callable[[RemoteRun, bool], None],
    ) -> None:
        self.place = place
        self.id, self.thread_id, self.tenant = place.run_id, place.thread_id, place.tenant
        self.agent = record[b"agent"].decode()
        self.input = RunAgentInput.model_validate_json(zlib.decompress(record[b"input"]))
        self.paused = record.get(b"paused") == b"1"
        self.is_resumed = b"resumed" in record
        self.log = EventLog(limits)
        self.terminal: Event | None = None
        self.done = asyncio.Event()
        self.touched = time.monotonic()
        self._ask = ask
        self._on_presence = on_presence
        self._readers = 0
        self._cut: RunError | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.tenant, self.id

    @property
    def finished(self) -> bool:
        return self.terminal is not None

    @property
    def died(self) -> bool:
        """Whether another gateway had to end the run."""
        return bool(error_metadata(self.terminal).lost)

    @property
    def state(self) -> str:
        if self.finished:
            return "finished"
        return "running" if self.log.last else "queued"

    @property
    def readers(self) -> int:
        return self._readers

    @property
    def idle(self) -> bool:
        """Whether it has had no reader for IDLE_SECONDS."""
        return not self._readers and time.monotonic() - self.touched > IDLE_SECONDS

    def events(self, after: int = 0) -> RemoteReader:
        """Do what `Run.events` does. Readers here count at the run's own gateway."""
        self.check_position(after)
        self._readers += 1
        if self._readers == 1 and not self.finished:
            self._on_presence(self, True)
        return RemoteReader(self, after, LogReader(self.log, after, gap_event=fell_behind_error, on_left=self._leave))

    def check_position(self, after: int) -> None:
        """Do what `Run.check_position` does, but allow a client to be ahead of the copy: by events that are still on
        their way, or that never arrived because the run's gateway died."""
        ahead = not self.finished or self.died
        check_position(self.log, min(after, self.log.last) if ahead and after - self.log.last <= AHEAD else after)

    async def wait(self) -> Event:
        """Do what `Run.wait` does. Raises RequestError("unavailable") if the run cannot be followed to its end."""
        # Counted so that the copy stays up to date. The run's gateway does not count it, since waiting is not reading.
        self._readers += 1
        try:
            await self.done.wait()
        finally:
            self._readers -= 1
        if self.terminal is None:
            raise RequestError("unavailable", "The run can no longer be followed from here.", retry_after=1.0)
        return self.terminal

    async def cancel(self) -> bool:
        if stopped := await self._control("cancel"):
            note("run.stopped", thread=self.thread_id, run=self.id)
        return stopped

    async def pause(self) -> bool:
        return await self._control("pause")

    async def resume(self) -> bool:
        return await self._control("resume")

    async def modify(self, changes: dict[str, object]) -> bool:
        return await self._control("modify", changes)

    async def _control(self, action: str, changes: dict[str, object] | None = None) -> bool:
        # The run's gateway no longer has a finished run and would not answer.
        if self.finished:
            return False
        answer = await self._ask(self, action, changes or {})
        self.paused = bool(answer.get("paused"))
        return bool(answer["done"])

    # ---- following --------------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[tuple[int, Event]]) -> None:
        """Append events to the copy. Events that it already has are skipped; a gap cuts it off."""
        for number, event in events:
            if self.done.is_set():
                return
            # An entry holds several events, some of which an earlier reading may have brought.
            if number <= self.log.last:
                continue
            # The copy begins where the run's log does, which may have dropped its first events.
            if self.log.last == 0:
                self.log.last = number - 1
            if number != self.log.last + 1:
                self.cut("Some of the run's events were lost on the way.")
                return
            if isinstance(event, TERMINAL):
                self.terminal = event
            self.log.append(event)
            if self.finished:
                self.log.close()
                self.done.set()

    def moved(self, place: RunPlace) -> None:
        """Follow the run at the gateway that has resumed it."""
        self.place, self.is_resumed = place, True
        if self._readers and not self.finished:
            self._on_presence(self, True)

    def cut(self, why: str) -> None:
        """End every reader here. The run itself may continue."""
        if not self.done.is_set():
            metadata = as_metadata(ErrorMetadata(retryable=True, next_event=self.log.last + 1))
            self._cut = RunError(
                message=f"{why} Continue from event {self.log.last + 1}.", code="connection", metadata=metadata
            )
            self.log.close()
            self.done.set()

    def ending_for(self, after: int) -> Event | None:
        """Return the event that ends a reader's stream when the copy has no terminal event for it, or None."""
        return self.terminal if after > self.log.last or self.died else self._cut

    def _leave(self) -> None:
        self._readers -= 1
        self.touched = time.monotonic()
        if not self._readers and not self.finished:
            self._on_presence(self, False)


class RemoteReader(ItemReader):
    """A reader of the copy. Its stream ends with the terminal event or, after a cut, with `RemoteRun.ending_for`."""

    def __init__(self, run: RemoteRun, after: int, inner: LogReader) -> None:
        self._run = run
        self._after = after
        self._inner = inner
        self._ended = False

    def ready(self) -> tuple[int, Event] | None:
        """Return the next item; after the end of the copy the event that ends the stream, once."""
        item = None if self._ended else self._inner.ready()
        if item is None and not self._ended and self._inner.over:
            self._ended = True
            ending = self._run.ending_for(self._after)
            return None if ending is None else (max(self._run.log.last, self._after), ending)
        if item is not None:
            self._ended = isinstance(item[1], TERMINAL)
        return item

    def arrival(self) -> asyncio.Future[None] | None:
        return None if self._ended else self._inner.arrival()

    async def aclose(self) -> None:
        self._ended = True
        await self._inner.aclose()


ENTRIES = 64
"""The most stream entries of one run per step, so that a long run does not delay the others."""


class Follower:
    """Keeps copies of other gateways' runs up to date. runs: the copies, by tenant and id."""

    def __init__(self, link: RedisLink, keys: RedisKeys, limits: SharingLimits) -> None:
        self._link = link
        self._keys = keys
        self._limits = limits
        self._has_runs = asyncio.Event()
        self._silent: dict[tuple[str, str], int] = {}
        self.runs: dict[tuple[str, str], RemoteRun] = {}

    async def add(self, run: RemoteRun) -> RemoteRun:
        """Read a run's events so far and follow it. Return the copy to use, which may be an earlier one. Raises
        RedisUnreachable."""
        # Read to the end before it is followed with the others, so that a long history does not delay them.
        while not run.done.is_set():
            after = "(" + entry_id(run.log.last)
            entries = await self._link.call("XRANGE", self._keys.events(run.place), after, "+", "COUNT", ENTRIES)
            if not entries:
                break
            self._feed(run, entries)
        return run if run.done.is_set() else self.keep(run)

    def keep(self, run: RemoteRun) -> RemoteRun:
        """Follow a copy from its last event. Return the copy to use, which may be an earlier one."""
        copy = self.runs.get(run.key)
        # One copy for all readers here, unless the id belongs to another run by now.
        if copy is None or copy.place != run.place or copy.done.is_set():
            copy = self.runs[run.key] = run
            self._has_runs.set()
        return copy

    async def run(self) -> None:
        while True:
            await self._has_runs.wait()
            try:
                await self.follow()
            except RedisUnreachable:
                # After an outage longer than a lease, readers get an error.
                if self._link.down_for > self._limits.lease:
                    self.cut_all("The servers cannot reach each other.")
            await asyncio.sleep(self._limits.tick)

    async def follow(self) -> None:
        """Read new events of every copy."""
        # A copy without readers is dropped; the next reader creates a new one.
        self.runs = {key: run for key, run in self.runs.items() if not (run.done.is_set() or run.idle)}
        if not self.runs:
            self._has_runs.clear()
            return
        by_stream = {self._keys.events(run.place).encode(): run for run in self.runs.values()}
        ids = [entry_id(run.log.last) for run in by_stream.values()]
        for stream, entries in await self._link.call("XREAD", "COUNT", ENTRIES, "STREAMS", *by_stream, *ids) or ():
            self._feed(by_stream[stream], entries)

    async def look(self) -> None:
        """Cut off copies of runs that no longer exist in Redis or whose end was lost, and follow runs that have
        moved."""
        runs = [run for run in self.runs.values() if not run.done.is_set()]
        commands = [("HMGET", self._keys.record(*run.key), "instance", "ended", "entry") for run in runs]
        records = await self._link.all(commands) if commands else ()
        for run, (instance, ended, entry) in zip(runs, records, strict=True):
            if instance is not None and instance.decode() == run.place.instance:
                # If another gateway has resumed the run, its readers here continue and count there.
                place = place_of(entry)
                if place != run.place:
                    run.moved(place)
            is_over = instance is None or instance.decode() != run.place.instance or ended is not None
            self._silent[run.key] = self._silent.get(run.key, 0) + 1 if is_over else 0
            if self._silent[run.key] > 1:  # twice in a row: its last events had the time to arrive
                run.cut("The run's events are no longer kept.")
        self._silent = {key: count for key, count in self._silent.items() if key in self.runs}

    def cut_all(self, why: str) -> None:
        for run in self.runs.values():
            run.cut(why)
        self.runs = {}

    @staticmethod
    def _feed(run: RemoteRun, entries: Any) -> None:
        try:
            run.feed(opened(entries))
        except (DecodeError, KeyError, ValueError):
            run.cut("The run's events cannot be read; its server may have another version.")
