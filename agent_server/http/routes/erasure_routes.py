"""An operator removes what is stored of a tenant, or of one of its keys or users, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.runs.store import Erasure, Extent

if TYPE_CHECKING:
    from agent_server.http.server import Server

NO_TENANT = "Say whose threads: ?tenant=NAME, and empty for those of a server without keys."


WAIT_SECONDS = 10.0
"""How long the answer waits for the end of an erasure."""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """How many threads and responses were removed so far. total: threads that there were when it began."""

    id: str
    status: Literal["running", "finished"]
    tenant: str
    key: str | None
    threads: int
    responses: int
    total: int
    created_at: int
    ended_at: int | None


def _erased(erasure: Erasure) -> Erased:
    status: Literal["running", "finished"] = "running" if erasure.ended_at is None else "finished"
    return Erased(
        id=erasure.id, status=status, tenant=erasure.tenant, key=erasure.key, threads=erasure.threads,
        responses=erasure.responses, total=erasure.total, created_at=erasure.created_at, ended_at=erasure.ended_at,
    )  # fmt: skip


def routes(server: Server) -> list[BaseRoute]:
    async def erase(request: Request) -> Response:
        asked = request.query_params
        if unknown := asked.keys() - {"tenant", "key"}:
            raise RequestError("invalid_request", f"There is no parameter {min(unknown)[:80]} here.", "key")
        if "tenant" not in asked:
            raise RequestError("invalid_request", NO_TENANT, "tenant")
        extent = Extent(tenant=asked["tenant"], key=asked.get("key"))
        erased = _erased(await server.erase(extent, request.state.principal.name, WAIT_SECONDS))
        if erased.status == "finished":
            return json_response(erased)
        response = json_response(erased, 202)
        response.headers["location"] = f"{request.scope.get('root_path', '')}/operator/erasures/{erased.id}"
        return response

    async def erasures(_: Request) -> Response:
        return json_response({"erasures": [_erased(each) for each in await server.store.erasures()]})

    async def erasure(request: Request) -> Response:
        erasure = await server.store.erasure(request.path_params["erasure_id"])
        if erasure is None:
            raise RequestError("not_found", "There is no such erasure.", "erasure_id")
        return json_response(_erased(erasure))

    return [
        Route("/operator/threads", guarded(erase), methods=["DELETE"]),
        Route("/operator/erasures", guarded(erasures), methods=["GET"]),
        Route("/operator/erasures/{erasure_id}", guarded(erasure), methods=["GET"]),
    ]
