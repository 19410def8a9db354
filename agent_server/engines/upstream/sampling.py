"""A request's sampling as it is sent to an upstream: with the model's defaults and a max_tokens that fits the
context."""

from __future__ import annotations

import msgspec

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.upstream.connection import Upstream
from events.options import SamplingParams


def bounded(request: GenerationRequest, upstream: Upstream) -> SamplingParams:
    room = upstream.info.context_length - len(request.prompt_token_ids)
    sampling = upstream.model.fill(request.sampling)
    return msgspec.structs.replace(sampling, max_tokens=min(room, sampling.max_tokens or room))
