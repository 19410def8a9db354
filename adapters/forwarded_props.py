"""CopilotKit's entries in a run's forwardedProps: a user's action on an A2UI surface, and an MCP app's request.

A run with `a2uiAction.userAction` has no new message. The model sees the action as a call of `log_a2ui_event` with a
result; the shape and the sentence are those of `@ag-ui/a2ui-middleware` 0.0.10. A run with `__proxiedMCPRequest`
contains a request to an MCP server; the answer to it is the run's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from adapters.errors import RequestError
from events.vocabulary import PROTOCOL_VERSION, Event, RunFinished, RunStarted

ACTION_KEY = "a2uiAction"
CALL = "log_a2ui_event"
ACTION_PATH = f"forwardedProps.{ACTION_KEY}.userAction"


def with_action(wire: dict[str, object]) -> dict[str, Any]:
    """Return the run's body, with its action, if any, appended to the messages. Raises RequestError.

    The ids of the added messages derive from the run's id, so that a repeated request has the same ones.
    """
    props, messages, run_id = wire.get("forwardedProps"), wire.get("messages"), wire.get("runId")
    action_field = props.get(ACTION_KEY) if isinstance(props, dict) else None
    if action_field is None or not isinstance(messages, list) or not isinstance(run_id, str):
        return wire
    action = action_field.get("userAction") if isinstance(action_field, dict) else None
    if not isinstance(action, dict) or not isinstance(action.get("name"), str):
        raise RequestError("invalid_request", f"{ACTION_PATH} must be an object with a name.", param=ACTION_PATH)
    call = {"name": CALL, "arguments": msgspec.json.encode(action).decode()}
    call_message = {
        "id": f"{run_id}-action",
        "role": "assistant",
        "toolCalls": [{"id": f"{run_id}-action-call", "type": "function", "function": call}],
    }
    result_message = {
        "id": f"{run_id}-action-result",
        "role": "tool",
        "toolCallId": f"{run_id}-action-call",
        "content": sentence(action),
    }
    return {**wire, "messages": [*messages, call_message, result_message]}


def sentence(action: dict[str, Any]) -> str:
    """Describe the user's action for the model."""
    component = action.get("sourceComponentId")
    where = f" (component: {component})" if isinstance(component, str) and component else ""
    context = msgspec.json.encode(action.get("context") or {}).decode()
    surface = action.get("surfaceId", "unknown_surface")
    return f'User performed action "{action["name"]}" on surface "{surface}"{where}. Context: {context}'


def without_actions(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a thread's messages without actions, which are not calls of the model and are unknown to clients."""
    ids = {call["id"] for message in messages for call in _calls(message) if call["function"]["name"] == CALL}
    return [
        message
        for message in messages
        if message.get("toolCallId") not in ids and not any(call["id"] in ids for call in _calls(message))
    ]


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message.get("toolCalls") or []


REQUEST_KEY = "__proxiedMCPRequest"


class ProxiedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of an app's page. server: the id from the activity, which clients send as serverId, and older ones as
    serverHash only."""

    server: str
    method: str
    params: dict[str, object] = {}


def proxied_request(forwarded: Mapping[str, object]) -> ProxiedRequest | None:
    """Return the MCP request in a run's forwardedProps; None if there is none. Raises RequestError."""
    wire = forwarded.get(REQUEST_KEY)
    if wire is None:
        return None
    at = f"forwardedProps.{REQUEST_KEY}"
    if not isinstance(wire, dict):
        raise RequestError("invalid_request", f"{at} must be an object.", param=at)
    server, method, params = wire.get("serverId") or wire.get("serverHash"), wire.get("method"), wire.get("params")
    if not isinstance(server, str) or not isinstance(method, str):
        raise RequestError("invalid_request", f"{at} needs serverId and method, both strings.", param=at)
    return ProxiedRequest(server=server, method=method, params=params if isinstance(params, dict) else {})


def is_proxied(wire: object) -> bool:
    """Whether a decoded RunAgentInput contains an MCP request, well-formed or not."""
    forwarded = wire.get("forwardedProps") if isinstance(wire, dict) else None
    return isinstance(forwarded, dict) and forwarded.get(REQUEST_KEY) is not None


def started(thread_id: str, run_id: str) -> Event:
    return RunStarted(thread_id=thread_id, run_id=run_id, protocol_version=PROTOCOL_VERSION)


def finished(thread_id: str, run_id: str, result: Mapping[str, object]) -> Event:
    return RunFinished(thread_id=thread_id, run_id=run_id, result=dict(result))
