"""The MCP servers of the agents, at `/agui/mcp`: their state, their tools, and which of those a person must allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded

if TYPE_CHECKING:
    from agent_server.http.server import Server


def routes(server: Server) -> list[BaseRoute]:
    async def servers(request: Request) -> Response:
        return json_response({"servers": [] if server.mcp is None else server.mcp.listed()})

    return [Route("/agui/mcp", guarded(servers))]
