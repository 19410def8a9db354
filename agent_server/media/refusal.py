"""The error for a part of a message that is refused."""

from __future__ import annotations

from agent_server.engine_protocol.protocol import EngineError


class MediaRefused(EngineError):
    """A part of a message is refused. The message is one sentence for the client."""

    def __init__(self, message: str) -> None:
        super().__init__("invalid_request", message, param="messages")
