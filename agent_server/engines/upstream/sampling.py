"""A request's sampling as an upstream gets it: every default filled in, and nothing that it cannot honour."""

from __future__ import annotations

import msgspec

from agent_server.engine.protocol import GenerationRequest
from agent_server.engines.upstream.connection import Upstream
from agent_server.engines.upstream.errors import refused
from events.options import SamplingParams


def bounded(request: GenerationRequest, upstream: Upstream) -> SamplingParams:
    """Raises EngineError("invalid_request") with the parameter that the upstream has no word for."""
    lacking = {**upstream.dialect.unsupported, **dict.fromkeys(upstream.served.lacks)}
    for name, nothing in lacking.items():
        if getattr(request.sampling, name) not in (None, nothing):
            raise refused(name, f"The upstream ({upstream.dialect.name}) cannot honour {name}.")
    room = upstream.info.context_length - len(request.prompt_token_ids)
    sampling = upstream.model.fill(request.sampling)
    return msgspec.structs.replace(sampling, max_tokens=min(room, sampling.max_tokens or room))
