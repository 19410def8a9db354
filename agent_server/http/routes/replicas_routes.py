"""What an operator sees of the replicas and does to them, with a key of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.engines.replicas import ReplicaSet
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_body
from agent_server.observability.audit import note

if TYPE_CHECKING:
    from agent_server.http.server import Server

MAX_BYTES = 4096


class ReplicaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """name: the replica's. draining: whether it is to get no more generations."""

    name: str
    draining: bool


def routes(server: Server) -> list[BaseRoute]:
    def replicas() -> ReplicaSet:
        engine = server.model.engine
        if not isinstance(engine, ReplicaSet):
            raise RequestError("not_found", "This server has no replicas: it was started without --engine URL.")
        return engine

    def answer() -> Response:
        found = replicas()
        body: dict[str, Any] = {"state": found.status.state, "waiting": found.balancer.waiting}
        return json_response({**body, "replicas": found.describe()})

    async def shown(request: Request) -> Response:
        return answer()

    async def drain(request: Request) -> Response:
        try:
            wish = msgspec.json.decode(await read_body(request, MAX_BYTES), type=ReplicaChange)
        except (ValueError, RecursionError) as error:
            raise RequestError("invalid_request", f'Send {{"name": "...", "draining": true}}: {error}') from None
        if not replicas().drain(wish.name, wish.draining):
            raise RequestError("not_found", "There is no replica of that name.")
        note("replica.drained" if wish.draining else "replica.resumed", replica=wish.name)
        return answer()

    return [
        Route("/operator/replicas", guarded(shown), methods=["GET"]),
        Route("/operator/replicas", guarded(drain), methods=["POST"]),
    ]
