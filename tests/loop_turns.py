"""How often the event loop has turned: what shows that long work leaves it to others, without measuring time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from itertools import repeat


@contextlib.asynccontextmanager
async def counted_turns() -> AsyncIterator[Iterator[int]]:
    """Gives an iterator of the number of turns so far."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(turn())
    await asyncio.sleep(0)
    try:
        yield (turns for _ in repeat(None))
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
