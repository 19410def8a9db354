"""The actions that all WebSocket protocols share."""

from __future__ import annotations

from typing import NamedTuple


class Send(NamedTuple):
    """Send a text message: UTF-8."""

    data: bytes


class Close(NamedTuple):
    """Close the connection. code: of RFC 6455, 7.4."""

    code: int
    reason: str
