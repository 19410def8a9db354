"""`POST /ai-sdk/{agent}` answers `useChat`; `…/{chat}/stream` resumes a chat, and `…/{chat}/stop` stops it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import ui_messages
from adapters.body import notes_of_request
from adapters.ui_messages import UiMessageStream
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded, read_request, stream_run
from agent_server.http.routes.openai_routes import IdRoute
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun

BASE = "/ai-sdk/{agent}"


def routes(server: Server) -> list[BaseRoute]:
    async def answer(request: Request) -> Response:
        parse = partial(ui_messages.parse, new_id=new_id, media=server.takes)
        inbound = await read_request(server, request, parse)
        run = await server.runs.start(
            inbound.input,
            inbound.options,
            agent=request.path_params["agent"],
            tenant=request.state.tenant,
            grace=server.settings.runs.grace,
            warnings=[*inbound.extra.warnings, *notes_of_request().warnings],
        )
        return stream_chat(run)

    async def resume(request: Request) -> Response:
        """Stream the chat's active run from its start; 204 if there is none, which the client treats as nothing to
        resume."""
        running = await server.runs.going_on(request.path_params["chat_id"], request.state.tenant)
        return stream_chat(running[0]) if running else Response(status_code=204)

    async def stop(request: Request) -> Response:
        running = await server.runs.going_on(request.path_params["chat_id"], request.state.tenant)
        return json_response({"stopped": any([await run.cancel() for run in running])})

    def stream_chat(run: AnyRun) -> Response:
        continued = ui_messages.continued_by(run.input.forwarded_props)
        message_id = continued.id or f"ui-{run.id}"
        encoder = UiMessageStream(message_id, denied=continued.denied, state=run.input.state)
        stream = stream_run(run, encoder, interval=server.settings.http.keep_alive)
        stream.headers.update(ui_messages.HEADERS)
        return stream

    return [
        Route(BASE, guarded(answer), methods=["POST"]),
        IdRoute(BASE + "/{chat_id}/stream", guarded(resume)),
        IdRoute(BASE + "/{chat_id}/stop", guarded(stop), methods=["POST"]),
    ]
