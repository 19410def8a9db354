"""`POST /v1/generate`: the generation protocol's messages over HTTP, in one body or as server-sent events."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import generate
from adapters.body import Inbound
from adapters.generate import GenerateStream, Identity, generate_body
from agent_server.http.routes.answering import (
    answer_json,
    context_length,
    model_for,
    model_name,
    servers_own,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_request
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.models.pool import AnyModel


def routes(server: Server) -> list[BaseRoute]:
    async def answer(request: Request) -> Response:
        inbound = await read_request(server, request, partial(generate.parse, new_id=new_id))
        identity = generate_identity(server, inbound)
        runs = await start_runs(server, request, inbound)
        if inbound.stream:
            encoder = GenerateStream(identity, inbound.extra, time.monotonic)
            return await stream_answer(server, request, runs, encoder)
        return await answer_json(request, runs, lambda answers: generate_body(answers[0], identity, inbound.extra))

    return [Route("/v1/generate", guarded(answer), methods=["POST"])]


def generate_identity(server: Server, inbound: Inbound) -> Identity:
    return Identity(
        request_id=f"gen_{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        model_info=model_info(model_for(server, inbound.options.model)),
        hidden_tools=servers_own(server, inbound),
    )


def model_info(model: AnyModel) -> dict[str, object]:
    """What is known of the model; the protocol's `max_tokens` is its context length."""
    if not model.ready:
        return {}
    details = model.engine.info.details
    known = {
        "version": details.get("version"),
        "max_tokens": context_length(model),
        "quantization": details.get("quantization"),
    }
    return {name: value for name, value in known.items() if value is not None}
