"""Publish the events of this gateway's runs to Redis, all runs together, about forty times a second.

Nothing waits for the publisher: a run appends to its own bounded log, which is the queue. Events that the log drops
before they are published are a gap, which readers on other gateways are informed of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from agent_server.runs.sharing.link import RedisLink, RedisUnreachable
from agent_server.runs.sharing.streams import APPEND, LEAVE, RedisKeys, RunPlace, StreamEntry, cut, entry_id
from agent_server.settings import SharingLimits

if TYPE_CHECKING:
    from agent_server.runs.run import Run


class SharedRun:
    """A run of this gateway and its state in Redis.

    registered: Redis has the run. entered: set when the attempt to register it is over. may_begin: set when it is its
    turn on its thread. sent: the number of the last event that Redis has. resumed: another gateway had the run, and
    this one has not replaced it in Redis yet.
    """

    def __init__(self, run: Run, place: RunPlace, *, resumed: bool = False) -> None:
        self.run = run
        self.place = place
        self.resumed = resumed
        self.registered = False
        self.has_ended = False
        self.sent = 0
        self.paused = False
        self.entered = asyncio.Event()
        self.may_begin = asyncio.Event()
        self._remote_readers: dict[str, Callable[[], None]] = {}  # by gateway: what to call when they have left
        self._entries: deque[tuple[int, int]] = deque()  # number of the last event and bytes of each entry in Redis
        self._entry_bytes = 0

    @property
    def behind(self) -> bool:
        """Whether there are events to send."""
        return self.registered and self.run.log.last > self.sent

    @property
    def over(self) -> bool:
        """Whether the run has ended and all its events were sent."""
        return self.has_ended and self.registered and self.run.log.last == self.sent

    def accepted(self, before: int, sent: int) -> None:
        """Note that Redis has the run. before: how many runs are queued before it on its thread. sent: the number of
        its last event in Redis."""
        # Registering may be repeated after an answer was lost; then Redis already has some of the events.
        self.registered, self.sent = True, min(sent, self.run.log.last)
        self.entered.set()
        if before == 0:
            self.may_begin.set()

    def replaces(self, sent: int) -> None:
        """Note that the stream has `sent` events of the former gateway, which count towards the stream's limit."""
        if sent:
            self._entries.append((1, self.run.log.bytes))
            self._entry_bytes += self.run.log.bytes

    def unshare(self) -> None:
        """Let the run continue without being shared."""
        self.registered = False
        self.entered.set()
        self.may_begin.set()

    def oldest(self, entry: StreamEntry, limit: int) -> int:
        """Return the number of the oldest entry that Redis should keep with this one, to stay within `limit` bytes."""
        if not self._entries or self._entries[-1][0] < entry.last:
            self._entries.append((entry.last, len(entry.data)))
            self._entry_bytes += len(entry.data)
        # The newest entry is kept even if it is larger than the limit, or readers would find nothing.
        while len(self._entries) > 1 and self._entry_bytes > limit:
            self._entry_bytes -= self._entries.popleft()[1]
        return self._entries[0][0]

    def hold(self, gateway: str) -> None:
        """Count the readers at another gateway as a reader of the run."""
        if gateway not in self._remote_readers and not self.run.finished:
            self._remote_readers[gateway] = self.run.hold()

    def release(self, gateway: str) -> None:
        if (on_left := self._remote_readers.pop(gateway, None)) is not None:
            on_left()


log = logging.getLogger("agent_server.sharing")
RETRY_SECONDS = 0.5
"""Between attempts while Redis does not answer."""


class Publisher:
    """Publishes events of runs. runs: this gateway's, by tenant and id. on_lapsed: called when this gateway's lease has
    expired in Redis."""

    def __init__(
        self,
        link: RedisLink,
        keys: RedisKeys,
        gateway: str,
        runs: dict[tuple[str, str], SharedRun],
        limits: SharingLimits,
        on_lapsed: Callable[[], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._runs = runs
        self._limits = limits
        self._on_lapsed = on_lapsed
        self._append = link.script(APPEND)
        self._leave = link.script(LEAVE)
        self._outbox: list[tuple[object, ...]] = []
        self._hurry = asyncio.Event()
        self.sent_events = 0

    def hurry(self) -> None:
        """Publish at once, without waiting for the next tick."""
        self._hurry.set()

    def send(self, *command: object) -> None:
        """Queue a command whose answer is not needed. While Redis does not answer, the oldest commands are dropped."""
        self._outbox.append(command)
        del self._outbox[: -self._limits.commands]
        self.hurry()

    async def run(self) -> None:
        while True:
            self._hurry.clear()  # before publishing, so that requests made meanwhile are not lost
            try:
                await self.publish()
                pause = self._limits.tick if self._runs else None
            except RedisUnreachable:
                pause = RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()

    async def publish(self) -> None:
        """Send all events and queued commands, in as many rounds as needed. Raises RedisUnreachable."""
        while await self._publish_round():
            pass
        # After its events, so that a run leaves its thread's queue only when readers elsewhere can see its end.
        for shared in [each for each in self._runs.values() if each.over]:
            await self.leave(shared.place)
            if self._runs.get(shared.run.key) is shared:
                del self._runs[shared.run.key]
        for shared in self._runs.values():
            if shared.registered and shared.run.paused != shared.paused:
                shared.paused = shared.run.paused
                key = self._keys.record(shared.place.tenant, shared.place.run_id)
                self._outbox.append(("HSET", key, "paused", int(shared.paused)))
        if not self._outbox:
            return
        sending, self._outbox = self._outbox, []
        try:
            await self._link.all(sending)
        except RedisUnreachable:
            # Back to the front, in their order; the oldest are dropped, as in `send`.
            self._outbox = [*sending, *self._outbox][-self._limits.commands :]
            raise

    async def _publish_round(self) -> bool:
        """Publish one round of entries. Return whether there may be more."""
        entries: list[tuple[SharedRun, StreamEntry]] = []
        size = 0
        for shared in self._runs.values():
            if shared.behind and (entry := cut(shared.run.log, shared.sent, self._limits)) is not None:
                entries.append((shared, entry))
                size += len(entry.data)
                if size > self._limits.round:
                    break
        if not entries:
            return False
        keys, args = [self._keys.lease(self._gateway)], list[object]()
        for shared, entry in entries:
            place = shared.place
            keys += [self._keys.events(place), self._keys.record(place.tenant, place.run_id)]
            oldest = entry_id(shared.oldest(entry, self._limits.bytes))
            seconds = int(self._limits.run + self._limits.replay)
            args += [entry_id(entry.last), oldest, entry.first, entry.data, seconds, place.entry]
        moved = await self._append(keys, args)
        # The script writes nothing without a lease, so nothing of this round was sent: others may have ended the runs.
        if moved == b"lapsed":
            self._on_lapsed()
            return False
        for number, (shared, entry) in enumerate(entries):
            if number in moved:  # another gateway has resumed the run
                shared.unshare()
                shared.run.stop("superseded")
                continue
            shared.sent = entry.last
            self.sent_events += entry.last - entry.first + 1
        return True

    async def leave(self, place: RunPlace) -> None:
        """Remove a run from its thread's queue; its events stay for the replay."""
        keys = [
            self._keys.runs(place.gateway),
            self._keys.record(place.tenant, place.run_id),
            self._keys.thread(place.tenant, place.thread_id),
            self._keys.events(place),
        ]
        seconds = max(1, int(self._limits.replay))
        await self._leave(keys, [place.entry, place.instance, seconds, self._keys.control_base])
