"""The agents over A2A 1.0 with the official SDK (extra `a2a`): a card and a JSON-RPC endpoint for each, with keys,
tenants and limits as on any wire. A context is a thread; a task is one run, or several if the agent asks questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.http.agent_calls import callable_agents
from agent_server.http.routes.http import guarded

if TYPE_CHECKING:
    from agent_server.http.a2a import A2aAgents
    from agent_server.http.server import Server

CARD = ".well-known/agent-card.json"


def routes(server: Server) -> list[BaseRoute]:
    cache: list[A2aAgents] = []

    def agents() -> A2aAgents:
        """The agents behind the SDK, which the first request imports."""
        if not cache:
            try:
                from agent_server.http.a2a import A2aAgents
            except ImportError as error:
                message = "This server has no A2A support. Install it with pip install 'agent-server[a2a]'."
                raise RequestError("not_found", message) from error
            cache.append(A2aAgents(server))
        return cache[0]

    def name_in(request: Request) -> str:
        names = callable_agents(server)
        name = str(request.path_params.get("agent", next(iter(names))))
        if name not in names:
            raise RequestError("not_found", f"There is no agent of that name. Agents: {', '.join(names)}.")
        return name

    async def card(request: Request) -> Response:
        return await agents().card(name_in(request), request)

    async def call(request: Request) -> Response:
        return await agents().call(name_in(request), request)

    return [
        Route(f"/{CARD}", guarded(card)),
        Route("/a2a/{agent}/" + CARD, guarded(card)),
        Route("/a2a/{agent}", guarded(call), methods=["POST"]),
    ]
