"""Error responses in the format of the requested wire, wherever the application is mounted."""

from __future__ import annotations

import re
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from adapters import errors
from adapters.errors import RequestError, Wire
from agent_server.http.middleware.context import context_of, speaks_anthropic

MODELS = "/v1/models"
WIRES: tuple[tuple[str, Wire], ...] = (
    ("/v1/messages", "anthropic"),
    ("/v1/generate", "generate"),
    ("/v1/", "openai"),
    ("/v2/", "openai"),
    ("/api/", "ollama"),
    ("/copilotkit", "copilotkit"),
    ("/generate", "websocket"),
    ("/tokenize", "openai"),
    ("/detokenize", "openai"),
    ("/completion", "openai"),
    ("/apply-template", "openai"),
)


def route_path(scope: Scope) -> str:
    """The path as the application's own routes name it: without the prefix that it is mounted under, or that a proxy's
    `root_path` announces. The router's rule (Starlette's `get_route_path`), since what is guarded is what it finds."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    if not prefix or not path.startswith(prefix):
        return path
    rest = path[len(prefix) :]
    return rest or "/" if rest[:1] in ("", "/") else path


UNVERSIONED_PATHS = (
    "/chat/completions",
    "/completions",
    "/responses",
    "/models",
    "/embeddings",
    "/messages",
    "/rerank",
    "/score",
    "/decisions",
)
"""Paths of `/v1` that clients with a configured base URL request without the prefix."""
_is_unversioned = re.compile(rf"(?:{'|'.join(UNVERSIONED_PATHS)})(?:/|\Z)").match


def correct_version_prefix(scope: Scope) -> None:
    """Give the path one `/v1` before anything reads it: some base URLs lack it, and Anthropic's clients repeat it."""
    path = route_path(scope)
    before = scope["path"][: len(scope["path"]) - len(path)]
    if path.startswith("/v1/v1/"):
        _set_path(scope, f"{before}{path[3:]}")
    elif _is_unversioned(path):
        _set_path(scope, f"{before}/v1{path}")


def strip_repeated_prefix(scope: Scope, prefix: str) -> None:
    """Remove a repeated prefix: uvicorn prepends `root_path` to every path, also if a proxy has not stripped it."""
    path: str = scope["path"]
    if path.startswith(f"{prefix}{prefix}/") and scope.get("root_path") == prefix:
        raw_path: bytes = scope.get("raw_path") or b""
        _set_path(scope, path[len(prefix) :])
        if raw_path.startswith(raw_prefix := quote(prefix).encode()):
            scope["raw_path"] = raw_path[len(raw_prefix) :]  # as it was encoded


def _set_path(scope: Scope, path: str) -> None:
    scope["path"] = path
    scope["raw_path"] = quote(path, safe="/:%@!$&'()*+,;=~").encode()


def wire_of(scope: Scope) -> Wire:
    """The wire whose error format the request expects.

    `/v1/models` belongs to two; Anthropic's clients send a header.
    """
    path = route_path(scope)
    listing = path == MODELS or path.startswith(f"{MODELS}/")
    return "anthropic" if listing and speaks_anthropic(scope) else wire_at(path)


def wire_at(path: str) -> Wire:
    """The wire whose error format a path has."""
    return next((wire for prefix, wire in WIRES if path.startswith(prefix)), "agui")


def error_response(scope: Scope, error: RequestError) -> Response:
    """The response for a refused request. The error's kind is stored in the request's context for the metrics."""
    context = context_of(scope)
    if context is not None:
        context.refused = error.kind
    request_id = None if context is None else context.request_id
    answer = errors.response(wire_of(scope), error, request_id=request_id)
    return Response(answer.body, status_code=answer.status, headers=answer.headers, media_type="application/json")


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
    """Accept, send the error, then close with its code: a browser cannot read the reason of a refused handshake."""
    if (context := context_of(scope)) is not None:
        context.refused = error.kind
    await receive()
    await send({"type": "websocket.accept"})
    body = errors.payload("websocket", error.kind, error.message)
    await send({"type": "websocket.send", "text": msgspec.json.encode(body).decode()})
    await send({"type": "websocket.close", "code": errors.row(error.kind).close, "reason": error.kind})


async def deny_websocket(scope: Scope, send: Send, error: RequestError) -> None:
    """Answer a handshake with an HTTP error, for a path without a WebSocket (ASGI extension
    "websocket.http.response")."""
    answer = error_response(scope, error)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": errors.row(error.kind).close, "reason": error.kind})
        return
    await send({"type": "websocket.http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
