"""Gateway leases: renewal from a thread, and the end of runs whose gateway's lease has expired.

The renewal thread prevents a busy event loop from looking like a dead gateway. When a gateway is dead, its runs are
resumed elsewhere or ended, so that every stream has an end and every thread its next turn.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from adapters.errors import RequestError
from agent_server.runs.broken_streams import closing_events
from agent_server.runs.sharing.interfaces import Successor
from agent_server.runs.sharing.link import RedisLink
from agent_server.runs.sharing.streams import (
    END_DEAD,
    RawEntry,
    RedisKeys,
    RunPlace,
    entry_id,
    number_of,
    opened,
    place_of,
)
from agent_server.settings import SharingLimits
from events.encode import encode

log = logging.getLogger("agent_server.sharing")


class LeaseRenewal:
    """A thread, with its own connection, that renews the gateway's lease.

    It only extends an existing lease; an expired one is taken again by the gateway, which must register its runs anew.
    It pauses while the event loop has been blocked for `loop_patience` seconds, so that a hanging gateway is detected.
    """

    def __init__(self, key: str, limits: SharingLimits) -> None:
        self._key = key
        self._limits = limits
        self._stop = threading.Event()
        self._turned = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start renewing. The running event loop is the one that is monitored."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="gateway lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    async def close(self) -> None:
        """Stop, and wait for the thread to end."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self._limits
        client = Redis.from_url(
            limits.redis_url,
            protocol=2,
            # An answer after the lease has expired is useless.
            socket_timeout=limits.lease,
            socket_connect_timeout=limits.lease,
            retry=Retry(NoBackoff(), 0),
        )

        def note_turn() -> None:
            self._turned = time.monotonic()

        with client:
            while not self._stop.wait(limits.beat):
                try:
                    loop.call_soon_threadsafe(note_turn)
                except RuntimeError:  # the loop was closed
                    return
                if time.monotonic() - self._turned <= limits.loop_patience:
                    try:
                        client.pexpire(self._key, int(self._limits.lease * 1000))
                    except (RedisError, OSError) as error:  # the gateway's own commands report it
                        log.debug("The lease was not renewed: %s", error)


ATTEMPTS = 5


class Reaper:
    """Takes over or ends the runs of dead gateways. Every gateway has one; several may work at once."""

    def __init__(self, link: RedisLink, keys: RedisKeys, gateway: str, limits: SharingLimits) -> None:
        self.successor: Successor | None = None
        self._link = link
        self._keys = keys
        self._gateway = gateway
        self._limits = limits
        self._end_dead = link.script(END_DEAD)

    async def wind_up_dead(self) -> list[str]:
        """Wind up dead gateways. Return their ids."""
        gateways = [each.decode() for each in await self._link.call("SMEMBERS", self._keys.gateways)]
        # A gateway does not check its own lease here; the scripts report an expired one when it writes.
        others = [each for each in gateways if each != self._gateway]
        alive = await self._link.all([("EXISTS", self._keys.lease(each)) for each in others]) if others else []
        dead = [each for each, lives in zip(others, alive, strict=True) if not lives]
        return [gateway for gateway in dead if await self._wind_up(gateway)]

    async def _wind_up(self, gateway: str) -> bool:
        """Resume or end the runs of a gateway. Return False if it turns out to be alive."""
        resumed = 0
        entries = await self._link.call("SMEMBERS", self._keys.runs(gateway))
        for entry in entries:
            place = place_of(entry)
            owner = await self._link.call("HGET", self._keys.record(place.tenant, place.run_id), "owner")
            if self.successor is not None and owner:
                try:
                    if await self.successor.resume_dead(place.tenant, place.run_id, place.thread_id, int(owner)):
                        resumed += 1
                        continue
                except RequestError as error:
                    log.warning("A run of a dead gateway could not be resumed: %s", error.message)
            if not await self._end(place):  # the gateway is alive again and keeps its runs
                return False
        log.warning("A gateway died. %d of its %d runs were resumed.", resumed, len(entries))
        await self._link.all(
            [
                ("SREM", self._keys.gateways, gateway),
                ("UNLINK", self._keys.runs(gateway), self._keys.control(gateway)),
            ]
        )
        return True

    async def _end(self, place: RunPlace) -> bool:
        for _ in range(ATTEMPTS):
            stream = self._keys.events(place)
            entries: list[RawEntry] = await self._link.call("XRANGE", stream, "-", "+")
            last = number_of(entries[-1][0]) if entries else 0
            try:
                ended = [] if self.successor is None else await self.successor.ended_events(place.tenant, place.run_id)
            except RequestError:
                ended = []
            # The stored ending, or else the ends of open items and a report of the failure.
            events = ended[last:] if ended else closing_events(opened(entries), place.thread_id, place.run_id)
            keys = [
                self._keys.lease(place.gateway),
                self._keys.runs(place.gateway),
                self._keys.record(place.tenant, place.run_id),
                self._keys.thread(place.tenant, place.thread_id),
                stream,
            ]
            args = [
                place.entry, place.instance, max(1, int(self._limits.replay)), self._keys.control_base, entry_id(last),
                entry_id(last + len(events)), last + 1, b"\n".join(map(encode, events)),
            ]  # fmt: skip
            answer: bytes = await self._end_dead(keys, args)
            # "moved": the stream grew after it was read, so the ending is made again.
            if answer != b"moved":
                return bool(answer == b"ended")
        return False
