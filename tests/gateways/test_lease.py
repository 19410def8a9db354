"""The lease of a gateway whose event loop does not turn."""

from __future__ import annotations

import asyncio
import secrets
import time

from redis import Redis

from agent_server.runs.sharing import Gateway
from agent_server.runs.sharing.streams import RedisKeys
from agent_server.settings import SharingLimits
from tests.gateways.redis_server import RedisServer
from tests.runs.agents import manager_of, say

LEASE = 1.0


def blocked_until(redis: Redis, key: str, lives: bool, seconds: float) -> bool:
    """Keep the event loop from turning for these seconds, or until the lease is as it should be at last."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(LEASE / 10)
        if bool(redis.exists(key)) is not lives:
            return False
    return True


async def test_a_lease_outlives_a_loop_that_is_busy_and_not_one_that_hangs(redis: RedisServer):
    limits = SharingLimits(redis_url=redis.url, redis_prefix=secrets.token_hex(4), lease=LEASE)
    gateway = Gateway(limits)
    manager = manager_of(say)
    key = RedisKeys(limits.redis_prefix).lease(gateway.id)
    with Redis.from_url(redis.url, protocol=2) as client:
        await gateway.open(manager)
        try:
            assert blocked_until(client, key, True, 3 * LEASE), "it counted as dead while its process lived"
            await asyncio.sleep(LEASE)
            assert client.exists(key)
            # A loop that hangs is noticed: its lease ends some time behind the bound.
            assert not blocked_until(client, key, True, 60.0)
        finally:
            await gateway.close()
    await manager.close(drain=0.0)
