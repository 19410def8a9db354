"""Why a part of a message is not taken, and the bounds that it is held to."""

from __future__ import annotations

import msgspec

from agent_server.engine.protocol import EngineError


class Refused(EngineError):
    """A part that is not taken. The message is a sentence for whoever sent it."""

    def __init__(self, message: str) -> None:
        super().__init__("invalid_request", message, param="messages")


class MediaLimits(msgspec.Struct, frozen=True, kw_only=True):
    """hosts: `name` or `name:port`, from which parts are fetched. bytes: of one part. pixels: of all pictures of a
    request together. pictures: in a request. seconds: to fetch a part, and to decode one. redirects: followed while
    fetching."""

    hosts: frozenset[str] = frozenset()
    bytes: int = 16 * 2**20
    pixels: int = 50_000_000
    pictures: int = 64
    seconds: float = 10.0
    redirects: int = 3
