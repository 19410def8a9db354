"""The agents over A2A 1.0 with the official SDK (extra `a2a`): a card and a JSON-RPC endpoint for each, with keys,
tenants and limits as on any wire. A context is a thread; a task is one run, or several if the agent asks questions."""

from __future__ import annotations

import asyncio
import importlib
import json
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.body import Limits, read_json
from adapters.errors import RequestError
from agent_server.http.agent_calls import callable_agents
from agent_server.http.routes.http import guarded, parse_off_loop, read_body

if TYPE_CHECKING:
    from agent_server.http.a2a import A2aAgents
    from agent_server.http.server import Server

CARD = ".well-known/agent-card.json"
BYTES, VALUES = 2**20, 2000
"""Limits on a body and on its JSON values. The SDK converts it to protobuf and back on the event loop, many times more
slowly than it is decoded; and agents take texts and data, no files."""


class DecodedRequest(Request):
    """A request whose body was read and decoded within this server's limits: the SDK has none of its own."""

    def __init__(self, request: Request, body: object) -> None:
        super().__init__(request.scope, request.receive)
        self._decoded = body

    async def json(self) -> object:
        """Return the decoded body. Raises JSONDecodeError for one that is not JSON, which the SDK answers."""
        if isinstance(self._decoded, RequestError):
            raise json.JSONDecodeError(self._decoded.message, "", 0)
        return self._decoded


def routes(server: Server) -> list[BaseRoute]:
    cache: list[A2aAgents] = []

    async def agents() -> A2aAgents:
        """The agents behind the SDK, which the first request imports: in a thread, since that takes half a second."""
        if not cache:
            try:
                module = await asyncio.to_thread(importlib.import_module, "agent_server.http.a2a")
            except ImportError as error:
                message = "This server has no A2A support. Install it with pip install 'agent-server[a2a]'."
                raise RequestError("not_found", message) from error
            if not cache:  # another request may have been waiting, too
                cache.append(module.A2aAgents(server))
        return cache[0]

    def name_in(request: Request) -> str:
        names = callable_agents(server)
        name = str(request.path_params.get("agent", next(iter(names))))
        if name not in names:
            raise RequestError("not_found", f"There is no agent of that name. Agents: {', '.join(names)}.")
        return name

    async def card(request: Request) -> Response:
        return await (await agents()).card(name_in(request), request)

    async def call(request: Request) -> Response:
        name = name_in(request)
        most = min(server.settings.http.max_body, BYTES)
        body = await read_body(request, most)
        decoded: object
        try:
            decoded = await parse_off_loop(len(body), read_json, body, Limits(body=most, values=VALUES))
        except RequestError as error:
            if error.kind != "invalid_request":
                raise
            decoded = error
        return await (await agents()).call(name, DecodedRequest(request, decoded))

    return [
        Route(f"/{CARD}", guarded(card)),
        Route("/a2a/{agent}/" + CARD, guarded(card)),
        Route("/a2a/{agent}", guarded(call), methods=["POST"]),
    ]
