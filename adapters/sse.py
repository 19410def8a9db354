"""Encode JSON, and server-sent events as AG-UI's clients read them.

A lone surrogate becomes U+FFFD, so that one character does not end a stream. Lines end in LF alone, since a CR breaks
`@ag-ui/client`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from events.vocabulary import Event

_encode = msgspec.json.Encoder().encode
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_string(text: str) -> bytes:
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(_SURROGATES.sub("\ufffd", text))


def json_bytes(value: object) -> bytes:
    """Encode any plain value; NaN and the infinities become null."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_clean(value))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value


CONTENT_TYPE = "text/event-stream"
KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"


def frame(data: bytes, *, id: int | str | None = None, event: str | None = None) -> bytes:
    """Encode one frame. data: a single line, as the JSON encoders write it. `id` and `event` have no line breaks."""
    if id is None and event is None:
        return b"data: " + data + b"\n\n"
    head = "" if event is None else f"event: {event}\n"
    head += "" if id is None else f"id: {id}\n"
    return head.encode() + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """Encode a comment frame; line breaks in `text` become spaces."""
    return f": {' '.join(text.splitlines())}\n\n".encode()


def parse(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Parse frames into dictionaries of their fields (`data` lines joined by LF), for tests and clients.

    Comments are skipped, and a frame that the stream's end cuts off is dropped, as the standard requires.
    """
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        *frames, buffer = buffer.split(b"\n\n")
        for block in frames:
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(":")
                value = value.removeprefix(" ")
                if name == "data" and "data" in fields:
                    fields["data"] += "\n" + value
                elif name:
                    fields[name] = value
            if fields:
                yield fields


class Outbound(Protocol):
    """The outbound half of a wire that frames with server-sent events."""

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes: ...

    def finish(self) -> bytes: ...


class SideBySideEncoder:
    """Encodes one run on several wires at once, so that they can be compared.

    A frame's `id` is the number of its event in the run, `event` is the name of the wire, and the data is exactly what
    that wire's own stream carries. A frame that a wire sends at the end of the run (`[DONE]`) has the number of the
    last event. wires: name → encoder, in the order in which an event's frames are sent.
    """

    content_type = CONTENT_TYPE

    def __init__(self, wires: Mapping[str, Outbound]) -> None:
        self._wires = dict(wires)
        self._last = 0

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        self._last = self._last + 1 if sequence is None else sequence
        return b"".join(self._as_named(name, wire.encode(event, choice=choice)) for name, wire in self._wires.items())

    def finish(self) -> bytes:
        return b"".join(self._as_named(name, wire.finish()) for name, wire in self._wires.items())

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE

    def _as_named(self, name: str, frames: bytes) -> bytes:
        parsed = parse([frames]) if frames else ()
        return b"".join(frame(each["data"].encode(), id=self._last, event=name) for each in parsed if "data" in each)
