"""Responses over a WebSocket, as the SDK's `client.responses.connect()` uses it.

A `response.create` message has the fields of `POST /v1/responses`. The server sends the events of its stream, one per
message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from adapters import sse
from adapters.body import CLOSING, Limits, ReadMessage, read_text, wrong
from adapters.errors import RequestError, payload, row
from adapters.sse import json_bytes
from adapters.websocket_actions import Close, Send

ENVELOPE = ("type", "event_id", "stream_id", "stream", "generate")
"""Fields that belong to the message, not to the request."""


class CreateResponse(NamedTuple):
    """Create a response. body: as for `POST /v1/responses`."""

    body: bytes


class ResponsesSession:
    """The protocol of one connection: messages to actions, and frames to messages."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, data: str | bytes) -> ReadMessage | RequestError:
        try:
            values = read_text(data, self._limits)
            if values.get("type") == "response.steer":
                raise wrong("type", "is response.steer; responses here cannot be steered, send response.create")
            if values.get("type") != "response.create":
                raise wrong("type", 'must be "response.create"')
            if values.get("generate") is False:
                raise wrong("generate", "must be true: a prompt is computed together with its answer")
        except RequestError as error:
            return error
        return ReadMessage(values["type"], {key: value for key, value in values.items() if key not in ENVELOPE})

    def take(self, read: ReadMessage | RequestError) -> Sequence[object]:
        return self.refused(read) if isinstance(read, RequestError) else [CreateResponse(json_bytes(read.fields))]

    def refused(self, error: RequestError) -> Sequence[object]:
        entry = row(error.kind)
        body = payload("openai", error.kind, error.message, param=error.param, code=error.code)
        actions: list[object] = [Send(json_bytes({"type": "error", "status": entry.status, **body}))]
        return [*actions, Close(entry.close, error.kind)] if error.kind in CLOSING else actions

    def frames(self, data: bytes) -> Sequence[object]:
        """Convert server-sent events to messages."""
        return [Send(frame["data"].encode()) for frame in sse.parse([data])] if data else []
