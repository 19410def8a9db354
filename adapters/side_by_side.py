"""One run on several wires at once, for a reader who wants to compare them.

Every frame says which event it came from (`id`: the event's number in its run) and which wire it is (`event`); its
data is exactly what that wire's own stream carries. What a wire sends when the run is over (`[DONE]`) bears the number
of the last event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from adapters import sse
from events.vocabulary import Event


class Outbound(Protocol):
    """The outbound half of a wire that frames with server-sent events."""

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes: ...

    def finish(self) -> bytes: ...


class SideBySideEncoder:
    """`wires`: name → encoder, in the order in which an event's frames are sent."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, wires: Mapping[str, Outbound]) -> None:
        self._wires = dict(wires)
        self._last = 0

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        self._last = self._last + 1 if sequence is None else sequence
        return b"".join(self._named(name, wire.encode(event, choice=choice)) for name, wire in self._wires.items())

    def finish(self) -> bytes:
        return b"".join(self._named(name, wire.finish()) for name, wire in self._wires.items())

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def _named(self, name: str, frames: bytes) -> bytes:
        found = sse.parse([frames]) if frames else ()
        return b"".join(sse.frame(each["data"].encode(), id=self._last, event=name) for each in found if "data" in each)
