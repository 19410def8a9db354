"""Engines that are other projects' servers: vLLM, SGLang, llama.cpp and any server with OpenAI's completions."""

from agent_server.engines.upstream.engine import UpstreamEngine
from agent_server.engines.upstream.model import UpstreamModel, load_model
from agent_server.engines.upstream.transport import UpstreamAddress, parse_address

__all__ = ["UpstreamAddress", "UpstreamEngine", "UpstreamModel", "load_model", "parse_address"]
