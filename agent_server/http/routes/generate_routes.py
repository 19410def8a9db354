"""The generation protocol at `POST /v1/generate`, complete or as server-sent events, and llama.cpp's `/completion`."""

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
from adapters.llamacpp_completion import NativeIdentity, NativeStream, native_body, parse
from adapters.tokenize import template_body
from agent_server.http.routes.answering import (
    answer_json,
    context_length,
    model_for,
    model_name,
    server_tool_names,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.http import guarded, read_request
from agent_server.http.routes.tokenize_routes import loaded_prompts, render_chat
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

    return [Route("/v1/generate", guarded(answer), methods=["POST"]), *llamacpp_routes(server)]


def generate_identity(server: Server, inbound: Inbound) -> Identity:
    return Identity(
        request_id=f"gen_{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        model_info=model_info(model_for(server, inbound.options.model)),
        hidden_tools=server_tool_names(server, inbound),
    )


def model_info(model: AnyModel) -> dict[str, object]:
    """The protocol's model information; its `max_tokens` is the context length. Empty until the model is loaded."""
    if not model.ready:
        return {}
    details = model.engine.info.details
    fields = {
        "version": details.get("version"),
        "max_tokens": context_length(model),
        "quantization": details.get("quantization"),
    }
    return {name: value for name, value in fields.items() if value is not None}


def llamacpp_routes(server: Server) -> list[BaseRoute]:
    async def completion(request: Request) -> Response:
        prompts = await loaded_prompts(server, None)
        encode = partial(prompts.tokenize, add_special_tokens=False)
        inbound = await read_request(server, request, partial(parse, new_id=new_id, encode=encode))
        texts = tuple(each if isinstance(each, str) else prompts.detokenize(each) for each in inbound.extra.prompts)
        identity = NativeIdentity(model=model_name(server, inbound.options), prompt_texts=texts)
        runs = await start_runs(server, request, inbound, prompts=inbound.extra.prompts)
        if inbound.stream:
            encoder = NativeStream(identity, inbound.extra)
            return await stream_answer(server, request, runs, encoder, wire="completions")
        return await answer_json(request, runs, lambda answers: native_body(answers, identity, inbound.extra))

    async def apply_template(request: Request) -> Response:
        prompt = await render_chat(server, request)
        return Response(template_body(prompt.text), media_type="application/json")

    return [
        Route("/completion", guarded(completion), methods=["POST"]),
        Route("/apply-template", guarded(apply_template), methods=["POST"]),
    ]
