"""The ASGI application: routes and middleware around a Server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from adapters.body import Notes, noting
from adapters.errors import ErrorKind, RequestError
from agent_server.http.auth import AuthMiddleware
from agent_server.http.middleware.context import (
    RequestContext,
    claim_of,
    client_request_id,
    enter,
    first_headers,
    id_headers,
)
from agent_server.http.middleware.counted_send import SWITCHING, CountedSend, in_slices
from agent_server.http.middleware.errors import (
    correct_version_prefix,
    error_response,
    refuse_websocket,
    route_path,
    strip_repeated_prefix,
)
from agent_server.http.middleware.origins import (
    CONTAINER_NAMES,
    BrowserGuard,
    BrowserPolicy,
    in_container,
    server_names,
)
from agent_server.http.openapi import document
from agent_server.http.routes import all_routes
from agent_server.http.server import StartupError
from agent_server.ids import new_id
from agent_server.observability.audit import use_audit
from agent_server.observability.telemetry import note_ids
from agent_server.observability.tracing import join_trace
from agent_server.settings import Settings
from agent_server.version import version

if TYPE_CHECKING:
    from agent_server.engine_protocol.protocol import Engine
    from agent_server.http.server import Server

logger = logging.getLogger("agent_server")
EXPOSED = (
    "X-Run-Id", "X-Thread-Id", "X-Request-Id", "Request-Id", "X-Warning", "Retry-After", "RateLimit",
    "RateLimit-Policy",
)  # fmt: skip
CLIENT_GONE = 499
FAULT = RequestError("internal", "Internal server error. The server's log has the details.")
REFUSED = 403


def create_app(
    settings: Settings | None = None, *, agents: Sequence[object] = (), engine: Engine | None = None
) -> Application:
    """Create the server as an ASGI application: run it with any ASGI server, or mount it in another application.

    A mounted application starts with its first request, because lifespan events do not reach mounted applications.
    Enter `running()` in the outer application's lifespan to start it earlier and to let active runs end.

    Args:
        settings: The server's settings; None reads them from the environment.
        agents: Agents of this package or of other frameworks, in addition to those in the settings.
        engine: The engine that generates tokens, instead of the one that the settings select.

    Raises:
        StartupError: The settings contradict each other, or a model or agent cannot be read.
    """
    from agent_server.http.assemble import build_server

    return build_app(build_server(settings or Settings(), agents=agents, engine=engine))


def build_app(server: Server) -> Application:
    return Application(server)


class Application(FastAPI):
    """FastAPI around a Server: gives every request its context, and starts the server if no lifespan has.

    The server's own routes are Starlette routes that read raw bytes; routes that an application adds are FastAPI's.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(
            routes=all_routes(server),
            middleware=middleware(server),
            exception_handlers=dict(HANDLERS),
            lifespan=lambda _: self.running(),
            title="agent-server",
            version=version(),
            openapi_url=None,
            docs_url=None,
            redoc_url=None,
        )
        self.state.server = server
        self._server = server
        self._prefix = server.settings.listening.root_path
        self._layers = list(self.user_middleware)
        routes = [route for route in self.routes if isinstance(route, Route | WebSocketRoute)]
        self._paths: dict[object, str] = {route.endpoint: route.path for route in routes}

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of the server's routes and of added ones; built once."""
        if self.openapi_schema is None:
            added = get_openapi(title=self.title, version=self.version, routes=self.routes)
            own = document(self.routes, version=self.version)
            own["paths"] |= added["paths"]
            own["components"]["schemas"] |= added.get("components", {}).get("schemas", {})
            self.openapi_schema = {**own}
        return self.openapi_schema

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the server, and close it on exit; active runs get the drain time. Raises StartupError."""
        await self._server.start()
        try:
            yield
        finally:
            await self._server.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await super().__call__(scope, receive, send)
            return
        if self._prefix:
            strip_repeated_prefix(scope, self._prefix)
        correct_version_prefix(scope)
        unwrapped = self.user_middleware == self._layers
        send = in_slices(send, claim_of(scope))
        headers = first_headers(scope)
        context = RequestContext(
            client_request_id(headers) or new_id("req"),
            direct_send=send if unwrapped else None,
            notes=Notes(strict=self._server.settings.http.strict_fields, count=self._server.telemetry.ignored),
        )
        enter(scope, context)
        use_audit(self._server.audit)
        note_ids(request=context.request_id, trace=join_trace(headers))
        scope.pop("route", None)  # an outer application's route; our router sets ours
        answer = CountedSend(scope, context, send, self._count, id_headers(headers, context.request_id))
        try:
            if not self._server.started:
                await self._server.start()
        except StartupError as error:
            await unavailable(scope, receive, answer, error)
            return
        try:
            with noting(context.notes):
                await super().__call__(scope, receive, answer)
        except Exception as error:
            if scope["type"] == "websocket":  # over HTTP, `fail` has logged it, and Starlette raises it again
                logger.error("unhandled error on the WebSocket %s", route_path(scope), exc_info=error)
        finally:
            context.direct_send = None  # breaks a reference cycle: `send` belongs to the object that holds the scope

    def _count(self, scope: Scope, context: RequestContext, status: int) -> None:
        """Count an answer under the route's pattern: a path with a client's ids would make unbounded labels."""
        route = scope.get("route")  # set by FastAPI's router for its own routes; ours are identified by their endpoints
        name = route.path if isinstance(route, Route) else self._paths.get(scope.get("endpoint"), "none")
        if status == SWITCHING and context.refused:
            status = REFUSED
        self._server.telemetry.record_answer(name, status, context.refused)


def middleware(server: Server) -> list[Middleware]:
    """The middleware, outermost first. CORS is outermost, so that a browser can read refusals."""
    settings = server.settings
    chain = [
        Middleware(BrowserGuard, policy=browser_policy(settings)),
        Middleware(AuthMiddleware, authority=server.authority, quotas=server.quotas),
    ]
    browsers = settings.browsers
    if browsers.cors_origins:
        chain.insert(
            0,
            Middleware(
                CORSMiddleware,
                allow_origins=list(browsers.cors_origins),
                allow_methods=["*"],
                allow_headers=["*"],
                allow_credentials=browsers.cors_credentials,
                expose_headers=list(EXPOSED),
                max_age=600,
            ),
        )
    return chain


def browser_policy(settings: Settings) -> BrowserPolicy:
    """Which hosts and origins may use the server.

    With API keys every Host is accepted unless allowed hosts are set: a page that rebinds a name has no key to send.
    """
    browsers, access = settings.browsers, settings.access
    keyed = access.api_keys or access.keys_file or settings.issuer.issuer
    if keyed and not browsers.allowed_hosts:
        return BrowserPolicy(origins=browsers.cors_origins)
    names = {name for address in settings.listening.addresses for name in server_names(address.host or "localhost")}
    contained = in_container() if browsers.container_names is None else browsers.container_names
    if contained:
        names |= {*CONTAINER_NAMES}
    return BrowserPolicy({*browsers.allowed_hosts, *names}, browsers.cors_origins, single_labels=contained)


async def unavailable(scope: Scope, receive: Receive, send: Send, error: StartupError) -> None:
    """Answer a request while the server cannot start; the next request tries to start it again."""
    logger.error("%s", error)
    refused = RequestError("unavailable", str(error))
    if scope["type"] == "http":
        await error_response(scope, refused)(scope, receive, send)
    else:
        await refuse_websocket(scope, receive, send, refused)


async def refuse(request: Request, error: Any) -> Response:
    """Convert the router's own refusals (unknown path, wrong method) to the error format of the requested wire."""
    kind: ErrorKind = "method_not_allowed" if error.status_code == 405 else "not_found"
    message = f"No route for {request.method} {route_path(request.scope)[:200]}."
    return error_response(request.scope, RequestError(kind, message))


async def refuse_request(request: Request, error: Any) -> Response:
    return error_response(request.scope, error)


async def leave(request: Request, error: Exception) -> Response:
    """The client disconnected before its body had arrived; the answer is only counted."""
    logger.debug("a client disconnected while sending its body")
    return Response(status_code=CLIENT_GONE)


async def fail(request: Request, error: Exception) -> Response:
    """Answer an unhandled exception. The log has the traceback; the client gets no internal details."""
    logger.error("unhandled error on %s %s", request.method, route_path(request.scope), exc_info=error)
    return error_response(request.scope, FAULT)


HANDLERS: Mapping[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: refuse,
    RequestError: refuse_request,
    ClientDisconnect: leave,
    Exception: fail,
}
