"""Convert a guest's events to AG-UI 1.0 and correct the known faults of producers.

It does no I/O: an event goes in, and the events that the run may emit come out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agent_server.agents.guests.guest import as_object
from events.chunks import ChunkExpander, LifecycleError
from events.encode import DecodeError
from events.nesting import TooLarge, measure
from events.receive import receive
from events.vocabulary import (
    Event,
    MessagesSnapshot,
    Raw,
    ReasoningMessageContent,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

RENAMED = {
    "THINKING_START": "REASONING_START",
    "THINKING_END": "REASONING_END",
    "THINKING_TEXT_MESSAGE_START": "REASONING_MESSAGE_START",
    "THINKING_TEXT_MESSAGE_CONTENT": "REASONING_MESSAGE_CONTENT",
    "THINKING_TEXT_MESSAGE_END": "REASONING_MESSAGE_END",
}
"""Events of AG-UI before 0.1.11, which had no ids → their current names."""
MAY_BE_NULL = frozenset({"snapshot", "event", "value"})
MEDIA = ("image", "audio", "video")
Emit = Callable[[Event], None]


class EventNormalizer:
    """Normalizes one run's events.

    messages: of the conversation before the run. clients: names of the tools that the client runs. resumed: ids of the
    calls that the run continues, whose events are not sent again. partial: see `Guest.partial_snapshots`.
    """

    def __init__(
        self,
        emit: Emit,
        warn: Callable[[str], None],
        new_id: Callable[[str], str],
        *,
        messages: Sequence[Mapping[str, object]],
        clients: frozenset[str] = frozenset(),
        resumed: frozenset[str] = frozenset(),
        partial: bool = False,
    ) -> None:
        self._emit = emit
        self._warn = warn
        self._new_id = new_id
        self._clients = clients
        self._resumed = resumed
        self._partial = partial
        self._chunks = ChunkExpander()
        self._known_ids = {str(message["id"]) for message in messages}
        self._new_ids: dict[str, str] = {}
        self._calls: dict[str, str] = {}
        self._answered: set[str] = {str(each["toolCallId"]) for each in messages if each.get("role") == "tool"}
        self._results: dict[str, str] = {}
        self._thinking = ""

    def take(self, raw_event: object) -> RunFinished | RunError | None:
        """Emit the events for one event of the guest. The guest's terminal event is returned instead."""
        for event in self.read(raw_event):
            if (last := self.emit(event)) is not None:
                return last
        return None

    def emit(self, event: Event) -> RunFinished | RunError | None:
        """As `take`, for an event that `read` returned."""
        if isinstance(event, RunFinished | RunError):
            return event
        if not isinstance(event, RunStarted):
            self._correct(event)
        return None

    def calls(self) -> Mapping[str, str]:
        """The ids and names of the unanswered calls."""
        return {id: name for id, name in self._calls.items() if id not in self._answered}

    # ---- reading ----------------------------------------------------------------------------------------------------

    def read(self, raw_event: object) -> list[Event]:
        """Convert an event of the guest to current AG-UI events."""
        try:
            # Older producers write nulls for absent fields, and have other names for the events of reasoning.
            wire_event = msgspec.to_builtins(raw_event) if isinstance(raw_event, msgspec.Struct) else raw_event
            wire = without_nulls(as_object(wire_event))
            measure(wire)  # what nests too deeply could be read here, but neither be sent nor stored
            name = wire.get("type")
            if isinstance(name, str) and name in RENAMED:
                if name == "THINKING_START" or not self._thinking:
                    self._thinking = self._new_id("reasoning")
                wire = {**wire, "type": RENAMED[name], "messageId": self._thinking, "role": "reasoning"}
            if name == "MESSAGES_SNAPSHOT" and isinstance(wire.get("messages"), list):
                wire["messages"] = [present_message(each) for each in wire["messages"]]
            event, warnings = receive(wire)
            for warning in warnings:
                self._warn(warning)
            if event is None or isinstance(event, Raw):
                return []
            # The framework's own event may contain prompts, and is not part of the protocol.
            if event.raw_event is not None:
                event = msgspec.structs.replace(event, raw_event=None)
            return self._chunks.expand(event)
        except (DecodeError, LifecycleError, TooLarge, TypeError) as error:
            self._warn(f"An event of the agent was dropped: {error}")
            return []

    # ---- correcting -------------------------------------------------------------------------------------------------

    def _correct(self, event: Event) -> None:
        match event:
            case TextMessageStart(message_id=id):
                # With an id of an earlier run, clients would join the texts.
                if id in self._known_ids and id not in self._new_ids:
                    self._new_ids[id] = self._new_id("msg")
                self._known_ids.add(id)
                self._send(self._renamed(event))
            case TextMessageContent() | TextMessageEnd():
                self._send(self._renamed(event))
            case ToolCallStart(tool_call_id=id):
                if id not in self._resumed:
                    self._calls.setdefault(id, event.tool_call_name)
                    parent = self._new_ids.get(event.parent_message_id or "", event.parent_message_id)
                    self._send(msgspec.structs.replace(event, parent_message_id=parent))
            case ToolCallArgs(tool_call_id=id) | ToolCallEnd(tool_call_id=id):
                if id not in self._resumed:
                    self._send(event)
            case ToolCallResult(tool_call_id=id) if id in self._answered:
                self._warn("A second result of a tool call was dropped.")
            case ToolCallResult(tool_call_id=id) if self._calls.get(id) in self._clients:
                self._warn("The agent's result for a tool of the client was dropped.")
            case ToolCallResult(tool_call_id=id, message_id=message_id):
                self._answered.add(id)
                if message_id in self._known_ids or message_id == id:
                    message_id = self._new_id("msg")
                self._known_ids.add(message_id)
                self._results[id] = message_id
                self._send(msgspec.structs.replace(event, message_id=message_id))
            case MessagesSnapshot():
                self._apply_snapshot(event)
            case _:
                self._send(event)

    def _renamed(self, event: Any) -> Event:
        fresh = self._new_ids.get(event.message_id)
        renamed: Event = event if fresh is None else msgspec.structs.replace(event, message_id=fresh)
        return renamed

    def _apply_snapshot(self, event: MessagesSnapshot) -> None:
        """Emit a snapshot, or only what is new in it.

        If its id for a result differs from the id in TOOL_CALL_RESULT, clients would move the result to the end. Of
        such a snapshot, and of a partial one, only the new messages are emitted.
        """
        results = {str(each["toolCallId"]): each["id"] for each in event.messages if each.get("role") == "tool"}
        contradicts = any(results.get(call, id) != id for call, id in self._results.items())
        if not (self._partial or contradicts):
            self._known_ids |= {str(each["id"]) for each in event.messages}
            self._send(event)
            return
        for message in event.messages:
            id, role = str(message["id"]), message.get("role")
            if role == "tool" and (call_id := message["toolCallId"]) not in self._answered:
                self._correct(ToolCallResult(message_id=id, tool_call_id=call_id, content=message["content"]))
            if role != "assistant" or id in self._known_ids:
                continue
            content = message.get("content")
            parts = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
            texts = [each.get("text", "") for each in parts if each.get("type") == "text"]
            if text := content if isinstance(content, str) else "".join(texts):
                for part in message_events(id, text):
                    self._correct(part)
            for call in message.get("toolCalls") or ():
                if call["id"] not in self._calls:
                    function = call["function"]
                    for part in call_events(call["id"], function["name"], function["arguments"], id):
                        self._correct(part)

    def _send(self, event: Event) -> None:
        """Emit an event. Text without a start event gets one; other events that violate the lifecycle are dropped."""
        try:
            self._emit(event)
        except LifecycleError as error:
            if error.rule == "not-open" and isinstance(event, TextMessageContent):
                self._emit(TextMessageStart(message_id=event.message_id, role="assistant"))
            elif error.rule == "not-open" and isinstance(event, ReasoningMessageContent):
                self._emit(ReasoningMessageStart(message_id=event.message_id, role="reasoning"))
            else:
                self._warn(f"An event of the agent was dropped: {error.message}")
                return
            self._emit(event)


