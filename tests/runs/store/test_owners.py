"""Whether a server lives, asked by several at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from agent_server.runs.store import Store
from agent_server.runs.store.connections import Connections, with_driver
from agent_server.runs.store.database import make_owners
from agent_server.runs.store.owners import Owners, new_owner

ASKED = 24


@contextlib.asynccontextmanager
async def asking(url: str) -> AsyncIterator[Owners]:
    connections = Connections(with_driver(url))
    try:
        yield make_owners(connections)
    finally:
        await asyncio.sleep(0.05)  # a connection that was just given back
        await connections.dispose()


async def test_a_dead_server_is_dead_to_all_who_ask_at_once(url: str):
    """As gateways do that find one dead at the same moment, while a run on its thread begins."""
    store = Store(url)
    await store.open()  # makes the file
    async with asking(url) as one, asking(url) as other:
        answers = []
        for _ in range(5):
            dead = new_owner()
            await one.claim(dead)
            await one.release()
            answers += await asyncio.gather(*((one, other)[n % 2].alive(dead) for n in range(ASKED)))
        lives = await asyncio.gather(*((one, other)[n % 2].alive(store.owner) for n in range(ASKED)))
    await store.close()
    assert not any(answers) and all(lives)
