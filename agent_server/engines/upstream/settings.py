"""How long an upstream may take, and how much is asked of it at once."""

from __future__ import annotations

import msgspec


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, all of them bounds.

    connect: for a connection. idle: between two frames of a stream, and for an answer to a question about health.
    first: until the first frame, as long as the server still answers meanwhile (its queue, a long prompt). total: for
    one generation. start: until the server has loaded its model. health: between two questions about health.
    in_flight: generations at once; more are refused as overloaded. check_tokenizer: a server that takes a sample apart
    in another way than our tokenizer serves another model; a GGUF file may do so and still have the same ids.
    """

    connect: float = 5.0
    idle: float = 30.0
    first: float = 300.0
    total: float = 3600.0
    start: float = 1800.0
    health: float = 5.0
    in_flight: int = 1024
    check_tokenizer: bool = True
