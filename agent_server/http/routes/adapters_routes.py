"""LoRA adapters that an operator loads and removes while the server runs, with a key of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_body
from agent_server.models.pool import AdaptedModel
from agent_server.observability.audit import note

if TYPE_CHECKING:
    from agent_server.http.server import Server

MAX_BYTES = 8192


class NewAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: what clients then ask for. folder: of the adapter, on the server's machine. model: the one that it is for;
    "" for the first."""

    name: str
    folder: str
    model: str = ""


class AdapterRecord(msgspec.Struct, frozen=True):
    """An adapter that is served, and the model that it changes."""

    name: str
    model: str


def routes(server: Server) -> list[BaseRoute]:
    def answer(status: int = 200) -> Response:
        found = [each for each in server.models.values() if isinstance(each, AdaptedModel)]
        return json_response({"adapters": [AdapterRecord(each.name, each.root.name) for each in found]}, status)

    async def shown(request: Request) -> Response:
        return answer()

    async def load(request: Request) -> Response:
        try:
            wish = msgspec.json.decode(await read_body(request, MAX_BYTES), type=NewAdapter)
        except (ValueError, RecursionError) as error:
            raise RequestError("invalid_request", f'Send {{"name": "...", "folder": "..."}}: {error}') from None
        try:
            await server.load_adapter(wish.name, wish.folder, wish.model)
        except EngineError as error:
            if error.retryable:
                raise
            raise RequestError("invalid_request", error.message, "folder") from error
        note("adapter.loaded", adapter=wish.name, model=wish.model)
        return answer(201)

    async def remove(request: Request) -> Response:
        await server.remove_adapter(request.path_params["name"])
        note("adapter.removed", adapter=request.path_params["name"])
        return Response(status_code=204)

    return [
        Route("/operator/adapters", guarded(shown), methods=["GET"]),
        Route("/operator/adapters", guarded(load), methods=["POST"]),
        Route("/operator/adapters/{name}", guarded(remove), methods=["DELETE"]),
    ]
