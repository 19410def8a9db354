"""Anthropic's Messages. All values of `anthropic-version` are treated alike."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import anthropic_messages
from adapters.anthropic_messages import MessageIdentity, MessageStream, message_body
from agent_server.http.routes.answering import (
    answer_json,
    model_name,
    prompt_of,
    server_tool_names,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.http import guarded, read_request
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server


def routes(server: Server) -> list[BaseRoute]:
    async def messages(request: Request) -> Response:
        parse = partial(anthropic_messages.parse, new_id=new_id, media=server.takes)
        inbound = await read_request(server, request, parse)
        identity = MessageIdentity(
            id=f"msg_{inbound.input.run_id.removeprefix('run_')}",
            model=model_name(server, inbound.options),
            thread_id=inbound.input.thread_id,
            hidden_tools=server_tool_names(server, inbound),
        )
        runs = await start_runs(server, request, inbound)
        flags = msgspec.structs.replace(inbound.extra, max_tokens=runs[0].options.sampling.max_tokens or 0)
        if inbound.stream:
            encoder = MessageStream(identity, flags, prompt=prompt_of(runs[0]))
            return await stream_answer(server, request, runs, encoder, wire="messages")
        return await answer_json(request, runs, lambda answers: message_body(answers[0], identity, flags))

    return [Route("/v1/messages", guarded(messages), methods=["POST"])]
