"""The dialects by name, one module for each kind of server."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agent_server.engines.upstream.dialects.dialect import Dialect, OutgoingRequest, Piece, Reader, UpstreamInfo
from agent_server.engines.upstream.dialects.llamacpp import LlamaCpp
from agent_server.engines.upstream.dialects.openai import OpenAI
from agent_server.engines.upstream.dialects.sglang import SGLang
from agent_server.engines.upstream.dialects.vllm import VLLM, VLLMTokens

DIALECTS: Mapping[str, Callable[[], Dialect]] = {
    "vllm": VLLM,
    "vllm-tokens": VLLMTokens,
    "sglang": SGLang,
    "llamacpp": LlamaCpp,
    "openai": OpenAI,
}

__all__ = ["DIALECTS", "Dialect", "OutgoingRequest", "Piece", "Reader", "UpstreamInfo"]
