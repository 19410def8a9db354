"""llama.cpp's own routes beside OpenAI's: `/completion` and `/apply-template`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.body import Inbound
from adapters.llamacpp_completion import NativeIdentity, NativeStream, native_body, parse
from adapters.tokenize import template_body
from agent_server.http.routes.answering import answer_json, model_name, start_runs, stream_answer
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_request
from agent_server.http.routes.tokenize_routes import loaded, rendered_chat
from agent_server.ids import new_id
from agent_server.models.prompting.prompt import PromptBuilder

if TYPE_CHECKING:
    from agent_server.http.server import Server


def routes(server: Server) -> list[BaseRoute]:
    async def completion(request: Request) -> Response:
        prompts = await loaded(server, None)
        encode = partial(prompts.tokenize, add_special_tokens=False)
        inbound = await read_request(server, request, partial(parse, new_id=new_id, encode=encode))
        identity = _identity(server, prompts, inbound)
        runs = await start_runs(server, request, inbound, prompts=inbound.extra.prompts)
        if inbound.stream:
            encoder = NativeStream(identity, inbound.extra)
            return await stream_answer(server, request, runs, encoder, wire="completions")
        return await answer_json(request, runs, lambda answers: native_body(answers, identity, inbound.extra))

    async def apply_template(request: Request) -> Response:
        prompt = await rendered_chat(server, request)
        return Response(template_body(prompt.text), media_type="application/json")

    return [
        Route("/completion", guarded(completion), methods=["POST"]),
        Route("/apply-template", guarded(apply_template), methods=["POST"]),
    ]


def _identity(server: Server, prompts: PromptBuilder, inbound: Inbound) -> NativeIdentity:
    given = inbound.extra.prompts
    texts = tuple(each if isinstance(each, str) else prompts.detokenize(each) for each in given)
    return NativeIdentity(model=model_name(server, inbound.options), prompt_texts=texts)
