"""What an operator sees of several models and does to them, with a key of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_body
from agent_server.models.pool import ModelPool
from agent_server.observability.audit import note

if TYPE_CHECKING:
    from agent_server.http.server import Server

MAX_BYTES = 4096


class ModelChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: the model's. loaded: whether it is to be loaded, or unloaded when what it generates is done."""

    name: str
    loaded: bool


def routes(server: Server) -> list[BaseRoute]:
    def pool() -> ModelPool:
        if server.pool is None:
            raise RequestError("not_found", "This server has one model, which stays loaded.")
        return server.pool

    def answer(status: int = 200) -> Response:
        return json_response({"models": pool().describe()}, status)

    async def shown(request: Request) -> Response:
        return answer()

    async def change(request: Request) -> Response:
        try:
            wish = msgspec.json.decode(await read_body(request, MAX_BYTES), type=ModelChange)
        except (ValueError, RecursionError) as error:
            raise RequestError("invalid_request", f'Send {{"name": "...", "loaded": true}}: {error}') from None
        model = pool().models.get(wish.name)
        if model is None:
            raise RequestError("not_found", "There is no model of that name.", "name")
        note("model.loaded" if wish.loaded else "model.unloaded", model=wish.name)
        if wish.loaded:
            pool().begin(model)
        elif model.current is not None and model.loading is None:
            pool().unload(model)
        return answer(202)

    return [
        Route("/operator/models", guarded(shown), methods=["GET"]),
        Route("/operator/models", guarded(change), methods=["POST"]),
    ]
