"""Time limits for an upstream, and how many generations it gets at once."""

from __future__ import annotations

import msgspec


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds.

    connect: for opening a connection. idle: between two frames of a stream, and for any other answer. first: until the
    first frame, as long as the server passes health checks meanwhile (it may be busy with its queue or a long prompt).
    total: for one generation. start: until the server has loaded its model. health: between two health checks.
    in_flight: generations at once; more are refused as overloaded. check_tokenizer: refuse a server that splits a
    sample into other ids than our tokenizer; turn it off for a GGUF file that has the same ids but splits text
    differently.
    """

    connect: float = 5.0
    idle: float = 30.0
    first: float = 300.0
    total: float = 3600.0
    start: float = 1800.0
    health: float = 5.0
    in_flight: int = 1024
    check_tokenizer: bool = True
