"""What a user did on an A2UI surface, as CopilotKit sends it: a run whose forwardedProps carry `a2uiAction.userAction`,
with no new message. The model is told it as a call of `log_a2ui_event` and that call's result.

The shape is that of `@ag-ui/a2ui-middleware` 0.0.10, whose sentence the result is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from adapters.errors import RequestError

KEY = "a2uiAction"
CALL = "log_a2ui_event"
AT = f"forwardedProps.{KEY}.userAction"


def with_action(wire: dict[str, object]) -> dict[str, Any]:
    """The run's body, with the action behind its messages if it carries one. Raises RequestError.

    The messages' ids are made of the run's, so that a run that is sent again carries the same ones.
    """
    props, messages, run_id = wire.get("forwardedProps"), wire.get("messages"), wire.get("runId")
    sent = props.get(KEY) if isinstance(props, dict) else None
    if sent is None or not isinstance(messages, list) or not isinstance(run_id, str):
        return wire
    action = sent.get("userAction") if isinstance(sent, dict) else None
    if not isinstance(action, dict) or not isinstance(action.get("name"), str):
        raise RequestError("invalid_request", f"{AT} must be an object with a name.", param=AT)
    call = {"name": CALL, "arguments": msgspec.json.encode(action).decode()}
    made = {
        "id": f"{run_id}-action",
        "role": "assistant",
        "toolCalls": [{"id": f"{run_id}-action-call", "type": "function", "function": call}],
    }
    told = {
        "id": f"{run_id}-action-result",
        "role": "tool",
        "toolCallId": f"{run_id}-action-call",
        "content": sentence(action),
    }
    return {**wire, "messages": [*messages, made, told]}


def sentence(action: dict[str, Any]) -> str:
    """What the user did, in words for the model."""
    component = action.get("sourceComponentId")
    where = f" (component: {component})" if isinstance(component, str) and component else ""
    context = msgspec.json.encode(action.get("context") or {}).decode()
    surface = action.get("surfaceId", "unknown_surface")
    return f'User performed action "{action["name"]}" on surface "{surface}"{where}. Context: {context}'


def without_actions(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A thread's messages as a page shows them: actions are no calls of the model's, and no client has them."""
    ids = {call["id"] for message in messages for call in _calls(message) if call["function"]["name"] == CALL}
    return [
        message
        for message in messages
        if message.get("toolCallId") not in ids and not any(call["id"] in ids for call in _calls(message))
    ]


def _calls(message: dict[str, Any]) -> list[dict[str, Any]]:
    return message.get("toolCalls") or []
