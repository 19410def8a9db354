"""A run's events: numbered from 1, bounded in count and bytes, read by many at their own pace.

Readers pull. Nothing is queued per reader, so a slow one costs one integer, never holds back a fast one, and falls off
the log when the bound has passed it; it is then told so instead of being sent a stream with a hole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

import msgspec

from agent_server.settings import LogLimits
from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    TextMessageContent,
    ToolCallArgs,
)

OVERHEAD = 240  # bytes of one event beside its text: the struct, its ids and the deque's slot
FORGOTTEN = 64  # waits that may lie about after their readers left, before they are cleared away
_DELTAS = (TextMessageContent, ToolCallArgs, ReasoningMessageContent)


class FellBehind(Exception):
    """The event a reader asked for next is no longer kept. `oldest` is the first sequence number that is."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"event {wanted} is no longer kept; the oldest one is {oldest}")
        self.wanted = wanted
        self.oldest = oldest


def size_of(event: Event) -> int:
    """About how many bytes of memory an event holds. Deltas are counted without encoding them: there is one a token."""
    if isinstance(event, _DELTAS) and event.metadata is None and event.raw_event is None:
        return OVERHEAD + len(event.delta)
    return OVERHEAD + len(msgspec.json.encode(event, enc_hook=str))


class EventLog:
    """Appended to by the run alone. `last` is the highest number given, `oldest` the lowest that can still be read.
    begins: the number before the first, so that those of a run that is taken up are not those that it had before."""

    def __init__(self, limits: LogLimits, begins: int = 0) -> None:
        self.begins = begins
        self.limits = limits
        self._events: deque[Event] = deque()
        self._sizes: deque[int] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.bytes = 0
        self.last = begins
        self.closed = False
        self.is_told = False
        """Whether a reader was given the last event of all."""
        self.word: Event | None = None
        """What readers are told at the end, without a number of its own, where the run goes on elsewhere."""

    @property
    def empty(self) -> bool:
        return self.last == self.begins

    @property
    def whole(self) -> bool:
        """Whether everything is still kept from the first event on."""
        return self.oldest <= self.begins + 1

    @property
    def oldest(self) -> int:
        return self.last - len(self._events) + 1

    def append(self, event: Event) -> int:
        """Number an event and wake the readers that wait for it; the oldest events go when the bounds are passed."""
        if self.closed:
            raise RuntimeError("the log is closed: its run already ended")
        # What `size_of` says of a text's delta, of which there is one a token.
        plain = type(event) is TextMessageContent and event.metadata is None and event.raw_event is None
        size = OVERHEAD + len(event.delta) if plain else size_of(event)  # type: ignore[arg-type, union-attr]
        self._events.append(event)
        self._sizes.append(size)
        self.bytes += size
        self.last += 1
        if self.bytes > self.limits.bytes or len(self._events) > self.limits.events:
            while len(self._events) > 1 and (len(self._events) > self.limits.events or self.bytes > self.limits.bytes):
                self._events.popleft()
                self.bytes -= self._sizes.popleft()
        if self._waiting:
            self._wake()
        return self.last

    def close(self, word: Event | None = None) -> None:
        """No event follows; readers that have read everything end, with `word` if the run goes on elsewhere."""
        self.closed, self.word = True, word
        self._wake()

    def get(self, sequence: int) -> Event:
        place = sequence - self.last - 1  # from the end
        if place < -len(self._events):
            raise FellBehind(sequence, self.oldest)
        return self._events[place]

    def snapshot(self) -> list[Event]:
        """Everything still kept, in order."""
        return list(self._events)

    def arrival(self) -> asyncio.Future[None]:
        """Done with the next event, or when the log closes. A plain future, and the loop looked up once, since every
        token is waited for."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if len(self._waiting) > FORGOTTEN:
            self._waiting = [future for future in self._waiting if not future.done()]
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(future)
        return future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class ItemReader:
    """An async iterator of (sequence, event) over what is there and what arrives."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        while (item := self.ready()) is None:
            if (arrival := self.arrival()) is None:
                raise StopAsyncIteration
            await arrival
        return item

    def ready(self) -> tuple[int, Event] | None:
        """The next item if it is there already; None otherwise. A sender can put several into one write."""
        raise NotImplementedError

    def arrival(self) -> asyncio.Future[None] | None:
        """What to await when nothing is `ready`; None if nothing will be."""
        raise NotImplementedError


class LogReader(ItemReader):
    """One reader's place in a log. It ends after the last event.

    It counts as present from its creation until it is closed, exhausted or dropped. When it falls behind, `lost`
    makes the last event it is given, so that even that stream says how it ended.
    """

    def __init__(
        self,
        log: EventLog,
        after: int,
        *,
        lost: Callable[[FellBehind], Event],
        left: Callable[[], None],
    ) -> None:
        self._log = log
        self._cursor = max(after, log.begins)  # whoever read the run at a server that ended is told it from here on
        self._lost = lost
        self._left: Callable[[], None] | None = left

    def ready(self) -> tuple[int, Event] | None:
        log, cursor = self._log, self._cursor
        if self._left is None:
            return None
        if log.last <= cursor:
            if log.word is None:
                return None
            self._leave()
            return cursor, log.word
        try:
            event = log.get(cursor + 1)
        except FellBehind as gap:
            self._leave()
            return log.last, self._lost(gap)
        self._cursor = cursor + 1
        if log.closed and cursor + 1 == log.last:
            log.is_told = True
        return cursor + 1, event

    def arrival(self) -> asyncio.Future[None] | None:
        if self._log.closed and self.over:
            self._leave()
        return None if self._left is None else self._log.arrival()

    @property
    def over(self) -> bool:
        """Whether nothing will come any more."""
        return self._left is None or (self._log.closed and self._log.last <= self._cursor)

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()

    def __del__(self) -> None:
        self._leave()
