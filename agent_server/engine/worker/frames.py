"""The worker's stream: engine items as server-sent events, in both directions.

A frame without an event's name holds an item as JSON. `error` holds a Failure; nothing follows it. `ping` is a sign
of life. `complete_final` is the last frame of a stream that is complete (after NVIDIA Dynamo's proposal of that name).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agent_server.engine.protocol import EngineError, EngineItem, ErrorKind

COMPLETE_FINAL = b"event: complete_final\n\n"
PING = b"event: ping\n\n"
MAX_FRAME = 16 * 2**20
"""Bytes without an end of frame: no item is as long, so it is no worker that sends."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """An EngineError on its way."""

    kind: ErrorKind
    message: str
    retryable: bool = False
    param: str | None = None

    @classmethod
    def of(cls, error: EngineError) -> Failure:
        return cls(kind=error.kind, message=error.message, retryable=error.retryable, param=error.param)

    def error(self) -> EngineError:
        return EngineError(self.kind, self.message, retryable=self.retryable, param=self.param)


_encoder = msgspec.json.Encoder()
_items: msgspec.json.Decoder[EngineItem] = msgspec.json.Decoder(EngineItem)
_failures = msgspec.json.Decoder(Failure)


def frame_of(item: EngineItem) -> bytes:
    return b"data: " + _encoder.encode(item) + b"\n\n"


def error_frame(error: EngineError) -> bytes:
    return b"event: error\ndata: " + _encoder.encode(Failure.of(error)) + b"\n\n"


def item_of(data: bytes) -> EngineItem:
    """EngineError("connection") for what is no item."""
    try:
        return _items.decode(data)
    except msgspec.MsgspecError as error:
        raise EngineError("connection", f"The worker sent something that is no item: {error}", retryable=True) from None


def failure_of(data: bytes, otherwise: str) -> EngineError:
    """The error that a worker tells of, or one of our own words for a body that is none."""
    try:
        return _failures.decode(data).error()
    except msgspec.MsgspecError:
        return EngineError("unavailable", otherwise, retryable=True)


class WorkerFrames:
    """Bytes as they arrive → (event, data) of the frames that are complete; the event of an item is empty."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Sequence[tuple[bytes, bytes]]:
        *frames, self._rest = (self._rest + chunk).split(b"\n\n")
        if len(self._rest) > MAX_FRAME:
            raise EngineError("connection", "The worker sent a frame without an end.", retryable=True)
        return [_fields(frame) for frame in frames]


def _fields(frame: bytes) -> tuple[bytes, bytes]:
    if frame.startswith(b"data: "):
        return b"", frame[6:]
    head, _, data = frame.partition(b"\ndata: ")
    return head.removeprefix(b"event: "), data
