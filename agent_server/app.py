"""The ASGI application: routes and middleware around a Server. Wires only."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters.errors import ErrorKind, RequestError
from agent_server.auth import AuthMiddleware, Keys
from agent_server.routes import all_routes
from agent_server.routes.http import SEND, error_response, wire_of
from agent_server.settings import Settings

if TYPE_CHECKING:
    from agent_server.agent import Agent
    from agent_server.engine.protocol import Engine
    from agent_server.server import Server

logger = logging.getLogger("agent_server")
EXPOSED = ("X-Run-Id", "X-Thread-Id", "Retry-After")


def create_app(
    settings: Settings | None = None, *, agents: Sequence[Agent] = (), engine: Engine | None = None
) -> Starlette:
    """An application for those who embed the server: mount it, or run it with any ASGI server.

    `agents` come on top of those that the settings name; `engine` replaces the one that they choose.
    """
    from agent_server.assemble import build_server

    return build_app(build_server(settings or Settings(), agents=agents, engine=engine))


def build_app(server: Server) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await server.start()
        try:
            yield
        finally:
            await server.close()

    app = Application(
        routes=all_routes(server),
        middleware=middleware(server),
        exception_handlers={HTTPException: refuse, RequestError: refuse_request, Exception: fail},
        lifespan=lifespan,
    )
    app.state.server = server
    return app


class Application(Starlette):
    """Starlette, with the server's own `send` kept for streams, as long as no layer was added that might want to see
    what is in them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._layers = list(self.user_middleware)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.user_middleware == self._layers:
            scope[SEND] = send
        await super().__call__(scope, receive, send)


def middleware(server: Server) -> list[Middleware]:
    """CORS outside authentication, so that a browser can read a 401."""
    operators = Keys(key.get_secret_value() for key in server.settings.operator_keys)
    origins = server.settings.cors_origins
    chain = [Middleware(AuthMiddleware, keys=server.keys, origins=origins, operators=operators)]
    if origins:
        chain.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(origins),
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=list(EXPOSED),
                max_age=600,
            ),
        )
    return chain


async def refuse(request: Request, error: Any) -> Response:
    """The router's own refusals (unknown path, wrong method) in the shape of the wire that was asked."""
    kind: ErrorKind = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"{request.method} {request.url.path[:200]} is not something this server answers."
    return error_response(wire_of(request.url.path), RequestError(kind, message))


async def refuse_request(request: Request, error: Any) -> Response:
    return error_response(wire_of(request.url.path), error)


async def fail(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has the trace, the client gets a sentence and nothing of the inside."""
    logger.error("unhandled error on %s %s", request.method, request.url.path, exc_info=error)
    return error_response(
        wire_of(request.url.path), RequestError("internal", "The server made a mistake; it is logged.")
    )
