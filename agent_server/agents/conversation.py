"""One conversation as it grows during a run: what the model is told, and what clients and the store have of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from ag_ui.core import ActivityMessage, AssistantMessage, Message, ToolMessage

from events.message import each_dict


class Conversation:
    """`prompt`: the messages for the model (reasoning opened, edits applied). `shown`: the same for everyone else.
    on_result: called when a call is answered."""

    def __init__(self, prompt: Iterable[Message], shown: Iterable[Message]) -> None:
        self.prompt: list[Message] = [each for each in prompt if not isinstance(each, ActivityMessage)]
        self.shown: list[Message] = list(shown)
        self.on_result: Callable[[], None] | None = None

    def add(self, prompt: Sequence[Message], shown: Sequence[Message] | None = None) -> None:
        self.prompt.extend(prompt)
        self.shown.extend(prompt if shown is None else shown)

    def restart(self, messages: Iterable[Message]) -> None:
        """Begin again with these messages, which are shown as they are told to the model."""
        self.shown = list(messages)
        self.prompt = [each for each in self.shown if not isinstance(each, ActivityMessage)]

    def add_result(self, message: ToolMessage) -> None:
        """Put a result after the message that made the call and its other results, as clients do."""
        for messages in (self.prompt, self.shown):
            messages.insert(_after_call(messages, message.tool_call_id), message)
        if self.on_result is not None:
            self.on_result()

    def add_activity(self, call_id: str, activity: ActivityMessage) -> None:
        """Put an activity after the call that it belongs to, with that call's results; in its own place if it is
        there already. The model is told nothing of it."""
        for index, message in enumerate(self.shown):
            if message.id == activity.id:
                self.shown[index] = activity
                return
        index = _after_call(self.shown, call_id)
        while index < len(self.shown) and isinstance(self.shown[index], ActivityMessage):
            index += 1
        self.shown.insert(index, activity)

    def answered_calls(self) -> frozenset[str]:
        """The ids of the calls that have results."""
        return frozenset(each.tool_call_id for each in self.prompt if isinstance(each, ToolMessage))

    def answered(self, call_id: str) -> bool:
        return call_id in self.answered_calls()

    def use_arguments(self, call_id: str, arguments: dict[str, object]) -> None:
        """Tell the model that the call was made with these arguments: a person changed them."""
        text = msgspec.json.encode(arguments).decode()
        for index, message in enumerate(self.prompt):
            if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
                copy = message.model_copy(deep=True)
                for call in copy.tool_calls or ():
                    if call.id == call_id:
                        call.function.arguments = text
                self.prompt[index] = copy

    def wire(self) -> Iterator[dict[str, Any] | None]:
        """The messages as they stand, as the store has them, each when it is taken; for `collect_yielding`."""
        return each_dict(list(self.shown))

    def snapshot(self) -> Iterator[dict[str, Any] | None]:
        """The messages for a snapshot in mid-run. Clients keep their activities if it has none, and drop those that it
        leaves out if it has any (`@ag-ui/client`, MESSAGES_SNAPSHOT): clients send none back, so it has none."""
        return each_dict([each for each in self.shown if not isinstance(each, ActivityMessage)])


def _after_call(messages: Sequence[Message], call_id: str) -> int:
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
            index += 1
            while index < len(messages) and isinstance(messages[index], ToolMessage):
                index += 1
            return index
    return len(messages)


def instructions_of(instructions: str, state: dict[str, object] | None) -> str | None:
    """What the agent tells the model beside the conversation. The client's context is the prompt builder's to add."""
    parts = [instructions] if instructions else []
    if state is not None:
        parts.append("Shared state:\n" + msgspec.json.encode(state).decode())
    return "\n\n".join(parts) or None
