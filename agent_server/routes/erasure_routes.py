"""An operator removes what is stored of a tenant, or of one of its keys or users, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.audit import note
from agent_server.routes.health_routes import json_response
from agent_server.routes.http import guarded
from agent_server.store import Extent

if TYPE_CHECKING:
    from agent_server.server import Server

NO_TENANT = "Say whose threads: ?tenant=NAME, and empty for those of a server without keys."


class Erased(msgspec.Struct, frozen=True):
    """How many threads and responses were removed."""

    threads: int
    responses: int


def routes(server: Server) -> list[BaseRoute]:
    async def erase(request: Request) -> Response:
        asked = request.query_params
        if unknown := asked.keys() - {"tenant", "key"}:
            raise RequestError("invalid_request", f"There is no parameter {min(unknown)[:80]} here.", "key")
        if "tenant" not in asked:
            raise RequestError("invalid_request", NO_TENANT, "tenant")
        extent = Extent(tenant=asked["tenant"], key=asked.get("key"))
        removed = await server.erase(extent)
        told = Erased(removed.threads.total(), removed.responses.total())
        note(
            "threads.removed", tenant=asked["tenant"], of_key=asked.get("key"), threads=told.threads,
            responses=told.responses, reason="erasure", by=request.state.principal.name,
        )  # fmt: skip
        return json_response(told)

    return [Route("/operator/threads", guarded(erase), methods=["DELETE"])]
