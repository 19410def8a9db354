"""A connected upstream: everything that a request to it needs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import (
    Engine,
    EngineError,
    EngineInfo,
    GenerationRequest,
    check_length,
    check_supported,
)
from agent_server.engines.upstream.dialects import OutgoingRequest, UpstreamInfo
from agent_server.engines.upstream.grammar import UpstreamGrammar
from agent_server.engines.upstream.model import UpstreamModel
from agent_server.engines.upstream.transport import Transport
from events.options import SamplingParams


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """A connected upstream. dialect: how to speak to it. served: what it serves. model: the tokenizer and defaults on
    this side. info: what it can do as an engine."""

    dialect: Any
    served: UpstreamInfo
    model: UpstreamModel
    info: EngineInfo

    def outgoing(
        self, request: GenerationRequest, sampling: SamplingParams, grammar: UpstreamGrammar | None = None
    ) -> OutgoingRequest:
        return OutgoingRequest(
            request=request,
            sampling=sampling,
            served=self.served,
            vocabulary=self.model.vocabulary,
            grammar=grammar,
            ends=self.model.ends,
        )

    async def verify(self, transport: Transport) -> None:
        """Raises EngineError if the server now serves another model or context length."""
        served = await self.dialect.describe(transport, self.served.model)
        if (served.model, served.context_length) != (self.served.model, self.served.context_length):
            raise EngineError(
                "unavailable", f"The upstream {transport.address.url} was restarted with another model, {served.model}."
            )


def bounded(request: GenerationRequest, upstream: Upstream) -> SamplingParams:
    room = upstream.info.context_length - len(request.prompt_token_ids)
    sampling = upstream.model.fill(request.sampling)
    return msgspec.structs.replace(sampling, max_tokens=min(room, sampling.max_tokens or room))


def admit(request: GenerationRequest, engine: Engine, running: Collection[str], limit: int) -> None:
    """Check that an engine can take a request now. Raises EngineError."""
    status = engine.status
    if status.state not in ("ready", "degraded"):
        message = status.message or f"The engine is {status.state}."
        raise EngineError("unavailable", message, retryable=status.state != "failed")
    if request.request_id in running:
        raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
    if len(running) >= limit:
        raise EngineError("overloaded", f"{limit} generations are running already; try again later.", retryable=True)
    check_length(request, engine.info.context_length)
    check_supported(request, engine.info)
