"""Why a part of a message is not taken, and the bounds that it is held to."""

from __future__ import annotations

from agent_server.engine_protocol.protocol import EngineError


class Refused(EngineError):
    """A part that is not taken. The message is a sentence for whoever sent it."""

    def __init__(self, message: str) -> None:
        super().__init__("invalid_request", message, param="messages")
