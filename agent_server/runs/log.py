"""A run's events: numbered from 1, bounded in count and bytes, read by many at their own pace.

Readers pull. Nothing is queued per reader, so a slow reader costs one integer and never delays a fast one. When the
bound passes a reader's position, it gets an error event instead of a stream with a hole.
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

OVERHEAD = 240  # bytes of one event besides its text: the struct, its ids and the deque's slot
MOST_WAITERS = 64  # with more futures than this, those that are done or cancelled are removed
_DELTAS = (TextMessageContent, ToolCallArgs, ReasoningMessageContent)


class FellBehind(Exception):
    """A reader's next event (`sequence`) is no longer in the log. `oldest` is the first sequence number that is."""

    def __init__(self, sequence: int, oldest: int) -> None:
        super().__init__(f"Event {sequence} is no longer in the log. The oldest one is {oldest}.")
        self.sequence = sequence
        self.oldest = oldest


def size_of(event: Event) -> int:
    """Estimate the bytes of memory of an event. Deltas are not encoded for it: there is one per token."""
    if isinstance(event, _DELTAS) and event.metadata is None and event.raw_event is None:
        return OVERHEAD + len(event.delta)
    return OVERHEAD + len(msgspec.json.encode(event, enc_hook=str))


class EventLog:
    """A run's numbered events; only the run appends.

    `last` is the highest sequence number, `oldest` the lowest that can still be read. begins: the number before the
    first event; a run that is resumed elsewhere continues the numbers that it had before.
    """

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
        self.last_was_read = False
        """Whether a reader has received the run's last event."""
        self.handover: Event | None = None
        """The event that ends a reader's stream when the run continues on another server. It has no number."""

    @property
    def empty(self) -> bool:
        return self.last == self.begins

    @property
    def whole(self) -> bool:
        """Whether the log still holds every event from the first one."""
        return self.oldest <= self.begins + 1

    @property
    def oldest(self) -> int:
        return self.last - len(self._events) + 1

    def append(self, event: Event) -> int:
        """Number an event and wake waiting readers. Drop the oldest events when the log exceeds its bounds."""
        if self.closed:
            raise RuntimeError("The log is closed: its run has already ended.")
        # `size_of` inlined for text deltas, of which there is one per token.
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

    def close(self, handover: Event | None = None) -> None:
        """Accept no more events. Readers end after the last one, with `handover` if the run continues elsewhere."""
        self.closed, self.handover = True, handover
        self._wake()

    def get(self, sequence: int) -> Event:
        index = sequence - self.last - 1  # from the end
        if index < -len(self._events):
            raise FellBehind(sequence, self.oldest)
        return self._events[index]

    def snapshot(self) -> list[Event]:
        """Return the events that are still in the log, in order."""
        return list(self._events)

    def arrival(self) -> asyncio.Future[None]:
        """Return a future that is done with the next event or when the log closes.

        A plain future, with the loop looked up once, since readers wait for every token.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if len(self._waiting) > MOST_WAITERS:
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
    """An async iterator of (sequence, event): those already logged, then those that arrive."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, Event]:
        while (item := self.ready()) is None:
            if (arrival := self.arrival()) is None:
                raise StopAsyncIteration
            await arrival
        return item

    def ready(self) -> tuple[int, Event] | None:
        """Return the next item without waiting, or None. Senders use it to put several items into one write."""
        raise NotImplementedError

    def arrival(self) -> asyncio.Future[None] | None:
        """Return a future to await while nothing is `ready`, or None if no item will come."""
        raise NotImplementedError


class LogReader(ItemReader):
    """One reader's position in a log. It ends after the last event.

    The reader counts as present from its creation until it is closed, exhausted or garbage-collected; `on_left` is
    called then, once. When it falls behind, `gap_event` makes its last event, so that every stream says how it ended.
    """

    def __init__(
        self,
        log: EventLog,
        after: int,
        *,
        gap_event: Callable[[FellBehind], Event],
        on_left: Callable[[], None],
    ) -> None:
        self._log = log
        self._cursor = max(after, log.begins)  # events before `begins` were sent by the run's former server
        self._gap_event = gap_event
        self._on_left: Callable[[], None] | None = on_left

    def ready(self) -> tuple[int, Event] | None:
        log, cursor = self._log, self._cursor
        if self._on_left is None:
            return None
        if log.last <= cursor:
            if log.handover is None:
                return None
            self._leave()
            return cursor, log.handover
        try:
            event = log.get(cursor + 1)
        except FellBehind as gap:
            self._leave()
            return log.last, self._gap_event(gap)
        self._cursor = cursor + 1
        if log.closed and cursor + 1 == log.last:
            log.last_was_read = True
        return cursor + 1, event

    def arrival(self) -> asyncio.Future[None] | None:
        if self._log.closed and self.over:
            self._leave()
        return None if self._on_left is None else self._log.arrival()

    @property
    def over(self) -> bool:
        """Whether no more events will come."""
        return self._on_left is None or (self._log.closed and self._log.last <= self._cursor)

    async def aclose(self) -> None:
        self._leave()

    def _leave(self) -> None:
        on_left, self._on_left = self._on_left, None
        if on_left is not None:
            on_left()

    def __del__(self) -> None:
        self._leave()
