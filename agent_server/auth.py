"""Who may ask: API keys, tenants and the list of public paths. Deny by default.

A key is sent as `Authorization: Bearer KEY`, `x-api-key: KEY` (Anthropic's SDK) or, on WebSockets where a browser
can set no header, as `?api_key=KEY`. A key belongs to a tenant, and the tenant is part of every store key and every
look-up of a run, so that a foreign id reads as one that does not exist.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from adapters.errors import RequestError
from agent_server.web.errors import error_response, refuse_websocket, route_path

PUBLIC_PATHS = frozenset({"/", "/health", "/ready", "/favicon.ico", "/favicon.svg"})
PUBLIC_PREFIXES = ("/assets/",)
OPERATOR_PREFIX = "/operator/"
"""Paths below it take an operator's key and no tenant's; without such keys nobody may use them."""


class Keys:
    """API keys, each with its tenant. No keys at all: everyone is the one nameless tenant."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._tenants = [self._split(key) for key in keys if key]

    @staticmethod
    def _split(key: str) -> tuple[str, bytes]:
        tenant, _, secret = key.rpartition(":")
        return tenant, secret.encode()

    def __bool__(self) -> bool:
        return bool(self._tenants)

    @property
    def tenants(self) -> int:
        """How many tenants there are; 1 without keys."""
        return len({tenant for tenant, _ in self._tenants}) or 1

    def tenant(self, presented: str | None) -> str | None:
        """The tenant of a presented key; None if it is unknown. Compares in constant time, all keys always."""
        if not self._tenants:
            return ""
        candidate = (presented or "").encode()
        found = [tenant for tenant, secret in self._tenants if hmac.compare_digest(secret, candidate)]
        return found[0] if found else None


def presented_key(headers: Mapping[str, str], query: str = "") -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key") or next(iter(parse_qs(query).get("api_key", [])), None)


def is_public(path: str) -> bool:
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_PREFIXES)


class AuthMiddleware:
    """Puts `tenant` into the scope's state, or answers 401 in the shape of the wire that was asked."""

    def __init__(self, app: ASGIApp, keys: Keys, operators: Keys | None = None) -> None:
        self.app = app
        self.keys = keys
        self.operators = operators or Keys(())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._admit(scope)
        if refusal is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await error_response(scope, refusal)(scope, receive, send)
        else:
            await refuse_websocket(scope, receive, send, refusal)

    def _admit(self, scope: Scope) -> RequestError | None:
        connection = HTTPConnection(scope)
        path = route_path(scope)
        if path.startswith(OPERATOR_PREFIX):
            return self._admit_operator(scope, connection)
        websocket = scope["type"] == "websocket"
        query = connection.url.query if websocket else ""
        tenant = self.keys.tenant(presented_key(connection.headers, query))
        if tenant is None and not websocket and (is_public(path) or scope["method"] == "OPTIONS"):
            tenant = ""
        if tenant is None:
            return RequestError("unauthorized", "This server asks for an API key: send Authorization: Bearer KEY.")
        scope.setdefault("state", {})["tenant"] = tenant
        return None

    def _admit_operator(self, scope: Scope, connection: HTTPConnection) -> RequestError | None:
        if not self.operators:
            return RequestError("forbidden", "This server has no operator: set AGENT_SERVER_OPERATOR_KEYS.")
        if self.operators.tenant(presented_key(connection.headers)) is None:
            message = "This path asks for an operator's key: send Authorization: Bearer KEY."
            return RequestError("unauthorized", message)
        scope.setdefault("state", {})["tenant"] = ""
        return None
