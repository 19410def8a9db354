"""One conversation as it grows during a run: the messages for the model, and those for clients and the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from ag_ui.core import ActivityMessage, AssistantMessage, Message, ToolMessage

from events.message import each_dict
from events.template.history import read_arguments


class Conversation:
    """The messages of one conversation.

    prompt: for the model (reasoning decrypted, edited arguments applied). visible: for clients and the store.
    on_result: called when a call is answered.
    """

    def __init__(self, prompt: Iterable[Message], visible: Iterable[Message]) -> None:
        self.prompt: list[Message] = [each for each in prompt if not isinstance(each, ActivityMessage)]
        self.visible: list[Message] = list(visible)
        self.on_result: Callable[[], None] | None = None

    def add(self, prompt: Sequence[Message], visible: Sequence[Message] | None = None) -> None:
        self.prompt.extend(prompt)
        self.visible.extend(prompt if visible is None else visible)

    def restart(self, messages: Iterable[Message]) -> None:
        """Replace all messages by these, for the model and for clients alike."""
        self.visible = list(messages)
        self.prompt = [each for each in self.visible if not isinstance(each, ActivityMessage)]

    def add_result(self, message: ToolMessage) -> None:
        """Insert a result after the message with its call and that message's other results, as clients do."""
        for messages in (self.prompt, self.visible):
            messages.insert(_after_call(messages, message.tool_call_id), message)
        if self.on_result is not None:
            self.on_result()

    def add_activity(self, call_id: str, activity: ActivityMessage) -> None:
        """Insert an activity after the results of the message with its call, or replace the activity with the same id.
        The model does not see activities."""
        for index, message in enumerate(self.visible):
            if message.id == activity.id:
                self.visible[index] = activity
                return
        index = _after_call(self.visible, call_id)
        while index < len(self.visible) and isinstance(self.visible[index], ActivityMessage):
            index += 1
        self.visible.insert(index, activity)

    def answered_calls(self) -> frozenset[str]:
        """The ids of the calls that have results."""
        return frozenset(each.tool_call_id for each in self.prompt if isinstance(each, ToolMessage))

    def answered(self, call_id: str) -> bool:
        return call_id in self.answered_calls()

    def use_arguments(self, call_id: str, arguments: dict[str, object]) -> None:
        """Replace a call's arguments in the prompt by those that a person changed them to."""
        text = msgspec.json.encode(arguments).decode()
        for index, message in enumerate(self.prompt):
            if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
                copy = message.model_copy(deep=True)
                for call in copy.tool_calls or ():
                    if call.id == call_id:
                        call.function.arguments = text
                self.prompt[index] = copy

    def wire(self) -> Iterator[dict[str, Any] | None]:
        """The messages in the store's form, converted one at a time; for `collect_yielding`."""
        return each_dict(list(self.visible))

    def snapshot(self) -> Iterator[dict[str, Any] | None]:
        """The messages for a MESSAGES_SNAPSHOT during a run, without activities.

        A client keeps its activities if the snapshot has none, and drops those that are missing if it has any
        (`@ag-ui/client`). Clients do not send activities back, so the server may not know all of them.
        """
        return each_dict([each for each in self.visible if not isinstance(each, ActivityMessage)])


def _after_call(messages: Sequence[Message], call_id: str) -> int:
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and any(call.id == call_id for call in message.tool_calls or ()):
            index += 1
            while index < len(messages) and isinstance(messages[index], ToolMessage):
                index += 1
            return index
    return len(messages)


def without_repeated_calls(messages: Sequence[Message], repeatable: Collection[str]) -> tuple[list[Message], bool]:
    """Leave out each message whose calls and results are the same as those just before it, with its results.

    A small model that sees such a repetition copies it once more instead of using the result. Returns also whether the
    conversation ends with one that is left out. repeatable: the tools whose repeated calls have no further effect.
    """
    kept: list[Message] = []
    before: object = None
    repeated = False
    at = 0
    while at < len(messages):
        end, content = _calls_and_results(messages, at, repeatable)
        repeated = content is not None and content == before
        if not repeated:
            kept.extend(messages[at:end])
        at, before = end, content
    return kept, repeated


def _calls_and_results(messages: Sequence[Message], at: int, repeatable: Collection[str]) -> tuple[int, object]:
    """Return the end of the message at `at` with the results that follow it, and what its calls and their results are;
    None for a message without calls, or with a call that failed, has no result yet, or may have an effect."""
    message, end = messages[at], at + 1
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return end, None
    results: dict[str, object] = {}
    while end < len(messages) and isinstance(result := messages[end], ToolMessage):
        if not result.error and not (result.metadata or {}).get("isError"):
            results[result.tool_call_id] = result.content
        end += 1
    if any(call.id not in results or call.function.name not in repeatable for call in message.tool_calls):
        return end, None
    # the arguments' values, so that white space and the order of keys do not matter
    return end, [
        (call.function.name, read_arguments(call.function.arguments), results[call.id]) for call in message.tool_calls
    ]


def instructions_of(instructions: str, state: dict[str, object] | None) -> str | None:
    """The agent's instructions with the shared state. The prompt builder adds the client's context."""
    parts = [instructions] if instructions else []
    if state is not None:
        parts.append("Shared state:\n" + msgspec.json.encode(state).decode())
    return "\n\n".join(parts) or None
