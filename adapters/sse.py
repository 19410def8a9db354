"""Encode JSON, and server-sent events as AG-UI's clients read them.

A lone surrogate becomes U+FFFD, so that one character does not end a stream. Lines end in LF alone, since a CR breaks
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
