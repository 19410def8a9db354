"""Events as `@ag-ui/client` 0.0.59 takes them (CopilotKit 1.74 ships it).

That client knows every event type of 1.0, but rejects the whole run over these: the `cancelled` outcome,
`pendingToolCallIds`, tool content as parts, file sources, and an echoed input without the fields that were required
then. A test holds what comes out of here against that client's own schemas.
"""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel

from events.vocabulary import (
    CancelledOutcome,
    Event,
    MessagesSnapshot,
    RunError,
    RunFinished,
    RunStarted,
    SubagentFinished,
    SuccessOutcome,
    ToolCallResult,
)

_OPAQUE_PARTS = "[{kind} content that this client cannot show]"


def downgrade(event: Event) -> Event | None:
    """The event for an old client, or None where it has no counterpart. Most events pass as they are."""
    match event:
        case RunFinished(outcome=CancelledOutcome()):
            return RunError(
                message="The run was cancelled.",
                code="cancelled",
                usage=event.usage,
                timestamp=event.timestamp,
                metadata=event.metadata,
            )
        case RunFinished(outcome=SuccessOutcome()):
            return msgspec.structs.replace(event, outcome=None)
        case ToolCallResult(content=list(parts)):
            return msgspec.structs.replace(event, content=flatten(parts))
        case MessagesSnapshot():
            return msgspec.structs.replace(event, messages=[_message(message) for message in event.messages])
        case RunStarted() if event.input is not None:
            return msgspec.structs.replace(event, input=_input(event.input))
        case SubagentFinished() if event.outcome is not None:
            return msgspec.structs.replace(event, outcome=None)
    return event


def flatten(parts: list[Any]) -> str:
    """Content parts as one text; what is not text is named, so that its absence shows."""
    plain = [part.model_dump(by_alias=True) if isinstance(part, BaseModel) else part for part in parts]
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else _OPAQUE_PARTS.format(kind=part.get("type"))
        for part in plain
    )


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if message.get("role") == "tool":
        return message | {"content": flatten(content)}
    kept = [part for part in content if part.get("source", {}).get("type") != "file"]
    return message | {"content": kept}


def _input(run_input: Any) -> dict[str, Any]:
    """The echoed input with the fields that the old schema requires, and its messages in the old form."""
    wire = run_input.model_dump(mode="json", by_alias=True) if isinstance(run_input, BaseModel) else dict(run_input)
    required: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    return required | wire | {"messages": [_message(message) for message in wire.get("messages", [])]}
