"""Translates the errors that upstreams send into EngineError."""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import EngineError, ErrorKind

MAX_MESSAGE = 400
"""Characters of an upstream's message that are passed on."""
_TOO_LONG = ("context length", "context size", "maximum model length", "max_model_len", "exceed_context_size")
_STATUS: dict[int, tuple[ErrorKind, bool]] = {
    408: ("timeout", True),
    429: ("overloaded", True),
    503: ("unavailable", True),
    504: ("timeout", True),
}


def refused(param: str, message: str) -> EngineError:
    """Return the error for a request that this upstream cannot honour."""
    return EngineError("invalid_request", message, param=param)


def error_of(status: int, body: bytes | object) -> EngineError:
    """Return the error for an answer with this status, or for an error frame with this code. body: JSON, as bytes or
    decoded."""
    message, param = message_of(body)
    text = f"The upstream says: {message}" if message else f"The upstream answered with status {status}."
    if status in _STATUS:
        kind, retryable = _STATUS[status]
        return EngineError(kind, text, retryable=retryable)
    if status in (401, 403):
        return EngineError(
            "unavailable", f"The upstream refuses this server's key; set AGENT_SERVER_ENGINE_KEY. {text}"
        )
    if status in (404, 405):
        message = f"The upstream does not know this path or model any more. {text}"
        return EngineError("unavailable", message, retryable=True)
    if 400 <= status < 500:
        if any(words in text.lower() for words in _TOO_LONG):
            return EngineError("context_length_exceeded", text, param="prompt")
        return EngineError("invalid_request", text, param=param)
    return EngineError("connection", text, retryable=True)


def error_frame(error: object) -> EngineError:
    """Return the error for the `error` of a frame: {"code"?, "message", "type"?, "param"?} or a text."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, str) and code.isdigit():
        code = int(code)
    return error_of(code if isinstance(code, int) and code >= 400 else 500, {"error": error})


def message_of(body: bytes | Any) -> tuple[str, str | None]:
    """Return (message, parameter) of an error's body of any shape. The message is cut to MAX_MESSAGE characters."""
    try:
        error = msgspec.json.decode(body) if isinstance(body, bytes) else body
        error = error.get("error", error) if isinstance(error, dict) else error
        if not isinstance(error, dict):
            return _short(str(error)), None
        message = error.get("message") or error.get("detail") or error.get("type") or ""
        param = error.get("param")
        return _short(message if isinstance(message, str) else str(message)), param if isinstance(param, str) else None
    except (ValueError, RecursionError):
        return (_short(body[: 4 * MAX_MESSAGE].decode(errors="replace")) if isinstance(body, bytes) else ""), None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[:MAX_MESSAGE] + "..."
