"""An upstream that was met: what a request to it needs to know."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine.protocol import EngineError, EngineInfo, GenerationRequest
from agent_server.engines.upstream.dialects import Asked, Served
from agent_server.engines.upstream.grammar import Grammar
from agent_server.engines.upstream.model import Model
from agent_server.engines.upstream.transport import Transport
from events.options import SamplingParams


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream that was met: how to speak to it, what it serves, and our side of the model."""

    dialect: Any
    served: Served
    model: Model
    info: EngineInfo

    def asked(self, request: GenerationRequest, sampling: SamplingParams, grammar: Grammar | None = None) -> Asked:
        return Asked(
            request=request,
            sampling=sampling,
            served=self.served,
            vocabulary=self.model.vocabulary,
            grammar=grammar,
            ends=self.model.ends,
        )

    async def verify(self, transport: Transport) -> None:
        """EngineError if the server now serves something else."""
        served = await self.dialect.describe(transport, self.served.model)
        if (served.model, served.context_length) != (self.served.model, self.served.context_length):
            raise EngineError(
                "unavailable", f"The upstream {transport.address.url} came back with another model, {served.model}."
            )
