"""Authorization of requests: the public paths, and the scope that every other path requires. Deny by default.

A key or a token is sent as `Authorization: Bearer KEY`, as `x-api-key: KEY` (Anthropic's SDK) or, on WebSockets, where
browsers cannot set headers, as `?api_key=KEY`. It belongs to a tenant, and the tenant is part of every store key and
every look-up of a run, so that another tenant's id looks like one that does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.http.auth.authority import Authority
from agent_server.http.auth.principal import ANYONE, Access, Principal, asking, enter_principal, principal_of
from agent_server.http.auth.quotas import SAFE_METHODS, Quotas
from agent_server.http.middleware.context import claim_of, first_headers
from agent_server.http.middleware.errors import error_response, refuse_websocket, route_path

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico", "/favicon.svg", "/oauth/callback"})
PUBLIC_PREFIXES = ("/assets/",)
PROBES = frozenset({"/health", "/ready"})
"""Public paths that are answered on reserved connections."""
OPERATOR_PREFIX = "/operator/"
"""Paths below it require an operator's key; without configured operator keys they are closed."""
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
    """The access that a request requires; None for a public path."""
    path = route_path(scope)
    if path.startswith(OPERATOR_PREFIX):
        return "operate"
    if scope["type"] == "http" and (is_public(path) or scope["method"] == "OPTIONS"):
        return None
    return "metrics" if path == METRICS_PATH else "use"


class AuthMiddleware:
    """Stores the principal in the scope's state, or answers 401 or 403 in the requested wire's error format."""

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
    """Authenticate a request, claim its connection for the tenant, count it, and store the principal for the routes.

    headers: its `first_headers`, if already read. Raises RequestError.
    """
    claim = claim_of(scope)
    if (needed := needed_scope(scope)) is None:
        enter_principal(scope, Principal())
        if claim is not None and route_path(scope) not in PROBES:
            claim.check_reserve()
        return
    secret = _presented_in(scope, headers)
    principal = await authority.admit(secret, needed)
    if claim is not None and needed == "use":
        tenant = None if principal is ANYONE else principal.tenant
        has_lapsed: Callable[[], bool] | None = None
        if secret and authority.may_revoke:
            # What a key was allowed to start, an answer or the runs on a WebSocket, may finish after the key has
            # expired, but not after it was revoked.
            only_reads = scope["type"] == "http" and scope["method"] in SAFE_METHODS
            has_lapsed = partial(authority.has_lapsed, secret, principal, expires=only_reads)
        claim(tenant, shares=authority.several, lapsed=has_lapsed)
    if quotas is not None and needed == "use":
        await quotas.request(scope, principal)
    enter_principal(scope, principal, authority.user_header)


def _presented_in(scope: Scope, headers: Mapping[bytes, bytes] | None = None) -> str | None:
    query = scope.get("query_string", b"").decode("latin-1") if scope["type"] == "websocket" else ""
    return presented_key(first_headers(scope) if headers is None else headers, query)


async def admit_again(scope: Scope, authority: Authority) -> None:
    """Authenticate an open connection again before it starts something more.

    Raises RequestError("unauthorized") if its key has expired, was revoked, or now belongs to another tenant.
    """
    principal = await authority.admit(_presented_in(scope), "use")
    previous = principal_of(scope)
    if principal.tenant != previous.tenant:
        raise RequestError("unauthorized", "This key now belongs to another tenant. Connect again.")
    asking.set(principal)
    if principal != previous:
        enter_principal(scope, principal, authority.user_header)


def has_expired(scope: Scope) -> bool:
    """Whether the key that opened a connection has expired."""
    expires = principal_of(scope).expires
    return expires is not None and expires <= time.time()


def refused_answer(scope: Scope, refusal: RequestError) -> Response:
    """The HTTP response to a request that was not admitted."""
    answer = error_response(scope, refusal)
    if refusal.kind == "unauthorized":
        answer.headers["www-authenticate"] = "Bearer"  # RFC 9110, 11.6.1
    return answer
