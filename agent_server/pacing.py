"""Long work on the event loop, done in parts: between two of them everyone else has a turn.

A thread would not be better for what holds the interpreter's lock all the time: each turn of the event loop would wait
for the lock (5 ms, sys.setswitchinterval), times the threads that want it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")
PART = 256
"""Items of work in one part, some 4 µs each."""


async def collect_yielding(made: Iterable[T | None]) -> list[T]:
    """The items of a lazy iterable. A message counts as many items as it has content parts and tool calls. None stands
    for a part of the work on the next item, which is a long one."""
    found: list[T] = []
    work = 0
    for item in made:
        if item is None:
            work = PART
        else:
            found.append(item)
            work += weight(item)
        if work >= PART:
            work = 0
            await asyncio.sleep(0)
    return found


def weight(item: object) -> int:
    """How many items of work something is; messages may be in wire form or the SDK's models."""
    if isinstance(item, Mapping):
        return 1 + _length(item.get("content")) + _length(item.get("toolCalls"))
    return 1 + _length(getattr(item, "content", None)) + _length(getattr(item, "tool_calls", None))


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
