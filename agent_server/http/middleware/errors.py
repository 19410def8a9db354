"""Error answers in the shape of the wire that was asked, wherever the application is mounted."""

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


BARE = (
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
"""Paths of `/v1` that clients with a base URL of their own ask for without it."""
_IS_BARE = re.compile(rf"(?:{'|'.join(BARE)})(?:/|\Z)").match


def name_version(scope: Scope) -> None:
    """Ask for the path under `/v1` where the client left that out, before anything looks at the path."""
    path = route_path(scope)
    if _IS_BARE(path) is None:
        return
    before = scope["path"][: len(scope["path"]) - len(path)]
    _go_to(scope, f"{before}/v1{path}")


def place_once(scope: Scope, prefix: str) -> None:
    """Take away the second of two prefixes: uvicorn puts `root_path` before every path, and proxies that do not remove
    it have sent it already."""
    path: str = scope["path"]
    if path.startswith(f"{prefix}{prefix}/") and scope.get("root_path") == prefix:
        sent: bytes = scope.get("raw_path") or b""
        _go_to(scope, path[len(prefix) :])
        if sent.startswith(begins := quote(prefix).encode()):
            scope["raw_path"] = sent[len(begins) :]  # as it was encoded


def _go_to(scope: Scope, path: str) -> None:
    scope["path"] = path
    scope["raw_path"] = quote(path, safe="/:%@!$&'()*+,;=~").encode()


def wire_of(scope: Scope) -> Wire:
    """Whose error shape an answer to this request has. Two protocols list models, and Anthropic's clients say so."""
    path = route_path(scope)
    listing = path == MODELS or path.startswith(f"{MODELS}/")
    return "anthropic" if listing and speaks_anthropic(scope) else wire_at(path)


def wire_at(path: str) -> Wire:
    """Whose error shape answers on this path of ours have."""
    return next((wire for prefix, wire in WIRES if path.startswith(prefix)), "agui")


def error_response(scope: Scope, error: RequestError) -> Response:
    """The answer that says why a request was refused; noted in the request's context, which is what is counted."""
    context = context_of(scope)
    if context is not None:
        context.refused = error.kind
    request_id = None if context is None else context.request_id
    answer = errors.response(wire_of(scope), error, request_id=request_id)
    return Response(answer.body, status_code=answer.status, headers=answer.headers, media_type="application/json")


async def refuse_websocket(scope: Scope, receive: Receive, send: Send, error: RequestError) -> None:
    """The error first, then the close code: a handshake that is merely refused tells a browser nothing."""
    if (context := context_of(scope)) is not None:
        context.refused = error.kind
    await receive()
    await send({"type": "websocket.accept"})
    body = errors.payload("websocket", error.kind, error.message)
    await send({"type": "websocket.send", "text": msgspec.json.encode(body).decode()})
    await send({"type": "websocket.close", "code": errors.row(error.kind).close, "reason": error.kind})


async def deny_websocket(scope: Scope, send: Send, error: RequestError) -> None:
    """An HTTP answer to a handshake, for what is no WebSocket at all (ASGI's extension "websocket.http.response")."""
    answer = error_response(scope, error)
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": errors.row(error.kind).close, "reason": error.kind})
        return
    await send({"type": "websocket.http.response.start", "status": answer.status_code, "headers": answer.raw_headers})
    await send({"type": "websocket.http.response.body", "body": bytes(answer.body)})
