"""Why a request failed, and how each wire reports it: one table of error kinds, one body per wire.

Messages say what to change and never quote the request, so that a response neither grows with the body nor leaks its
content.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import msgspec

ErrorKind = Literal[
    "invalid_request",
    "context_length_exceeded",
    "overloaded",
    "unavailable",
    "connection",
    "timeout",
    "out_of_memory",
    "internal",
    "not_found",
    "unauthorized",
    "forbidden",
    "rate_limited",
    "payload_too_large",
    "conflict",
    "unsupported_media_type",
    "method_not_allowed",
    "content_filter",
]
Wire = Literal["agui", "openai", "anthropic", "websocket", "copilotkit", "generate", "ollama"]
KINDS: tuple[str, ...] = get_args(ErrorKind)

MAX_MESSAGE = 2000
MAX_PARAM = 200


class RequestError(Exception):
    """A request that cannot be served as it is.

    param: the path of the field to change, as the request spells it ("messages.0.role"). retry_after: seconds. code:
    the wire's code for this specific error, where its clients act on it.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        param: str | None = None,
        retry_after: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: ErrorKind = kind
        self.message = message
        self.param = param
        self.retry_after = retry_after
        self.code = code


class Row(NamedTuple):
    """One error kind on every wire.

    openai: OpenAI's `type`. code: OpenAI's `code`. anthropic: Anthropic's `type`. websocket: the WebSocket protocol's
    `error`. close: the WebSocket close code (RFC 6455, 7.4). action: the WebSocket protocol's `recovery_action`.
    """

    status: int
    title: str
    openai: str
    code: str | None
    anthropic: str
    websocket: str
    close: int
    retryable: bool = False
    action: str | None = None


TABLE: dict[str, Row] = {
    "invalid_request": Row(
        400, "Bad request", "invalid_request_error", None, "invalid_request_error", "invalid_request", 1008
    ),
    "context_length_exceeded": Row(
        400,
        "Context length exceeded",
        "invalid_request_error",
        "context_length_exceeded",
        "invalid_request_error",
        "context_length_exceeded",
        1008,
        action="shorten_prompt",
    ),
    "unauthorized": Row(
        401, "Unauthorized", "invalid_request_error", "invalid_api_key", "authentication_error", "unauthorized", 1008
    ),
    "forbidden": Row(403, "Forbidden", "invalid_request_error", "forbidden", "permission_error", "forbidden", 1008),
    "content_filter": Row(
        400, "Content filtered", "invalid_request_error", "content_filter", "invalid_request_error", "content_filter",
        1008,
    ),
    "not_found": Row(404, "Not found", "invalid_request_error", "not_found", "not_found_error", "not_found", 1008),
    "method_not_allowed": Row(
        405,
        "Method not allowed",
        "invalid_request_error",
        "method_not_allowed",
        "invalid_request_error",
        "invalid_request",
        1008,
    ),
    "conflict": Row(409, "Conflict", "invalid_request_error", "conflict", "invalid_request_error", "conflict", 1008),
    "payload_too_large": Row(
        413, "Payload too large", "invalid_request_error", "payload_too_large", "request_too_large",
        "invalid_request", 1009,
    ),
    "unsupported_media_type": Row(
        415,
        "Unsupported media type",
        "invalid_request_error",
        "unsupported_media_type",
        "invalid_request_error",
        "invalid_request",
        1003,
    ),
    "rate_limited": Row(
        429, "Too many requests", "rate_limit_error", "rate_limit_exceeded", "rate_limit_error", "rate_limited",
        1013, True, "retry",
    ),
    "internal": Row(500, "Internal error", "server_error", "internal", "api_error", "internal_error", 1011),
    "connection": Row(
        502, "Generation lost", "server_error", "connection", "api_error", "internal_error", 1011, True, "retry"
    ),
    "overloaded": Row(
        503, "Overloaded", "server_error", "overloaded", "overloaded_error", "memory_pressure", 1013, True, "retry"
    ),
    "unavailable": Row(
        503, "Unavailable", "server_error", "unavailable", "api_error", "model_loading_error", 1013, True, "retry"
    ),
    "out_of_memory": Row(
        503, "Out of memory", "server_error", "out_of_memory", "api_error", "memory_pressure", 1011,
        action="reduce_max_tokens",
    ),
    "timeout": Row(504, "Timed out", "server_error", "timeout", "timeout_error", "timeout", 1011, True, "retry"),
}  # fmt: skip

_ANTHROPIC_OVERLOADED = 529


class ErrorResponse(NamedTuple):
    """An HTTP response: status code, headers besides Content-Type (always application/json), JSON body."""

    status: int
    headers: dict[str, str]
    body: bytes


def row(kind: str) -> Row:
    """Return the row of an error kind; an unknown kind counts as an internal error."""
    return TABLE.get(kind, TABLE["internal"])


def response(wire: Wire, error: RequestError, *, request_id: str | None = None) -> ErrorResponse:
    """Return the complete HTTP response for `error` on `wire`."""
    entry = row(error.kind)
    status = _ANTHROPIC_OVERLOADED if wire == "anthropic" and error.kind == "overloaded" else entry.status
    body = payload(wire, error.kind, error.message, param=error.param, request_id=request_id, code=error.code)
    headers: dict[str, str] = {}
    after = error.retry_after
    if after is None and entry.status in (429, 503) and entry.retryable:
        after = 1.0
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    if error.kind == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    return ErrorResponse(status, headers, msgspec.json.encode(body))


def payload(
    wire: Wire,
    kind: str,
    message: str,
    *,
    param: str | None = None,
    request_id: str | None = None,
    retryable: bool | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """Return the JSON object that reports `kind` on `wire`: an HTTP body, an SSE frame's data or a WebSocket message.

    code: replaces the kind's own OpenAI `code`, and is Anthropic's `details.error_code`.
    """
    entry = row(kind)
    text = _clip(message, MAX_MESSAGE)
    where = _clip(param, MAX_PARAM) if param is not None else None
    retry = entry.retryable if retryable is None else retryable
    match wire:
        case "openai":
            return {"error": {"message": text, "type": entry.openai, "param": where, "code": code or entry.code}}
        case "anthropic":
            if kind == "context_length_exceeded" and "prompt is too long" not in text.lower():
                text = f"prompt is too long: {text}"  # the wire has no code; clients look for these words
            inner: dict[str, object] = {"type": entry.anthropic, "message": text}
            if code is not None:
                inner["details"] = {"error_code": code}
            return {"type": "error", "error": inner, "request_id": request_id}
        case "websocket":
            fields: dict[str, object] = {"error": entry.websocket, "message": text, "recoverable": retry}
            if entry.action is not None:
                fields["recovery_action"] = entry.action
            if request_id is not None:
                fields["request_id"] = request_id
            return {"type": "error", **fields}
        case "copilotkit":
            return {"error": entry.title, "message": text}
        case "ollama":
            return {"error": text}
        case "agui" | "generate":
            inner_: dict[str, Any] = {"code": kind, "message": text, "retryable": retry}
            return {"error": inner_ if where is None else {**inner_, "param": where}}


def _clip(text: str, limit: int) -> str:
    clean = text.encode("utf-8", "replace").decode()
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"
