"""Splits the bytes of an upstream's body into the data of server-sent events as they arrive."""

from __future__ import annotations

MAX_FRAME = 16 * 2**20
"""Bytes without the end of a frame after which the body is taken for something other than server-sent events."""


class FrameError(ValueError):
    """The bytes are not server-sent events."""


class FrameSplitter:
    """`feed` takes bytes and returns the data of the frames that are complete. Comments and other fields are skipped. A
    frame that the end of the body cuts off is dropped, as the standard demands."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        block = self._rest + chunk if self._rest else chunk
        if b"\r" in block:
            block = _with_line_feeds(block)
        *frames, self._rest = block.split(b"\n\n")
        if len(self._rest) > MAX_FRAME:
            raise FrameError(f"a frame of more than {MAX_FRAME} bytes")
        return [data for frame in frames if (data := _data(frame))]


def _with_line_feeds(block: bytes) -> bytes:
    """The block with LF for every line end. A CR at its end may be the first half of CR LF, so it is kept for later."""
    held = block.endswith(b"\r")
    plain = block[: len(block) - held].replace(b"\r\n", b"\n")
    return plain + b"\r" if held else plain


def _data(frame: bytes) -> bytes:
    frame = frame.lstrip(b"\n")
    if frame.startswith(b"data:") and b"\n" not in frame:
        return frame[5:].strip()
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
