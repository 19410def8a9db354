"""The worker's stream: engine items as server-sent events, in both directions.

A frame without an event's name holds an item as JSON. `error` holds a Failure; nothing follows it. `ping` is a sign
of life. `complete_final` is the last frame of a stream that is complete (after NVIDIA Dynamo's proposal of that name).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agent_server.engine.protocol import EngineError, EngineInfo, EngineItem, EngineStatus, ErrorKind
from agent_server.engines.upstream.frames import MAX_FRAME, FrameError, FrameSplitter

COMPLETE_FINAL = b"event: complete_final\n\n"
KIND = "agent-server worker"
"""What GET /health says to whoever wants to know whom they are speaking to."""
PING = b"event: ping\n\n"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a generation under way. changes: for "modify"."""

    request_id: str
    action: Literal["pause", "resume", "modify", "cancel"]
    changes: dict[str, Any] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as its clients see it. info: None until the model is loaded. running: generations under way."""

    status: EngineStatus
    info: EngineInfo | None = None
    draining: bool = False
    running: int = 0
    metrics: dict[str, float] = {}


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


def failure_of(data: bytes) -> EngineError:
    """The error that a worker tells of."""
    try:
        return _failures.decode(data).error()
    except msgspec.MsgspecError:
        return EngineError("connection", "The worker failed without saying why.", retryable=True)


class WorkerFrames(FrameSplitter):
    """Bytes as they arrive → the frames that are complete, with their names still on them."""

    def feed(self, chunk: bytes) -> list[bytes]:
        *frames, self._rest = (self._rest + chunk).split(b"\n\n")
        if len(self._rest) > MAX_FRAME:
            raise FrameError(f"a frame of more than {MAX_FRAME} bytes")
        return frames


def fields(frame: bytes) -> tuple[bytes, bytes]:
    """The name of a frame, empty for an item, and its data."""
    if frame.startswith(b"data: "):
        return b"", frame[6:]
    head, _, data = frame.partition(b"\ndata: ")
    return head.removeprefix(b"event: "), data
