"""A request's sampling as an upstream gets it: every default filled in, and a limit that its context holds."""

from __future__ import annotations

import msgspec

from agent_server.engine.protocol import GenerationRequest
from agent_server.engines.upstream.connection import Upstream
from events.options import SamplingParams


def bounded(request: GenerationRequest, upstream: Upstream) -> SamplingParams:
    room = upstream.info.context_length - len(request.prompt_token_ids)
    sampling = upstream.model.fill(request.sampling)
    return msgspec.structs.replace(sampling, max_tokens=min(room, sampling.max_tokens or room))
