"""What the generation core replies, kept for whoever waits for it: a generation's items, or the answer to a command."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from agent_server.engine_protocol.protocol import Delta, GenerationRequest
from agent_server.generation.scheduling.messages import Failed, Reply
from events.options import SamplingParams


@dataclass(eq=False, slots=True)
class ReplyStream:
    """One generation on the server's side, with the items that its reader has not taken yet."""

    number: int
    request: GenerationRequest
    sampling: SamplingParams
    items: deque[Reply] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    started: bool = False

    def put(self, item: Reply) -> None:
        self.items.append(item)
        self.arrived.set()

    async def next(self) -> Reply:
        """The next item. Deltas that have accumulated are joined into one."""
        while not self.items:
            self.arrived.clear()
            await self.arrived.wait()
        item = self.items.popleft()
        if not isinstance(item, Delta) or not self.items:
            return item
        tokens = list(item.tokens)
        while self.items and isinstance(following := self.items[0], Delta):
            tokens += following.tokens
            self.items.popleft()
        return Delta(tuple(tokens))


class CommandAnswer:
    """What is waited for besides generations."""

    started = False

    def __init__(self) -> None:
        self.there: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, item: Reply) -> None:
        if self.there.done():
            return
        if isinstance(item, Failed):
            self.there.set_exception(item.error())
        else:
            self.there.set_result(None)
