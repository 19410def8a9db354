"""Runs of other gateways, followed here: one copy of a run's events, whatever the number of readers.

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
from agent_server.runs.run import AHEAD, check_position, lost
from agent_server.runs.sharing.link import RedisLink, Unreachable
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
    """What others must know of a run beside its events, for Redis. The tools are the run's own business."""
    input = run.input.model_copy(update={"tools": [], "context": [], "forwarded_props": {}})
    return {
        "agent": run.agent.encode(),
        "thread": run.thread_id.encode(),
        "owner": str(run.owner or "").encode(),
        "input": zlib.compress(input.model_dump_json(by_alias=True, exclude_none=True).encode(), 1),
    }


class RemoteRun:
    """What `Run` is to its readers and controllers, by way of Redis. Made by a Gateway alone.

    When its gateway or Redis cannot be followed any more it is cut: each reader is told so with a RUN_ERROR that has
    no number of its own, and may read on elsewhere from `nextEvent`.
    """

    def __init__(
        self,
        place: RunPlace,
        record: Mapping[bytes, bytes],
        limits: LogLimits,
        *,
        ask: Ask,
        present: Callable[[RemoteRun, bool], None],
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
        self._present = present
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
        """Whether another gateway had to end it."""
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
        """It had no reader and no command for a while."""
        return not self._readers and time.monotonic() - self.touched > IDLE_SECONDS

    def events(self, after: int = 0) -> RemoteReader:
        """As `Run.events`; a reader here counts at the run's own gateway."""
        self.check_position(after)
        self._readers += 1
        if self._readers == 1 and not self.finished:
            self._present(self, True)
        return RemoteReader(self, after, LogReader(self.log, after, lost=lost, left=self._leave))

    def check_position(self, after: int) -> None:
        """As `Run.check_position`; but a client may be ahead of the copy by what is still under way to it, and of a
        run whose gateway died by what never came."""
        ahead = not self.finished or self.died
        check_position(self.log, min(after, self.log.last) if ahead and after - self.log.last <= AHEAD else after)

    async def wait(self) -> Event:
        """As `Run.wait`; RequestError("unavailable") if the run cannot be followed to its end."""
        # Counted so that the copy is followed on; the run is not told, since waiting for its end is not reading it.
        self._readers += 1
        try:
            await self.done.wait()
        finally:
            self._readers -= 1
        if self.terminal is None:
            raise RequestError("unavailable", "The run cannot be followed from here any more.", retry_after=1.0)
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
        # Its own gateway has let go of a run that ended, and would not answer.
        if self.finished:
            return False
        answer = await self._ask(self, action, changes or {})
        self.paused = bool(answer.get("paused"))
        return bool(answer["done"])

    # ---- following --------------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[tuple[int, Event]]) -> None:
        """Take what came; events that were seen are passed over, a gap cuts."""
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
            self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, TERMINAL):
            self.terminal = event
        self.log.append(event)
        if self.finished:
            self.log.close()
            self.done.set()

    def moved(self, place: RunPlace) -> None:
        """It goes on at another gateway."""
        self.place, self.is_resumed = place, True
        if self._readers and not self.finished:
            self._present(self, True)

    def cut(self, why: str) -> None:
        """End every reader here; the run itself may well go on."""
        if not self.done.is_set():
            metadata = as_metadata(ErrorMetadata(retryable=True, next_event=self.log.last + 1))
            self._cut = RunError(
                message=f"{why} Read on from event {self.log.last + 1}.", code="connection", metadata=metadata
            )
            self.log.close()
            self.done.set()

    def last_word(self, after: int) -> Event | None:
        """What ends the stream of a reader from `after` on that was given no terminal event; None if it has that."""
        return self.terminal if after > self.log.last or self.died else self._cut

    def _leave(self) -> None:
        self._readers -= 1
        self.touched = time.monotonic()
        if not self._readers and not self.finished:
            self._present(self, False)


