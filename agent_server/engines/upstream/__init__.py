"""Engines that are somebody else's server: vLLM, SGLang, llama.cpp and whatever speaks OpenAI's completions."""

from agent_server.engines.upstream.address import Address, parse_address
from agent_server.engines.upstream.engine import UpstreamEngine
from agent_server.engines.upstream.model import Model, load_model
from agent_server.engines.upstream.settings import UpstreamSettings

__all__ = ["Address", "Model", "UpstreamEngine", "UpstreamSettings", "load_model", "parse_address"]
