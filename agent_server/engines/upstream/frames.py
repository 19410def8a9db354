"""Server-sent events as upstreams send them, cut out of the bytes of a body as they arrive."""

from __future__ import annotations

MAX_FRAME = 16 * 2**20
"""Bytes without an end of frame in them: nobody sends such a frame, something else is being sent."""


class FrameError(ValueError):
    """What arrives are no frames."""


class FrameSplitter:
    """`feed` returns the data of the frames that are complete. Comments and other fields are skipped; a frame that
    the end of the body cuts off never comes, as the standard says."""

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
    """Line ends as LF. A CR at the very end may be half of one: it stays until the rest is there."""
    held = block.endswith(b"\r")
    plain = block[: len(block) - held].replace(b"\r\n", b"\n")
    return plain + b"\r" if held else plain


def _data(frame: bytes) -> bytes:
    frame = frame.lstrip(b"\n")
    if frame.startswith(b"data:") and b"\n" not in frame:
        return frame[5:].strip()
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
