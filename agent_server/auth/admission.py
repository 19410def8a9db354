"""Who may ask for what: the list of public paths, and the scope that every other path needs. Deny by default.

A key or a token is sent as `Authorization: Bearer KEY`, `x-api-key: KEY` (Anthropic's SDK) or, on WebSockets where a
browser can set no header, as `?api_key=KEY`. It belongs to a tenant, and the tenant is part of every store key and
every look-up of a run, so that a foreign id reads as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.auth.authority import Authority
from agent_server.auth.principal import Access, Principal, enter_principal
from agent_server.auth.quotas import Quotas
from agent_server.web.context import first_headers
from agent_server.web.errors import error_response, refuse_websocket, route_path

PUBLIC_PATHS = frozenset({"/", "/health", "/ping", "/ready", "/favicon.ico", "/favicon.svg"})
PUBLIC_PREFIXES = ("/assets/",)
OPERATOR_PREFIX = "/operator/"
"""Paths below it take an operator's key and no tenant's; without such keys nobody may use them."""
METRICS_PATH = "/metrics"


def presented_key(headers: Mapping[bytes, bytes], query: str = "") -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    if (key := headers.get(b"x-api-key", b"").decode("latin-1")) or not query:
        return key or None
    return next(iter(parse_qs(query).get("api_key", [])), None)


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


def needed_scope(scope: Scope) -> Access | None:
    """What a request must be allowed to; None for what is public."""
    path = route_path(scope)
    if path.startswith(OPERATOR_PREFIX):
        return "operate"
    if scope["type"] == "http" and (is_public(path) or scope["method"] == "OPTIONS"):
        return None
    return "metrics" if path == METRICS_PATH else "use"


class AuthMiddleware:
    """Puts who asks into the scope's state, or answers 401 or 403 in the shape of the wire that was asked."""

    def __init__(self, app: ASGIApp, authority: Authority, quotas: Quotas | None = None) -> None:
        self.app = app
        self.authority = authority
        self.quotas = quotas

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            await admit(scope, self.authority, self.quotas)
        except RequestError as refusal:
            if scope["type"] == "websocket":
                await refuse_websocket(scope, receive, send, refusal)
            else:
                await refused_answer(scope, refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def admit(
    scope: Scope, authority: Authority, quotas: Quotas | None, headers: Mapping[bytes, bytes] | None = None
) -> None:
    """Find who asks, count the request, and make both known to the routes. headers: its `first_headers`, if they were
    read already. Raises RequestError."""
    if (needed := needed_scope(scope)) is None:
        enter_principal(scope, Principal())
        return
    headers = first_headers(scope) if headers is None else headers
    query = scope.get("query_string", b"").decode("latin-1") if scope["type"] == "websocket" else ""
    found = await authority.admit(presented_key(headers, query), needed)
    if quotas is not None and needed == "use":
        await quotas.request(scope, found)
    enter_principal(scope, found)


def refused_answer(scope: Scope, refusal: RequestError) -> Response:
    """The answer to a request over HTTP that was not admitted."""
    answer = error_response(scope, refusal)
    if refusal.kind == "unauthorized":
        answer.headers["www-authenticate"] = "Bearer"  # RFC 9110, 11.6.1
    return answer
