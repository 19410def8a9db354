"""Work of guests that waits for a person inside of this process: some frameworks hold a coroutine where others keep a
record. It ends with the process, and an answer that comes later is refused in plain words."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agent_server.agents.guests.guest import GuestError
from agent_server.agents.guests.own_engine import CURRENT, OwnEngine

Work = TypeVar("Work")
MOST = 1000
LOST = (
    "The question that this answers was asked by a server that has ended since, or it waited too long. "
    "Ask the agent again."
)


class Held(Generic[Work]):
    """What waits, by thread; at most `most`, of which the oldest is ended first.

    end: ends a piece of work. It is called once for each that is not taken.
    """

    def __init__(self, end: Callable[[Work], Awaitable[None]], most: int = MOST) -> None:
        self._end = end
        self._most = most
        self._waiting: dict[str, tuple[Work, OwnEngine | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    async def keep(self, thread_id: str, work: Work) -> None:
        """Hold the work of this run, which used this run's model."""
        await self.drop(thread_id)
        self._waiting[thread_id] = (work, CURRENT.get())
        while len(self._waiting) > self._most:
            await self.drop(next(iter(self._waiting)))

    def take(self, thread_id: str) -> Work:
        """Go on with what waits on a thread: it generates with this run's model from now on, although its tasks began
        in another run. Raises GuestError where nothing waits."""
        found = self._waiting.pop(thread_id, None)
        if found is None:
            raise GuestError(LOST)
        work, before = found
        if before is not None:
            before.continued_by(CURRENT.get())
        return work

    async def drop(self, thread_id: str) -> None:
        found = self._waiting.pop(thread_id, None)
        if found is not None:
            await self._end(found[0])

    async def close(self) -> None:
        for thread_id in list(self._waiting):
            await self.drop(thread_id)
