"""Why a request to an MCP server failed: the errors of sessions, and what can be read from those of the SDK."""

from __future__ import annotations

from mcp import MCPError

from agent_server.agents.mcp.guarded_client import CONSENT


class McpUnavailable(ConnectionError):
    """A server cannot be used. The message completes "the server X ..."."""


class ConnectionLost(ConnectionError):
    """The server closed the connection during a request, so it is unknown whether the request was executed."""


class SessionExpired(ConnectionError):
    """The server no longer knows the session; the request was not executed."""


def consent_url(error: MCPError) -> str | None:
    """Return where the user must sign in before the request can be made; None for other errors."""
    data = error.error.data
    return data.removeprefix(CONSENT) if isinstance(data, str) and data.startswith(CONSENT) else None


def innermost(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group; other errors are returned unchanged."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def reason_of(error: BaseException) -> str:
    """Describe an error, or the first one of a group, in one short line."""
    error = innermost(error)
    line = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__
