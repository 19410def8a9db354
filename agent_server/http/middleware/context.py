"""What the application knows of a request besides its ASGI scope: the one place that both sides, the application and
the routes, read it from."""

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
    """request_id: the client's `X-Request-Id`, or ours. direct_send: the `send` that the server in front of the
    application gave, for the frames of a stream; None where somebody put a layer around the application that must see
    them. refused: the kind of the error that was answered; "" where none was. headers: that its answer gets besides.
    notes: what was noticed about it; the answer's headers tell the warnings."""

    request_id: str
    direct_send: Send | None = None
    refused: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    notes: Notes = field(default_factory=Notes)


WARNING_HEADER = b"x-warning"
MAX_WARNING_HEADERS = 8
"""Warnings in headers, whose length clients and proxies bound."""


def warning_headers(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """A header for each warning, percent-encoded where it is more than ASCII."""
    values = (quote(each[:200], safe=_PRINTABLE).encode() for each in context.notes.warnings[:MAX_WARNING_HEADERS])
    return [(WARNING_HEADER, each) for each in values]


def enter(scope: Scope, context: RequestContext) -> None:
    """Make the context of a request known; once, before any route runs."""
    scope[_KEY] = context


def context_of(scope: Scope) -> RequestContext | None:
    """The context; None in an application that keeps none (the worker's)."""
    context = scope.get(_KEY)
    return context if isinstance(context, RequestContext) else None


def stream_send(scope: Scope, send: Send) -> Send:
    """What sends the frames of a stream behind its start. The layers around a route look at how a response starts and
    hand on the rest, at the price of a coroutine a layer for every frame; so frames go past them where they may."""
    context = context_of(scope)
    return send if context is None or context.direct_send is None else context.direct_send


def id_headers(headers: Mapping[bytes, bytes], request_id: str) -> list[tuple[bytes, bytes]]:
    """What tells the client its request's id; Anthropic's clients read it under a name of their own. headers: the
    request's."""
    value = request_id.encode()
    ids = [(REQUEST_ID_HEADER, value)]
    if _ANTHROPIC_VERSION in headers:
        ids.append((_ANTHROPIC_ID_HEADER, value))
    return ids


def speaks_anthropic(scope: Scope) -> bool:
    """Whether Anthropic's protocol is asked for where others have the same path: it requires this header of its
    clients."""
    return any(name == _ANTHROPIC_VERSION for name, _ in scope["headers"])


def note_connection(scope: Scope, disconnected: asyncio.Future[None] | None, claim: Claim) -> None:
    """Make known what is done when the connection of a request is lost, and what claims it for a tenant."""
    scope[_CLAIM] = claim
    if disconnected is not None:
        scope[_DISCONNECTED] = disconnected


def claim_of(scope: Scope) -> Claim | None:
    """What claims the connection of a request for its tenant; None where the server in front of the application shares
    out no connections."""
    return scope.get(_CLAIM)


def connection_of(scope: Scope) -> asyncio.Future[None] | None:
    """What is done when the connection of a request is lost; several requests share it, so nobody may cancel it. None
    where the server in front of the application does not tell, or a layer around it may have more to say."""
    context, disconnected = context_of(scope), scope.get(_DISCONNECTED)
    direct = context is not None and context.direct_send is not None
    return disconnected if direct and isinstance(disconnected, asyncio.Future) else None


def first_headers(scope: Scope) -> Mapping[bytes, bytes]:
    """The headers of a request by their names in lower case: of several with one name the first, as Starlette's
    `Headers.get` gives it."""
    return dict(reversed([*scope["headers"]]))


def client_request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The client's own id of the request, if it is one that may stand in headers and logs."""
    value = headers.get(REQUEST_ID_HEADER)
    return value.decode() if value is not None and _VALID_ID.fullmatch(value) else None
