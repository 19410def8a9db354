"""One small module per kind of server, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_server.engines.upstream.dialects.dialect import Asked, Dialect, Piece, Reader, Served
from agent_server.engines.upstream.dialects.llamacpp import LlamaCpp
from agent_server.engines.upstream.dialects.openai import OpenAI
from agent_server.engines.upstream.dialects.sglang import SGLang
from agent_server.engines.upstream.dialects.vllm import VLLM
from agent_server.engines.upstream.dialects.vllm_tokens import VLLMTokens

DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "vllm": VLLM,
    "vllm-tokens": VLLMTokens,
    "sglang": SGLang,
    "llamacpp": LlamaCpp,
    "openai": OpenAI,
}

__all__ = ["DIALECTS", "Asked", "Dialect", "Piece", "Reader", "Served"]
