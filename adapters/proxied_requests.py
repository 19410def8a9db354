"""The way back of MCP apps, as CopilotKit sends it: an ordinary run request whose forwardedProps carry a request to an
MCP server. It is answered by RUN_STARTED and RUN_FINISHED with the server's result, and is no run of the thread.

Seen on the wire from `@copilotkit/react-core` 1.74; `@ag-ui/mcp-apps-middleware` 0.1.1 is what answers it there.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from adapters.errors import RequestError
from events.vocabulary import PROTOCOL_VERSION, Event, RunFinished, RunStarted

KEY = "__proxiedMCPRequest"


class ProxiedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an app's page asks. server: the id that the activity named; clients send it as serverId, older ones as
    serverHash alone."""

    server: str
    method: str
    params: dict[str, object] = {}


def proxied_request(forwarded: Mapping[str, object]) -> ProxiedRequest | None:
    """The request in a run's forwardedProps, None for a run that carries none. Raises RequestError."""
    wire = forwarded.get(KEY)
    if wire is None:
        return None
    at = f"forwardedProps.{KEY}"
    if not isinstance(wire, dict):
        raise RequestError("invalid_request", f"{at} must be an object.", param=at)
    server, method, params = wire.get("serverId") or wire.get("serverHash"), wire.get("method"), wire.get("params")
    if not isinstance(server, str) or not isinstance(method, str):
        raise RequestError("invalid_request", f"{at} needs serverId and method, both strings.", param=at)
    return ProxiedRequest(server=server, method=method, params=params if isinstance(params, dict) else {})


def is_proxied(wire: object) -> bool:
    """Whether a decoded RunAgentInput carries one, well-formed or not."""
    forwarded = wire.get("forwardedProps") if isinstance(wire, dict) else None
    return isinstance(forwarded, dict) and forwarded.get(KEY) is not None


def started(thread_id: str, run_id: str) -> Event:
    return RunStarted(thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION)


def finished(thread_id: str, run_id: str, result: Mapping[str, object]) -> Event:
    return RunFinished(thread_id=thread_id, run_id=run_id, result=dict(result))
