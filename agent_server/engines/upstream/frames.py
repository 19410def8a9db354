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
        self._begun: list[bytes] = []  # the beginning of a frame, in parts: joined once, however many there are
        self._size = 0
        self._tail = b""  # what may be the first half of a line end or of a frame's end

    def feed(self, chunk: bytes) -> list[bytes]:
        return [data for frame in self.split(chunk) if (data := _data(frame))]

    def split(self, chunk: bytes) -> list[bytes]:
        """The frames that are complete, with all of their lines, which end in LF."""
        block = self._tail + chunk if self._tail else chunk
        if b"\r" in block:
            block = block.replace(b"\r\n", b"\n")
        first, *others = block.split(b"\n\n")
        if not others:
            self._keep(block)
            return []
        *frames, rest = [b"".join((*self._begun, first)), *others]
        self._begun, self._size = [], 0
        self._keep(rest)
        return frames

    def _keep(self, rest: bytes) -> None:
        held = next((len(end) for end in (b"\n\r", b"\n", b"\r") if rest.endswith(end)), 0)
        whole = len(rest) - held
        self._tail = rest[whole:]
        if whole:
            self._begun.append(rest[:whole])
            self._size += whole
        if self._size > MAX_FRAME:
            raise FrameError(f"a frame of more than {MAX_FRAME} bytes")


def _data(frame: bytes) -> bytes:
    frame = frame.lstrip(b"\n")
    if frame.startswith(b"data:") and b"\n" not in frame:
        return frame[5:].strip()
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)
