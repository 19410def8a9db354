"""OpenAI's wires that answer with one assistant message: Chat Completions, and the list of models."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import openai_chat
from adapters.inbound import Inbound
from adapters.openai_chat import ChatIdentity, ChatStream, chat_body
from agent_server.ids import new_id
from agent_server.routes.answering import (
    CLIENT_GONE,
    agent_for,
    collect,
    model_name,
    read_request,
    server_tools,
    start_runs,
    stream_answer,
)
from agent_server.routes.http import guarded

if TYPE_CHECKING:
    from agent_server.server import Server


def routes(server: Server) -> list[BaseRoute]:
    settings = server.settings

    async def chat(request: Request) -> Response:
        inbound = await read_request(request, settings.max_body, partial(openai_chat.parse, new_id=new_id))
        identity = chat_identity(server, inbound)
        runs = await start_runs(server, request, inbound)
        if inbound.stream:
            encoder = ChatStream(identity, inbound.extra, n=len(runs))
            return await stream_answer(server, request, runs, encoder)
        answers = await collect(request, runs)
        if answers is None:
            return Response(status_code=CLIENT_GONE)
        return Response(chat_body(answers, identity, inbound.extra), media_type="application/json")

    return [Route("/v1/chat/completions", guarded(chat), methods=["POST"])]


def chat_identity(server: Server, inbound: Inbound) -> ChatIdentity:
    return ChatIdentity(
        id=f"chatcmpl-{inbound.input.run_id.removeprefix('run_')}",
        model=model_name(server, inbound.options),
        created=int(time.time()),
        reasoning_content=server.settings.reasoning_content,
        hidden_tools=server_tools(server, agent_for(server, inbound.options.model)),
    )
