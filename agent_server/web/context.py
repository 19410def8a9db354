"""What the application knows of a request besides its ASGI scope: the one place that both sides, the application and
the routes, read it from."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from starlette.types import Scope, Send

_KEY = "agent_server.request"
_SOUND_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
REQUEST_ID_HEADER = b"x-request-id"
_ANTHROPIC_VERSION = b"anthropic-version"
_ANTHROPIC_ID_HEADER = b"request-id"


@dataclass
class RequestContext:
    """request_id: the client's `X-Request-Id`, or ours. direct_send: the `send` that the server in front of the
    application gave, for the frames of a stream; None where somebody put a layer around the application that must see
    them. refused: the kind of the error that was answered; "" where none was. headers: that its answer gets besides."""

    request_id: str
    direct_send: Send | None = None
    refused: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


def enter(scope: Scope, context: RequestContext) -> None:
    """Make the context of a request known; once, before any route runs."""
    scope[_KEY] = context


def context_of(scope: Scope) -> RequestContext | None:
    """The context; None in an application that keeps none (the worker's)."""
    found = scope.get(_KEY)
    return found if isinstance(found, RequestContext) else None


def stream_send(scope: Scope, send: Send) -> Send:
    """What sends the frames of a stream behind its start. The layers around a route look at how a response starts and
    hand on the rest, at the price of a coroutine a layer for every frame; so frames go past them where they may."""
    context = context_of(scope)
    return send if context is None or context.direct_send is None else context.direct_send


def id_headers(scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
    """What tells the client its request's id; Anthropic's clients read it under a name of their own."""
    value = request_id.encode()
    ids = [(REQUEST_ID_HEADER, value)]
    if any(name == _ANTHROPIC_VERSION for name, _ in scope["headers"]):
        ids.append((_ANTHROPIC_ID_HEADER, value))
    return ids


def given_request_id(scope: Scope) -> str | None:
    """The client's own id of the request, if it is one that may stand in headers and logs."""
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER:
            return value.decode() if _SOUND_ID.fullmatch(value) else None
    return None
