"""Renews a gateway's lease from a thread, so that a busy event loop does not make it count as dead."""

from __future__ import annotations

import asyncio
import logging
import threading
import time

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from agent_server.settings import SharingLimits

log = logging.getLogger("agent_server.sharing")


class LeaseRenewal:
    """A thread with a connection of its own. It only prolongs a lease that there is: one that lapsed is taken anew by
    the gateway, which must enter its runs again. It stops while the event loop has not turned for `loop_patience`
    seconds, since a loop that hangs for ever has to be noticed."""

    def __init__(self, key: str, limits: SharingLimits) -> None:
        self._key = key
        self._limits = limits
        self._stop = threading.Event()
        self._turned = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, with the running loop as the one to watch."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="gateway lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    async def close(self) -> None:
        """Stop, and wait until the thread has ended."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        limits = self._limits
        client = Redis.from_url(
            limits.redis_url,
            protocol=2,
            # An answer that is later than this one has to be is of no use: it is asked for again.
            socket_timeout=limits.lease,
            socket_connect_timeout=limits.lease,
            retry=Retry(NoBackoff(), 0),
        )
        with client:
            while not self._stop.wait(limits.beat):
                try:
                    loop.call_soon_threadsafe(self._note_turn)
                except RuntimeError:  # the loop was closed
                    return
                if time.monotonic() - self._turned <= limits.loop_patience:
                    self._prolong(client)

    def _note_turn(self) -> None:
        self._turned = time.monotonic()

    def _prolong(self, client: Redis) -> None:
        try:
            client.pexpire(self._key, int(self._limits.lease * 1000))
        except (RedisError, OSError) as error:  # the gateway's own commands report it
            log.debug("the lease was not renewed: %s", error)
