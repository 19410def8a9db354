"""Frames: JSON bytes, and server-sent events as AG-UI's clients read them.

A lone surrogate becomes U+FFFD: a stream must not die over one character. Lines end in LF alone, since a CR breaks
`@ag-ui/client`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

_encode = msgspec.json.Encoder().encode
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_string(text: str) -> bytes:
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(_SURROGATES.sub("\ufffd", text))


def json_bytes(value: object) -> bytes:
    """Any plain value; NaN and the infinities become null."""
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
    """One frame. `data` must be a single line, as JSON from our encoders is. `id` and `event` hold no line break."""
    if id is None and event is None:
        return b"data: " + data + b"\n\n"
    head = "" if event is None else f"event: {event}\n"
    head += "" if id is None else f"id: {id}\n"
    return head.encode() + b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A comment frame; line breaks in `text` become spaces."""
    return f": {' '.join(text.splitlines())}\n\n".encode()


def parse(chunks: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Frames as dictionaries of their fields (`data` lines joined by LF), for tests and clients. Comments are skipped.

    A frame that the stream's end cuts off is dropped, as the standard says.
    """
    buffer = b""
    for chunk in chunks:
        buffer += chunk
        *frames, buffer = buffer.split(b"\n\n")
        yield from filter(None, map(_fields, frames))


def _fields(block: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in block.decode().split("\n"):
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in fields:
            fields["data"] += "\n" + value
        elif name:
            fields[name] = value
    return fields
