"""A turn's events folded back into the messages that the next prompt and the store need."""

from __future__ import annotations

from ag_ui.core import AssistantMessage, FunctionCall, Message, ReasoningMessage, ToolCall

from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    ReasoningMessageStart,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallStart,
)


class Collected:
    """One turn's text, reasoning and calls, in the order in which they began."""

    def __init__(self) -> None:
        self._text: dict[str, list[str]] = {}
        self._reasoning: dict[str, list[str]] = {}
        self._arguments: dict[str, list[str]] = {}
        self._names: dict[str, str] = {}
        self._parents: dict[str, str] = {}
        self._order: list[tuple[str, str]] = []
        self.sealed: dict[str, str] = {}
        self.shown_reasoning: dict[str, str] = {}

    def see(self, event: Event) -> None:
        if isinstance(event, TextMessageContent):
            self._text[event.message_id].append(event.delta)
        elif isinstance(event, ReasoningMessageContent):
            self._reasoning[event.message_id].append(event.delta)
        elif isinstance(event, ToolCallArgs):
            self._arguments[event.tool_call_id].append(event.delta)
        elif isinstance(event, TextMessageStart):
            self._begin("assistant", event.message_id, self._text)
        elif isinstance(event, ReasoningMessageStart):
            self._begin("reasoning", event.message_id, self._reasoning)
        elif isinstance(event, ToolCallStart):
            self._begin_call(event)

    def _begin(self, role: str, key: str, where: dict[str, list[str]]) -> None:
        where.setdefault(key, [])
        if (role, key) not in self._order:
            self._order.append((role, key))

    def _begin_call(self, event: ToolCallStart) -> None:
        parent = event.parent_message_id or event.tool_call_id
        self._arguments[event.tool_call_id] = []
        self._names[event.tool_call_id] = event.tool_call_name
        self._parents[event.tool_call_id] = parent
        if ("assistant", parent) not in self._order:
            self._order.append(("assistant", parent))

    def text(self) -> str:
        return "".join(piece for pieces in self._text.values() for piece in pieces)

    def reasoning_of(self, message_id: str) -> str:
        return "".join(self._reasoning.get(message_id, ()))

    def _content(self, message_id: str, shown: bool) -> str:
        written = self.reasoning_of(message_id)
        return self.shown_reasoning.get(message_id, written) if shown else written

    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(id=key, function=FunctionCall(name=name, arguments="".join(self._arguments[key])))
            for key, name in self._names.items()
        )

    def messages(self, *, shown: bool = False) -> tuple[Message, ...]:
        """Reasoning and assistant messages as the protocol has them; `shown`: with the reasoning that clients see
        instead of what the model wrote."""
        calls = self.calls()
        return tuple(
            ReasoningMessage(id=key, content=self._content(key, shown), encrypted_value=self.sealed.get(key))
            if role == "reasoning"
            else AssistantMessage(
                id=key,
                content="".join(self._text[key]) if key in self._text else None,
                tool_calls=[call for call in calls if self._parents[call.id] == key] or None,
            )
            for role, key in self._order
        )
