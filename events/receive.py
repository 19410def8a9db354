"""Read events of other producers as AG-UI 1.0 requires.

Unknown event types, members of a union and patch operations are dropped with a warning. Malformed data of known types
is an error, and so is null for a field that should be left out. `events.encode.decode` is for this server's own events
and does none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import msgspec
from ag_ui.core import (
    ActivityMessage,
    AssistantMessage,
    ContentPart,
    DeveloperMessage,
    Message,
    ReasoningMessage,
    RunAgentInput,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from events.encode import DecodeError, from_wire
from events.vocabulary import Event, Interrupt, TokenUsage

_KINDS: dict[str, type[msgspec.Struct]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
_MESSAGE: TypeAdapter[object] = TypeAdapter(Message)
_INPUT: TypeAdapter[object] = TypeAdapter(RunAgentInput)
_PART: TypeAdapter[object] = TypeAdapter(ContentPart)
# Nulls that producers before 1.0 wrote for an absent value; everywhere else null is malformed.
_OLD_NULLS = frozenset({"parentMessageId", "outcome", "result", "rawEvent"})
# Tuples instead of sets, since a producer may send an unhashable value as the tag.
_OUTCOMES = {"RUN_FINISHED": ("success", "interrupt", "cancelled"), "SUBAGENT_FINISHED": ("success", "suspended")}
_PATCHES = {"STATE_DELTA": "delta", "ACTIVITY_DELTA": "patch"}
# RFC 6902: operation → its required members.
_OPERATIONS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
_PARTS = ("text", "image", "audio", "video", "document")


def _members(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items())


_MODELS: list[type[BaseModel]] = [DeveloperMessage, SystemMessage, AssistantMessage, UserMessage, ToolMessage]
_MODELS += [ActivityMessage, ReasoningMessage]
_ROLES = {str(model.model_fields["role"].default): _members(model) for model in _MODELS}
_MEMBERS: dict[str, frozenset[str]] = {
    "outcome": frozenset({"pendingToolCallIds", "interrupts", "interruptIds"}),
    "usage": frozenset(TokenUsage.__struct_encode_fields__),
    "interrupts": frozenset(Interrupt.__struct_encode_fields__),
    "input": _members(RunAgentInput) - {"state", "forwardedProps"},
    "call": _members(ToolCall),
}


def receive(wire: Mapping[str, object]) -> tuple[Event | None, list[str]]:
    """Convert a decoded JSON object to an event, or None if its type is unknown, with a warning for everything dropped.

    Raises DecodeError for a malformed event.
    """
    name = wire.get("type")
    if not isinstance(name, str) or not name:
        raise DecodeError("An event must have a type.")
    if name not in _KINDS:
        return None, [f"Unknown event type {name} dropped."]
    warnings: list[str] = []
    fields = dict(wire)
    for field in msgspec.structs.fields(_KINDS[name]):
        wire_name = field.encode_name
        if field.required or fields.get(wire_name, ...) is not None:
            continue
        if wire_name not in _OLD_NULLS:
            raise DecodeError(f"{name}.{wire_name} is null; leave it out instead.")
        warnings.append(f"{name}.{wire_name}: null read as absent.")
        del fields[wire_name]
    outcome = fields.get("outcome")
    if name in _OUTCOMES and isinstance(outcome, dict) and outcome.get("type") not in _OUTCOMES[name]:
        warnings.append(f"{name}.outcome of an unknown type dropped.")
        del fields["outcome"]
    # An outcome, its interrupts and the usage must leave out absent values.
    outcome = fields.get("outcome")
    _refuse_nulls(outcome, _MEMBERS["outcome"], "outcome")
    interrupts = outcome.get("interrupts") if isinstance(outcome, dict) else None
    for where, items in (("usage", fields.get("usage")), ("interrupts", interrupts)):
        for item in items if isinstance(items, list) else ():
            _refuse_nulls(item, _MEMBERS[where], where)
    if name in _PATCHES:
        _check_patch(fields, _PATCHES[name], warnings)
    if name == "MESSAGES_SNAPSHOT":
        fields["messages"] = _checked_messages(fields.get("messages"), warnings)
    if name == "TOOL_CALL_RESULT":
        fields["content"] = _checked_parts(fields.get("content"), "/content", warnings)
    if name == "RUN_STARTED" and "input" in fields:
        run_input = fields["input"]
        if isinstance(run_input, dict):
            _refuse_nulls(run_input, _MEMBERS["input"], "/input")
            if "messages" in run_input:
                run_input = run_input | {"messages": _checked_messages(run_input["messages"], warnings)}
        _validate(_INPUT, run_input, "/input")
        fields["input"] = run_input
    return from_wire(fields), warnings


def _check_patch(fields: dict[str, object], key: str, warnings: list[str]) -> None:
    patch = fields.get(key)
    if not isinstance(patch, list):
        return
    operations = []
    for i, operation in enumerate(patch):
        if isinstance(operation, dict) and operation.get("op") not in tuple(_OPERATIONS):
            warnings.append(f"/{key}/{i}: unknown patch operation dropped.")
            continue
        where = f"/{key}/{i}"
        if not isinstance(operation, dict):
            raise DecodeError(f"{where} is not a patch operation.")
        members = _OPERATIONS[operation["op"]]
        pointers = [operation.get(name) for name in members if name != "value"]
        if not all(isinstance(pointer, str) and (not pointer or pointer[0] == "/") for pointer in pointers):
            raise DecodeError(f"{where} has no valid JSON pointer.")
        if "value" in members and "value" not in operation:
            raise DecodeError(f"{where} has no value.")
        operations.append(operation)
    fields[key] = operations


def _refuse_nulls(value: object, members: frozenset[str], where: str) -> None:
    """Raise DecodeError for null in a member that the protocol defines; other members are ignored."""
    if isinstance(value, dict) and any(value.get(name, ...) is None for name in members):
        raise DecodeError(f"{where} has null for an absent value. Leave it out instead.")


def _checked_messages(messages: object, warnings: list[str]) -> object:
    """Validate messages. Those with an unknown role and parts of an unknown kind are dropped with a warning."""
    if not isinstance(messages, list):
        return messages
    checked = []
    for i, message in enumerate(messages):
        where = f"/messages/{i}"
        if isinstance(message, dict) and message.get("role") not in tuple(_ROLES):
            warnings.append(f"{where}: message of an unknown role dropped.")
            continue
        if isinstance(message, dict) and isinstance(message.get("content"), list):
            message = message | {"content": _checked_parts(message["content"], f"{where}/content", warnings)}
        _validate(_MESSAGE, message, where)
        _refuse_nulls(message, _ROLES[message["role"]], where)
        for call in message.get("toolCalls", ()) if message["role"] == "assistant" else ():
            _refuse_nulls(call, _MEMBERS["call"], f"{where}/toolCalls")
        checked.append(message)
    return checked


def _checked_parts(content: object, where: str, warnings: list[str]) -> object:
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        if isinstance(part, dict):
            source = part.get("source")
            known_source = not isinstance(source, dict) or source.get("type") in ("data", "url", "file")
            if part.get("type") not in _PARTS or not known_source:
                continue
        parts.append(part)
    warnings += [f"{where}: unknown part dropped."] * (len(content) - len(parts))
    for part in parts:
        _validate(_PART, part, where)
    return parts


def _validate(adapter: TypeAdapter[object], value: object, where: str) -> None:
    try:
        adapter.validate_python(value)
    except ValidationError:
        raise DecodeError(f"{where} does not match AG-UI's definition.") from None
