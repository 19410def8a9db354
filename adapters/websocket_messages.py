"""Messages of the WebSocket protocols: reading a client's, and the actions that all protocols share."""

from __future__ import annotations

from typing import Any, NamedTuple

from adapters.body import Inbound, Limits, read_json
from adapters.errors import RequestError

CLOSING = ("payload_too_large", "unsupported_media_type")
"""Errors of a WebSocket message that close the connection, since the client's next message would repeat them."""


class ReadMessage(NamedTuple):
    """A decoded WebSocket message, before the session acts on it.

    kind: its `type`. fields: its other fields. inbound: the run that it requests, or the error in that request; None
    for a message that requests no run.
    """

    kind: object
    fields: dict[str, Any]
    inbound: Inbound | RequestError | None = None


def read_text(data: str | bytes, limits: Limits) -> dict[str, object]:
    """Decode the JSON object in a WebSocket message. Raises RequestError, also for binary messages (bytes), which no
    protocol here uses."""
    if isinstance(data, bytes):
        raise RequestError("unsupported_media_type", "Messages are JSON text, not binary.")
    fields: dict[str, Any] = read_json(data.encode("utf-8", "surrogatepass"), limits, shape=dict)
    return fields


class Send(NamedTuple):
    """Send a text message: UTF-8."""

    data: bytes


class Close(NamedTuple):
    """Close the connection. code: of RFC 6455, 7.4."""

    code: int
    reason: str