def message_events(id: str, text: str) -> Sequence[Event]:
    """The events of a complete assistant message."""
    return (
        TextMessageStart(message_id=id, role="assistant"),
        TextMessageContent(message_id=id, delta=text),
        TextMessageEnd(message_id=id),
    )


def call_events(id: str, name: str, arguments: str, parent: str) -> Sequence[Event]:
    """The events of a complete tool call."""
    return (
        ToolCallStart(tool_call_id=id, tool_call_name=name, parent_message_id=parent),
        ToolCallArgs(tool_call_id=id, delta=arguments),
        ToolCallEnd(tool_call_id=id),
    )


def without_nulls(wire: Mapping[str, Any]) -> dict[str, Any]:
    """An event without null fields at the top level, in its outcome and in its usage. The agent's own data (a snapshot,
    a value) may contain null."""
    event = {key: value for key, value in wire.items() if value is not None or key in MAY_BE_NULL}
    outcome = event.get("outcome")
    if isinstance(outcome, dict):
        event["outcome"] = _dense(outcome)
        if isinstance(outcome.get("interrupts"), list):
            event["outcome"]["interrupts"] = [_dense(each) for each in outcome["interrupts"]]
    if isinstance(event.get("usage"), list):
        event["usage"] = [_dense(each) for each in event["usage"]]
    return event


def present_message(message: object) -> object:
    """A message without nulls, and with `binary` parts (AG-UI before 1.0) converted to parts of their media type."""
    if not isinstance(message, dict):
        return message
    dense = _dense(message)
    if isinstance(dense.get("content"), list):
        dense["content"] = [present_part(part) for part in dense["content"]]
    if isinstance(dense.get("toolCalls"), list):
        dense["toolCalls"] = [_dense(call) for call in dense["toolCalls"]]
    return dense


def present_part(part: object) -> object:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime = str(part.get("mimeType") or "application/octet-stream")
    kind = mime.partition("/")[0]
    source = (
        {"type": "url", "value": part["url"], "mimeType": mime}
        if part.get("url")
        else {"type": "data", "value": part.get("data") or "", "mimeType": mime}
    )
    return {"type": kind if kind in MEDIA else "document", "source": source}


def _dense(value: object) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: item for key, item in value.items() if item is not None}
