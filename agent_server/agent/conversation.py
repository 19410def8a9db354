"""One conversation as it grows during a run: what the model is told, and what clients and the store have of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from ag_ui.core import AssistantMessage, Message, ToolMessage
from pydantic import TypeAdapter

MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


class Conversation:
    """`prompt`: the messages for the model (reasoning opened, edits applied). `shown`: the same for everyone else."""

    def __init__(self, prompt: Iterable[Message], shown: Iterable[Message]) -> None:
        self.prompt: list[Message] = list(prompt)
        self.shown: list[Message] = list(shown)

    def add(self, prompt: Sequence[Message], shown: Sequence[Message] | None = None) -> None:
        self.prompt.extend(prompt)
        self.shown.extend(prompt if shown is None else shown)

    def add_result(self, message: ToolMessage) -> None:
        """Put a result after the message that made the call and its other results, as clients do."""
        for messages in (self.prompt, self.shown):
            messages.insert(_after_call(messages, message.tool_call_id), message)

    def answered(self, call_id: str) -> bool:
        return any(isinstance(each, ToolMessage) and each.tool_call_id == call_id for each in self.prompt)

    def has_call(self, call_id: str) -> bool:
        return _after_call(self.prompt, call_id, missing=-1) >= 0

    def use_arguments(self, call_id: str, arguments: dict[str, Any]) -> None:
        """Tell the model that the call was made with these arguments: a person changed them."""
        text = msgspec.json.encode(arguments).decode()
        for index, message in enumerate(self.prompt):
            if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
                copy = message.model_copy(deep=True)
                for call in copy.tool_calls or ():
                    if call.id == call_id:
                        call.function.arguments = text
                self.prompt[index] = copy

    def wire(self) -> list[dict[str, Any]]:
        """The messages as snapshots and the store have them."""
        return wire(self.shown)


def parsed(messages: Iterable[dict[str, Any]]) -> list[Message]:
    """Messages in wire form as the SDK's models."""
    return MESSAGES.validate_python(list(messages))


def wire(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [message.model_dump(mode="json", by_alias=True) for message in messages]


def _after_call(messages: Sequence[Message], call_id: str, missing: int | None = None) -> int:
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
            index += 1
            while index < len(messages) and isinstance(messages[index], ToolMessage):
                index += 1
            return index
    return len(messages) if missing is None else missing


def instructions_of(instructions: str, state: dict[str, Any] | None) -> str | None:
    """What the agent tells the model beside the conversation. The client's context is the prompt builder's to add."""
    parts = [instructions] if instructions else []
    if state is not None:
        parts.append("Shared state:\n" + msgspec.json.encode(state).decode())
    return "\n\n".join(parts) or None
