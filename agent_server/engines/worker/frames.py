"""The worker's stream: engine items as server-sent events, in both directions.

A frame without an event name holds an item as JSON. `error` holds a Failure and is the last frame. `ping` shows that
the worker is alive. `complete_final` is the last frame of a complete stream; the name is that of NVIDIA Dynamo's
proposal.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, EngineItem, EngineStatus, Failure
from agent_server.engines.upstream.transport import FrameSplitter

COMPLETE_FINAL = b"event: complete_final\n\n"
KIND = "agent-server worker"
"""The value of `engine` in the answer to GET /health, by which a gateway recognises a worker."""
PING = b"event: ping\n\n"


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A command to a running generation. changes: new sampling parameters, for "modify"."""

    request_id: str
    action: Literal["pause", "resume", "modify", "cancel"]
    changes: dict[str, Any] = {}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer to GET /engine/status. info: None until the model is loaded. running: running generations."""

    status: EngineStatus
    info: EngineInfo | None = None
    draining: bool = False
    running: int = 0
    metrics: dict[str, float] = {}


_encoder = msgspec.json.Encoder()
_items: msgspec.json.Decoder[EngineItem] = msgspec.json.Decoder(EngineItem)
_failures = msgspec.json.Decoder(Failure)


def frame_of(item: EngineItem) -> bytes:
    return b"data: " + _encoder.encode(item) + b"\n\n"


def error_frame(error: EngineError) -> bytes:
    return b"event: error\ndata: " + _encoder.encode(Failure.of(error)) + b"\n\n"


def item_of(data: bytes) -> EngineItem:
    """Decode the item of a frame. Raises EngineError("connection") if the data is not an item."""
    try:
        return _items.decode(data)
    except (ValueError, RecursionError) as error:
        raise EngineError(
            "connection", f"The worker sent data that is not an item of the stream: {error}", retryable=True
        ) from None


def failure_of(data: bytes) -> EngineError:
    """Return the error that a worker sent."""
    try:
        return _failures.decode(data).error()
    except (ValueError, RecursionError):
        return EngineError(
            "connection", "The worker failed and sent no readable reason; its log has it.", retryable=True
        )


class WorkerFrames(FrameSplitter):
    """Bytes as they arrive → the complete frames, each with its lines `event:` and `data:`."""

    def feed(self, chunk: bytes) -> list[bytes]:
        return self.split(chunk)


def fields(frame: bytes) -> tuple[bytes, bytes]:
    """Return the event name of a frame, empty for an item, and the frame's data."""
    if frame.startswith(b"data: "):
        return b"", frame[6:]
    head, _, data = frame.partition(b"\ndata: ")
    return head.removeprefix(b"event: "), data