class RemoteReader(ItemReader):
    """A reader of the copy. Its stream ends with a terminal event or, after a cut, with the run's last word."""

    def __init__(self, run: RemoteRun, after: int, inner: LogReader) -> None:
        self._run = run
        self._after = after
        self._inner = inner
        self._ended = False

    def ready(self) -> tuple[int, Event] | None:
        """At the end of the copy the last word, if there is one."""
        item = None if self._ended else self._inner.ready()
        if item is None and not self._ended and self._inner.over:
            self._ended = True
            word = self._run.last_word(self._after)
            return None if word is None else (max(self._run.log.last, self._after), word)
        if item is not None:
            self._ended = isinstance(item[1], TERMINAL)
        return item

    def arrival(self) -> asyncio.Future[None] | None:
        return None if self._ended else self._inner.arrival()

    async def aclose(self) -> None:
        self._ended = True
        await self._inner.aclose()


ENTRIES = 64
"""Stream entries of one run taken in one step, so that a long one does not hold up the others."""


class Follower:
    """`runs`: the copies kept here, by tenant and id."""

    def __init__(self, link: RedisLink, keys: RedisKeys, limits: SharingLimits) -> None:
        self._link = link
        self._keys = keys
        self._limits = limits
        self._wanted = asyncio.Event()
        self._silent: dict[tuple[str, str], int] = {}
        self.runs: dict[tuple[str, str], RemoteRun] = {}

    async def add(self, run: RemoteRun) -> RemoteRun:
        """Catch up with a run and follow it; the copy to use, which is an earlier one where there is one. Unreachable
        if Redis does not answer."""
        # Read to the end before it is followed with the others, so that a long past does not delay their present.
        while not run.done.is_set() and (entries := await self._link.call(*self._read(run))):
            self._feed(run, entries)
        return run if run.done.is_set() else self.keep(run)

    def keep(self, run: RemoteRun) -> RemoteRun:
        """Follow a copy from where it is."""
        known = self.runs.get(run.key)
        # One copy for all readers here, unless the id names another run by now.
        if known is None or known.place != run.place or known.done.is_set():
            known = self.runs[run.key] = run
            self._wanted.set()
        return known

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self.follow()
            except Unreachable:
                # A shorter outage is waited out; after the time of a lease readers are told.
                if self._link.down_for > self._limits.lease:
                    self.cut_all("The servers cannot reach each other.")
            await asyncio.sleep(self._limits.tick)

    async def follow(self) -> None:
        """One step for every copy."""
        # A copy without readers is dropped; the next reader makes a new one.
        self.runs = {key: run for key, run in self.runs.items() if not (run.done.is_set() or run.idle)}
        if not self.runs:
            self._wanted.clear()
            return
        by_stream = {self._keys.events(run.place).encode(): run for run in self.runs.values()}
        ids = [entry_id(run.log.last) for run in by_stream.values()]
        for stream, entries in await self._link.call("XREAD", "COUNT", ENTRIES, "STREAMS", *by_stream, *ids) or ():
            self._feed(by_stream[stream], entries)

    async def look(self) -> None:
        """Cut the copies of runs that are kept no longer, or whose end was lost."""
        runs = [run for run in self.runs.values() if not run.done.is_set()]
        asked = [("HMGET", self._keys.record(*run.key), "instance", "ended", "entry") for run in runs]
        for run, (instance, ended, entry) in zip(runs, await self._link.all(asked) if asked else (), strict=True):
            if instance is not None and instance.decode() == run.place.instance:
                # Another gateway goes on with the run: its readers here read on, and count there.
                place = place_of(entry)
                if place != run.place:
                    run.moved(place)
            gone = instance is None or instance.decode() != run.place.instance or ended is not None
            self._silent[run.key] = self._silent.get(run.key, 0) + 1 if gone else 0
            if self._silent[run.key] > 1:  # twice in a row: its last events had the time to come
                run.cut("The run's events are not kept any more.")
        self._silent = {key: count for key, count in self._silent.items() if key in self.runs}

    def cut_all(self, why: str) -> None:
        for run in self.runs.values():
            run.cut(why)
        self.runs = {}

    def _read(self, run: RemoteRun) -> tuple[object, ...]:
        return ("XRANGE", self._keys.events(run.place), "(" + entry_id(run.log.last), "+", "COUNT", ENTRIES)

    @staticmethod
    def _feed(run: RemoteRun, entries: Any) -> None:
        try:
            run.feed(opened(entries))
        except (DecodeError, KeyError, ValueError):
            run.cut("The run's events cannot be read; its server may have another version.")
