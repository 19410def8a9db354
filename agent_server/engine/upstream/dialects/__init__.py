"""One small module per kind of server, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_server.engine.upstream.dialects.dialect import Dialect, Piece, Reader, Served
from agent_server.engine.upstream.dialects.vllm import VLLM

DIALECTS: Mapping[str, Callable[[], Dialect]] = {"vllm": VLLM}

__all__ = ["DIALECTS", "Dialect", "Piece", "Reader", "Served"]
