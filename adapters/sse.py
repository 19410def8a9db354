"""Server-sent events, as AG-UI's clients read them: lines end in LF alone (a CR breaks `@ag-ui/client`).

Framing of the HTML standard, section 9.2: `data`, `id` and `event` fields, a blank line ends a frame, and a line that
begins with a colon is a comment, which clients skip and proxies count as traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
