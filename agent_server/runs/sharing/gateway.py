"""One of several gateways that share a Redis: the implementation of `Sharing`.

Four tasks: the publisher and the follower transfer events, the commands task sends and executes commands, and the
heartbeat takes this gateway's lease and detects dead gateways. A thread renews the lease (see `lease`). An outage of
Redis stops no run: runs continue here and are registered again afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

import msgspec

from adapters.errors import RequestError
from agent_server.runs.sharing.control import GatewayCommands
from agent_server.runs.sharing.interfaces import Successor
from agent_server.runs.sharing.lease import LeaseRenewal, Reaper
from agent_server.runs.sharing.link import RedisLink, RedisUnreachable
from agent_server.runs.sharing.publisher import Publisher, SharedRun
from agent_server.runs.sharing.remote import Follower, RemoteRun, record_of
from agent_server.runs.sharing.streams import ENTER, RESUME, RedisKeys, RunPlace, number_of, place_of
from agent_server.settings import LogLimits, SharingLimits

if TYPE_CHECKING:
    from agent_server.runs.run import Run

log = logging.getLogger("agent_server.sharing")
LOOK_SECONDS = 1.0
GOODBYE_SECONDS = 3.0


class Gateway:
    """See `Sharing`. logs: bounds for the copy of another gateway's run."""

    def __init__(self, limits: SharingLimits, logs: LogLimits | None = None) -> None:
        self.id = secrets.token_hex(8)
        self.limits = limits
        self.link = RedisLink(limits.redis_url)
        self._logs = logs or LogLimits()
        self._keys = keys = RedisKeys(limits.redis_prefix)
        self._runs: dict[tuple[str, str], SharedRun] = {}
        self._ended: dict[tuple[str, str], RunPlace] = {}
        self._joined = self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._beat = asyncio.Event()
        self._enter = self.link.script(ENTER)
        self._resume = self.link.script(RESUME)
        self._publisher = Publisher(self.link, keys, self.id, self._runs, self.limits, self._replace_lease)
        self._follower = Follower(self.link, keys, self.limits)
        self._commands = GatewayCommands(self.link, keys, self.id, self._runs, self.limits, self._publisher)
        self._reaper = Reaper(self.link, keys, self.id, self.limits)
        self._renewal = LeaseRenewal(keys.lease(self.id), self.limits)

    async def open(self, successor: Successor) -> None:
        self._reaper.successor = successor
        try:
            await self._renew()
        except RedisUnreachable as error:
            log.warning("Redis does not answer (%s). Runs are not shared until it does.", error)
        self._renewal.start()
        loops = (self._heartbeat(), self._publisher.run(), self._follower.run(), self._commands.run())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        self._tasks[0].add_done_callback(lambda _: self._renewal.stop())  # no lease without the heartbeat

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._renewal.close()
        self._follower.cut_all("This server is stopping.")
        with contextlib.suppress(RedisUnreachable, TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self._publisher.publish()
                mine = (self._keys.lease(self.id), self._keys.runs(self.id), self._keys.control(self.id))
                if not self._runs:  # otherwise the other gateways end or resume the unfinished runs
                    await self.link.all([("SREM", self._keys.gateways, self.id), ("UNLINK", *mine)])
                else:
                    await self.link.call("UNLINK", mine[0])
        await self.link.close()

    # ---- this gateway's runs ----------------------------------------------------------------------------------------

    async def enter(self, run: Run, earlier: Sequence[Run], queued: int, *, resumed: bool = False) -> None:
        place = RunPlace(self.id, run.tenant, run.id, run.thread_id, secrets.token_hex(6))
        shared = self._runs[run.key] = SharedRun(run, place, resumed=resumed)
        try:
            # A thread's runs enter one after another, so that Redis has them in the same order.
            for before in earlier:
                if (other := self._runs.get(before.key)) is not None and other.run is before:
                    await other.entered.wait()
            await self._register(shared, queued, again=resumed)
        except RequestError:
            del self._runs[run.key]
            raise
        except RedisUnreachable:
            shared.unshare()
        except asyncio.CancelledError:
            shared.registered = True  # Redis may have it already, so it must be removed there
            raise
        finally:
            shared.entered.set()
        self._publisher.hurry()

    async def _replace(self, shared: SharedRun) -> bool:
        """Register this gateway for a run that another one had: in its place in the thread's queue, with its stream
        continued. Return False if Redis no longer has the run, so that it must be entered as a new one."""
        run = shared.run
        record = await self.link.call("HGETALL", self._keys.record(run.tenant, run.id))
        shared.resumed = bool(record) and b"ended" not in record
        if not shared.resumed:
            return False
        former = place_of(record[b"entry"])
        place = msgspec.structs.replace(shared.place, instance=former.instance)
        keys = [
            self._keys.lease(self.id), self._keys.runs(self.id), self._keys.runs(former.gateway),
            self._keys.record(run.tenant, run.id), self._keys.thread(run.tenant, run.thread_id),
            self._keys.events(place),
        ]  # fmt: skip
        seconds = int(self.limits.run + self.limits.replay)
        # The store has made this gateway the owner, so the former one may no longer write, even if it is alive.
        answer = await self._resume(keys, [former.entry, place.entry, former.instance, seconds, run.owner])
        if answer[0] == b"ok":
            shared.place, shared.resumed = place, False
            shared.replaces(number_of(answer[2]))
            shared.accepted(answer[1], number_of(answer[2]))
        else:  # retried when this gateway has its lease again
            self._replace_lease()
            shared.unshare()
        return True

    async def _register(self, shared: SharedRun, queued: int, *, again: bool = False, patient: bool = True) -> None:
        """Register a run in Redis. again: it is already running here, so it is refused only if it was declared dead.
        patient: retry once if the thread is busy."""
        if shared.resumed and await self._replace(shared):
            return
        place = shared.place
        keys = [
            self._keys.lease(self.id),
            self._keys.runs(self.id),
            self._keys.record(place.tenant, place.run_id),
            self._keys.thread(place.tenant, place.thread_id),
            self._keys.events(place),
        ]
        record = {"entry": place.entry, **record_of(shared.run)}
        fields = [part for pair in record.items() for part in pair]
        seconds = int(self.limits.run + self.limits.replay)
        answer = await self._enter(keys, [place.entry, queued, seconds, place.instance, int(again), *fields])
        match answer:
            case [b"ok", before, tail]:
                shared.accepted(before, number_of(tail))
            case [b"lapsed"]:
                self._replace_lease()
                shared.unshare()
            case _ if again:
                log.warning("A run was declared dead while Redis was unreachable. It continues here, unshared.")
                shared.unshare()
            case [b"busy"] if patient:  # the run before it may have ended just now
                await asyncio.sleep(2 * self.limits.tick)
                await self._register(shared, queued, patient=False)
            case [b"taken"]:
                raise RequestError("conflict", "A run with this id is going on.", "runId")
            case _:
                raise RequestError("conflict", "This thread has a run going on.", "threadId", retry_after=1.0)

    async def before(self, run: Run) -> list[str]:
        shared = self._runs.get(run.key)
        if shared is None or shared.may_begin.is_set():
            return []
        queue = await self.elsewhere(run.thread_id, run.tenant)
        earlier = takewhile(lambda each: each[0] != run.id, queue)
        return [run_id for run_id, elsewhere in earlier if elsewhere]

    async def turn(self, run: Run) -> None:
        shared = self._runs.get(run.key)
        while shared is not None and not shared.may_begin.is_set() and self.link.down_for < self.limits.lease:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await shared.may_begin.wait()

    def leave(self, run: Run) -> None:
        shared = self._runs.get(run.key)
        if shared is None or shared.run is not run:
            return
        shared.has_ended = True
        if shared.registered:
            self._ended[run.key] = shared.place
            self._publisher.hurry()
        elif self.link.up:
            del self._runs[run.key]

    def hand_over(self, run: Run) -> None:
        shared = self._runs.get(run.key)
        if shared is not None and shared.run is run and run.stopped_by == "superseded":
            del self._runs[run.key]

    def forget(self, run: Run) -> None:
        shared = self._runs.get(run.key)
        if shared is not None and shared.run is run:
            del self._runs[run.key]
        if (place := self._ended.pop(run.key, None)) is not None:
            self._publisher.send("UNLINK", self._keys.events(place))

    # ---- the runs of others -----------------------------------------------------------------------------------------

    async def find(self, run_id: str, tenant: str, own: Run | None) -> RemoteRun | None:
        try:
            answer = await self.link.call("HGETALL", self._keys.record(tenant, run_id))
            record: Mapping[bytes, bytes] = answer
            if not record:
                return None
            place = place_of(record[b"entry"])
            if place.gateway == self.id:
                return None
            copy = self._follower.runs.get((tenant, run_id))
            if copy is not None and copy.place == place and not copy.done.is_set():
                return copy
            run = RemoteRun(place, record, self._logs, ask=self._ask, on_presence=self._on_presence)
            run = await self._follower.add(run)
            return None if b"ended" in record and run.log.last == 0 else run
        except RedisUnreachable:
            if own is not None:
                return None
            raise RequestError("unavailable", "The servers cannot reach each other now.", retry_after=1.0) from None

    async def elsewhere(self, thread_id: str, tenant: str) -> list[tuple[str, bool]]:
        try:
            entries = await self.link.call("LRANGE", self._keys.thread(tenant, thread_id), 0, -1)
        except RedisUnreachable:
            return []
        return [(place.run_id, place.gateway != self.id) for place in map(place_of, entries)]

    async def _ask(self, run: RemoteRun, action: str, changes: dict[str, object]) -> Mapping[str, object]:
        if not self.link.up:
            raise RequestError("unavailable", "The servers cannot reach each other now.", retry_after=1.0)
        return await self._commands.ask(run.place, action, changes)

    def _on_presence(self, run: RemoteRun, reading: bool) -> None:
        self._commands.send_command(run.place, "hold" if reading else "release")
        if reading:
            self._follower.keep(run)

    # ---- the heartbeat ----------------------------------------------------------------------------------------------

    async def _heartbeat(self) -> None:
        last_check = 0.0
        while True:
            self._beat.clear()
            try:
                await self._renew()
                if (now := asyncio.get_running_loop().time()) - last_check > min(LOOK_SECONDS, self.limits.beat):
                    last_check = now
                    # Let runs begin whose turn has come, in case the command that says so was lost.
                    waiting = [each for each in self._runs.values() if each.registered and not each.may_begin.is_set()]
                    threads = [self._keys.thread(each.place.tenant, each.place.thread_id) for each in waiting]
                    heads = await self.link.all([("LINDEX", thread, 0) for thread in threads]) if threads else ()
                    for shared, head in zip(waiting, heads, strict=True):
                        if head == shared.place.entry:
                            shared.may_begin.set()
                    await self._follower.look()
                    dead = await self._reaper.wind_up_dead()
                    for gateway in dead:
                        for shared in self._runs.values():
                            shared.release(gateway)
            except RedisUnreachable:
                self._joined = False
            except Exception:
                log.exception("Sharing runs failed inside the server.")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_SECONDS, self.limits.beat)):
                    await self._beat.wait()

    def _replace_lease(self) -> None:
        """Take a new lease at once, because Redis considers this gateway dead."""
        self._joined = False
        self._beat.set()

    async def _renew(self) -> None:
        if not self.link.up:
            await self.link.probe()
            self._joined = False
        milliseconds = int(self.limits.lease * 1000)
        if self._joined and await self.link.call("PEXPIRE", self._keys.lease(self.id), milliseconds):
            return
        await self.link.call("SET", self._keys.lease(self.id), 1, "PX", milliseconds)
        await self.link.call("SADD", self._keys.gateways, self.id)
        # Register the active runs again, and remove those that Redis has but this gateway does not.
        for shared in list(self._runs.values()):
            await self._register(shared, 0, again=True)
        for entry in await self.link.call("SMEMBERS", self._keys.runs(self.id)):
            place = place_of(entry)
            local_run = self._runs.get((place.tenant, place.run_id))
            if local_run is None or local_run.place != place:
                await self._publisher.leave(place)
        self._publisher.hurry()
        self._joined = True

    def metrics(self) -> dict[str, float]:
        """Return the values for the metrics page."""
        return {
            "redis_up": float(self.link.up),
            "shared_runs": len(self._runs),
            "followed_runs": len(self._follower.runs),
            "shared_events": self._publisher.sent_events,
        }
