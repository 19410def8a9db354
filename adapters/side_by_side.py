"""Encode one run on several wires at once, so that they can be compared.

A frame's `id` is the number of its event in the run, `event` is the name of the wire, and the data is exactly what that
wire's own stream carries. A frame that a wire sends at the end of the run (`[DONE]`) has the number of the last event.
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
        return b"".join(self._as_named(name, wire.encode(event, choice=choice)) for name, wire in self._wires.items())

    def finish(self) -> bytes:
        return b"".join(self._as_named(name, wire.finish()) for name, wire in self._wires.items())

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE

    def _as_named(self, name: str, frames: bytes) -> bytes:
        parsed = sse.parse([frames]) if frames else ()
        return b"".join(
            sse.frame(each["data"].encode(), id=self._last, event=name) for each in parsed if "data" in each
        )
