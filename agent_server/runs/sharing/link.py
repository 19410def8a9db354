"""The connection to Redis and whether it answers. Every fault is raised as RedisUnreachable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

log = logging.getLogger("agent_server.sharing")
CONNECTIONS = 16
SECONDS: Final = 5.0
"""How long one command may take."""


class RedisUnreachable(Exception):
    """A Redis command failed: no connection, no answer in time, or an error such as out of memory."""


class RedisLink:
    """A pool of connections. `up` says whether the last command succeeded; while it is False only `probe` sends.

    url: `redis://`, `rediss://` (TLS) or `unix://`, with user, password and database number in it. Raises ValueError
    for another scheme.
    """

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            protocol=2,
            max_connections=CONNECTIONS,
            timeout=SECONDS,
            socket_timeout=None,  # `_do` has the timeout: the client's own sometimes swallows a cancellation
            socket_connect_timeout=SECONDS,
            driver_info=None,  # finding the client's version reads files
            retry=Retry(NoBackoff(), 0),
        )
        self._pool = pool
        self._client: Redis = Redis(connection_pool=pool)
        self._since = time.monotonic()
        self.up = False

    @property
    def down_for(self) -> float:
        """Seconds since it stopped answering; 0 while it answers."""
        return 0.0 if self.up else time.monotonic() - self._since

    async def probe(self) -> None:
        """Check whether Redis answers, also while `up` is False."""
        await self._do(self._send("PING"))
        if not self.up:
            self.up = True
            log.info("Redis answers. Runs are shared.")

    async def call(self, *command: Any) -> Any:
        """Execute one command and return Redis's raw answer."""
        self._check()
        return await self._do(self._send(*command))

    async def all(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send several commands together, not as a transaction, and return their answers."""
        self._check()
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return list(await self._do(pipeline.execute()))

    def script(self, source: str) -> Callable[[Sequence[str], Sequence[object]], Awaitable[Any]]:
        """Register a Lua script. Return a function of its keys and arguments."""
        registered = self._client.register_script(source)

        async def run(keys: Sequence[str], args: Sequence[Any]) -> Any:
            self._check()
            return await self._do(registered(keys=list(keys), args=list(args)))

        return run

    async def close(self) -> None:
        """Close the connections. Later commands raise RedisUnreachable."""
        self.up = False
        await self._client.aclose()
        await self._pool.disconnect()

    def _check(self) -> None:
        if not self.up:
            raise RedisUnreachable("not connected")

    def _send(self, *command: object) -> Awaitable[object]:
        sent: Awaitable[object] = self._client.execute_command(*command)  # type: ignore[no-untyped-call]
        return sent

    async def _do(self, work: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(SECONDS):
                return await work
        except (RedisError, OSError, asyncio.TimeoutError) as error:  # noqa: UP041 - the pool raises either
            if self.up:
                log.warning("Redis does not answer (%s). Runs continue here and are shared again when it does.", error)
                self.up, self._since = False, time.monotonic()
            raise RedisUnreachable(str(error)) from error
