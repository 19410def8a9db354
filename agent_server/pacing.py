"""Long work on the event loop, done in parts: between two of them everyone else has a turn, and tenants with such work
take turns, one part at a time.

A thread would not be better for what holds the interpreter's lock all the time, see `fair_threads`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar
from weakref import WeakKeyDictionary

from agent_server.fair_slots import FairSlots
from agent_server.user import current_user

T = TypeVar("T")
PART = 256
"""Items of work in one part, some 4 µs each."""
_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, FairSlots] = WeakKeyDictionary()


async def collect_yielding(made: Iterable[T | None]) -> list[T]:
    """The items of a lazy iterable. A message counts as many items as it has content parts and tool calls. None stands
    for a part of the work on the next item, which is a long one."""
    turns = _turns.setdefault(asyncio.get_running_loop(), FairSlots(1))
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
            async with turns.hold(current_user.get().tenant):
                await asyncio.sleep(0)
    return found


def weight(item: object) -> int:
    """How many items of work something is; messages may be in wire form or the SDK's models."""
    if isinstance(item, dict):
        return 1 + _length(item.get("content")) + _length(item.get("toolCalls"))
    fields = getattr(item, "__dict__", {})  # a missing attribute of the SDK's models takes as long as this function
    return 1 + _length(fields.get("content")) + _length(fields.get("tool_calls"))


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0
