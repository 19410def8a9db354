"""Publish the events of this gateway's runs to Redis, all of them together, about forty times a second.

Nothing waits for the publisher: a run appends to its own log, which is the queue and is bounded. What the log dropped
before Redis had it is a gap that readers on other gateways are told of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from agent_server.runs.sharing.link import RedisLink, Unreachable
from agent_server.runs.sharing.streams import APPEND, LEAVE, RedisKeys, RunPlace, StreamEntry, cut, entry_id
from agent_server.settings import SharingLimits

if TYPE_CHECKING:
    from agent_server.runs.run import Run


class Shared:
    """`known`: Redis has it. `entered`: whether it does was settled. `sent`: the last event that Redis has."""

    def __init__(self, run: Run, place: RunPlace, *, resumed: bool = False) -> None:
        """resumed: another gateway had it, and it is not in that one's place yet."""
        self.run = run
        self.place = place
        self.resumed = resumed
        self.known = False
        self.left = False
        self.sent = 0
        self.paused = False
        self.entered = asyncio.Event()
        self.may_begin = asyncio.Event()
        self._held: dict[str, Callable[[], None]] = {}
        self._kept: deque[tuple[int, int]] = deque()
        self._kept_bytes = 0

    @property
    def behind(self) -> bool:
        """Whether there is something to send."""
        return self.known and self.run.log.last > self.sent

    @property
    def over(self) -> bool:
        """It ended, and everything of it was sent."""
        return self.left and self.known and self.run.log.last == self.sent

    def accepted(self, before: int, sent: int) -> None:
        """Redis has it: `before` runs are before it on its thread, `sent` is the last event there."""
        # Entering may be repeated after an answer was lost; then Redis already has some of the events.
        self.known, self.sent = True, min(sent, self.run.log.last)
        self.entered.set()
        if before == 0:
            self.may_begin.set()

    def replaces(self, sent: int) -> None:
        """The stream has `sent` events of the gateway before, which are kept as this one's own would be."""
        if sent:
            self._kept.append((1, self.run.log.bytes))
            self._kept_bytes += self.run.log.bytes

    def alone(self) -> None:
        """It goes on unshared."""
        self.known = False
        self.entered.set()
        self.may_begin.set()

    def oldest(self, entry: StreamEntry, limit: int) -> int:
        """The number of the oldest entry that Redis is to keep with this one, so that they hold `limit` bytes."""
        if not self._kept or self._kept[-1][0] < entry.last:
            self._kept.append((entry.last, len(entry.data)))
            self._kept_bytes += len(entry.data)
        # The newest entry is kept even if it alone is larger, or readers would find nothing.
        while len(self._kept) > 1 and self._kept_bytes > limit:
            self._kept_bytes -= self._kept.popleft()[1]
        return self._kept[0][0]

    def hold(self, gateway: str) -> None:
        """A reader at another gateway counts like one here."""
        if gateway not in self._held and not self.run.finished:
            self._held[gateway] = self.run.hold()

    def release(self, gateway: str) -> None:
        if (held := self._held.pop(gateway, None)) is not None:
            held()


log = logging.getLogger("agent_server.sharing")
REST = 0.5
"""Seconds between attempts while Redis does not take anything."""


class Publisher:
    """`runs`: this gateway's, by tenant and id. `lapsed` is called when Redis counts this gateway as dead."""

    def __init__(
        self,
        link: RedisLink,
        keys: RedisKeys,
        gateway: str,
        runs: dict[tuple[str, str], Shared],
        limits: SharingLimits,
        lapsed: Callable[[], None],
    ) -> None:
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._runs = runs
        self._limits = limits
        self._lapsed = lapsed
        self._append = link.script(APPEND)
        self._leave = link.script(LEAVE)
        self._outbox: list[tuple[object, ...]] = []
        self._hurry = asyncio.Event()
        self.sent_events = 0

    def hurry(self) -> None:
        """Do not wait for the tick."""
        self._hurry.set()

    def send(self, *command: object) -> None:
        """A command whose answer is not needed, sent after what is being sent. The oldest give way while Redis takes
        none."""
        self._outbox.append(command)
        del self._outbox[: -self._limits.commands]
        self.hurry()

    async def run(self) -> None:
        while True:
            self._hurry.clear()  # before looking: what comes while this sends must not be forgotten
            try:
                await self.publish()
                rest = self._limits.tick if self._runs else None
            except Unreachable:
                rest = REST
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._hurry.wait()

    async def publish(self) -> None:
        """Everything there is to send, in as many rounds as it takes. Unreachable when Redis does not take it."""
        while await self._events():
            pass
        # After its events: a run leaves its thread's queue only when readers elsewhere can see its end.
        for shared in [each for each in self._runs.values() if each.over]:
            await self.leave(shared.place)
            if self._runs.get(shared.run.key) is shared:
                del self._runs[shared.run.key]
        self._note_pauses()
        if not self._outbox:
            return
        sending, self._outbox = self._outbox, []
        try:
            await self._link.all(sending)
        except Unreachable:
            # Back in front, in their order; the oldest give way, as in `send`.
            self._outbox = [*sending, *self._outbox][-self._limits.commands :]
            raise

    async def _events(self) -> bool:
        """One round; whether there may be more."""
        entries = self._round()
        if not entries:
            return False
        keys, args = [self._keys.lease(self._gateway)], list[object]()
        for shared, entry in entries:
            place = shared.place
            keys += [self._keys.events(place), self._keys.record(place.tenant, place.run_id)]
            args += self._arguments(shared, entry)
        moved = await self._append(keys, args)
        # The script writes nothing without a lease, so nothing of this round was sent: others may have ended the runs.
        if moved == b"lapsed":
            self._lapsed()
            return False
        for number, (shared, entry) in enumerate(entries):
            if number in moved:  # another gateway goes on with it
                shared.alone()
                shared.run.stop("superseded")
                continue
            shared.sent = entry.last
            self.sent_events += entry.last - entry.first + 1
        return True

    def _round(self) -> list[tuple[Shared, StreamEntry]]:
        entries, size = [], 0
        for shared in self._runs.values():
            if shared.behind and (entry := cut(shared.run.log, shared.sent, self._limits)) is not None:
                entries.append((shared, entry))
                size += len(entry.data)
                if size > self._limits.round:
                    break
        return entries

    def _arguments(self, shared: Shared, entry: StreamEntry) -> Iterable[Any]:
        oldest = entry_id(shared.oldest(entry, self._limits.bytes))
        seconds = int(self._limits.run + self._limits.replay)
        return entry_id(entry.last), oldest, entry.first, entry.data, seconds, shared.place.entry

    async def leave(self, place: RunPlace) -> None:
        """Take a run out of its thread's queue; its events are kept for the replay."""
        keys = [
            self._keys.runs(place.gateway),
            self._keys.record(place.tenant, place.run_id),
            self._keys.thread(place.tenant, place.thread_id),
            self._keys.events(place),
        ]
        seconds = max(1, int(self._limits.replay))
        await self._leave(keys, [place.entry, place.instance, seconds, self._keys.control_base])

    def _note_pauses(self) -> None:
        for shared in self._runs.values():
            if shared.known and shared.run.paused != shared.paused:
                shared.paused = shared.run.paused
                key = self._keys.record(shared.place.tenant, shared.place.run_id)
                self._outbox.append(("HSET", key, "paused", int(shared.paused)))
