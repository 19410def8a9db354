"""A request's context besides its ASGI scope, shared by the application, the middleware and the routes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from starlette.types import Scope, Send

from adapters.body import Notes
from agent_server.http.middleware.connections import Claim

_KEY = "agent_server.request"
_DISCONNECTED = "agent_server.connection_lost"
_CLAIM = "agent_server.claim"
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
_VALID_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
REQUEST_ID_HEADER = b"x-request-id"
_ANTHROPIC_VERSION = b"anthropic-version"
_ANTHROPIC_ID_HEADER = b"request-id"


@dataclass
class RequestContext:
    """What the application knows about one request.

    request_id: the client's `X-Request-Id`, or a generated id. direct_send: the ASGI server's own `send`, for frames of
    a stream; None if middleware was added to the application that must see them. refused: the kind of the error that
    was answered; "" if none. headers: additional headers of the answer. notes: notes about the body, whose warnings go
    into headers.
    """

    request_id: str
    direct_send: Send | None = None
    refused: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)


WARNING_HEADER = b"x-warning"
MAX_WARNING_HEADERS = 8
"""Limit on warnings in headers, since clients and proxies limit the length of headers."""


def warning_headers(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """A header for each warning. Characters outside printable ASCII are percent-encoded."""
    values = (quote(each[:200], safe=_PRINTABLE).encode() for each in context.notes.warnings[:MAX_WARNING_HEADERS])
    return [(WARNING_HEADER, each) for each in values]


def enter(scope: Scope, context: RequestContext) -> None:
    """Store the context of a request in its scope. Called once, before any route runs."""
    scope[_KEY] = context


def context_of(scope: Scope) -> RequestContext | None:
    """The context of a request; None in an application that has none (the worker's)."""
    context = scope.get(_KEY)
    return context if isinstance(context, RequestContext) else None


def stream_send(scope: Scope, send: Send) -> Send:
    """The `send` for the frames of a stream after its start.

    Middleware inspects only the start of a response, but costs one coroutine per layer for every frame. So frames
    bypass it if nothing was added that must see them.
    """
    context = context_of(scope)
    return send if context is None or context.direct_send is None else context.direct_send


def id_headers(headers: Mapping[bytes, bytes], request_id: str) -> list[tuple[bytes, bytes]]:
    """The headers that report the request's id; Anthropic's clients read it from a header of their own.

    headers: of the request.
    """
    value = request_id.encode()
    ids = [(REQUEST_ID_HEADER, value)]
    if _ANTHROPIC_VERSION in headers:
        ids.append((_ANTHROPIC_ID_HEADER, value))
    return ids


def speaks_anthropic(scope: Scope) -> bool:
    """Whether the request is of Anthropic's protocol, on a path that others share: only its clients send this
    header."""
    return any(name == _ANTHROPIC_VERSION for name, _ in scope["headers"])


def note_connection(scope: Scope, disconnected: asyncio.Future[None] | None, claim: Claim) -> None:
    """Store the future that is done when the request's connection is lost, and the claim for its tenant."""
    scope[_CLAIM] = claim
    if disconnected is not None:
        scope[_DISCONNECTED] = disconnected


def claim_of(scope: Scope) -> Claim | None:
    """The claim of the request's connection for its tenant; None if the ASGI server does not divide connections."""
    return scope.get(_CLAIM)


def connection_of(scope: Scope) -> asyncio.Future[None] | None:
    """The future that is done when the request's connection is lost. Requests share it: it must not be cancelled.

    None if the ASGI server does not provide it, or if added middleware may handle disconnects itself.
    """
    context, disconnected = context_of(scope), scope.get(_DISCONNECTED)
    direct = context is not None and context.direct_send is not None
    return disconnected if direct and isinstance(disconnected, asyncio.Future) else None


def first_headers(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers of a request by lower-case name: the first of several, as in Starlette's `Headers.get`."""
    return dict(reversed([*scope["headers"]]))


def client_request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own id of the request, if it is safe for headers and logs."""
    value = headers.get(REQUEST_ID_HEADER)
    return value.decode() if value is not None and _VALID_ID.fullmatch(value) else None
