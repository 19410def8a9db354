"""Reading what another producer sent, as AG-UI 1.0 wants it read.

What is not recognised is dropped and said: unknown event types, unknown members of a union, unknown patch operations.
What is recognised and malformed is an error, and so is null where a field would have to be left out. `decode` in
`events.encode` is for our own bytes and has none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import msgspec
from ag_ui.core import Message
from pydantic import TypeAdapter, ValidationError

from events.encode import DecodeError, from_wire
from events.vocabulary import Event

_KINDS: dict[str, type[msgspec.Struct]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Event)}
_MESSAGE: TypeAdapter[Any] = TypeAdapter(Message)
# Nulls that producers before 1.0 wrote for an absent value; everywhere else null is malformed.
_OLD_NULLS = frozenset({"parentMessageId", "outcome", "result", "rawEvent"})
_OUTCOMES = {"RUN_FINISHED": {"success", "interrupt", "cancelled"}, "SUBAGENT_FINISHED": {"success", "suspended"}}
_PATCHES = {"STATE_DELTA": "delta", "ACTIVITY_DELTA": "patch"}
# RFC 6902: operation → members that it must have.
_OPERATIONS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
_PARTS = frozenset({"text", "image", "audio", "video", "document"})


def receive(wire: Mapping[str, Any]) -> tuple[Event | None, list[str]]:
    """The event in a decoded JSON object, or None if its type is unknown, and a sentence for everything dropped.

    Raises DecodeError for a malformed event.
    """
    name = wire.get("type")
    if not isinstance(name, str) or not name:
        raise DecodeError("An event must have a type.")
    if name not in _KINDS:
        return None, [f"Unknown event type {name} dropped."]
    warnings: list[str] = []
    fields = _without_nulls(name, dict(wire), warnings)
    _check_outcome(name, fields, warnings)
    if name in _PATCHES:
        _check_patch(fields, _PATCHES[name], warnings)
    if name == "MESSAGES_SNAPSHOT":
        _check_messages(fields, warnings)
    return from_wire(fields), warnings


def _without_nulls(name: str, fields: dict[str, Any], warnings: list[str]) -> dict[str, Any]:
    for field in msgspec.structs.fields(_KINDS[name]):
        wire_name = field.encode_name
        if field.required or fields.get(wire_name, ...) is not None:
            continue
        if wire_name not in _OLD_NULLS:
            raise DecodeError(f"{name}.{wire_name} is null; leave it out instead.")
        warnings.append(f"{name}.{wire_name}: null read as absent.")
        del fields[wire_name]
    return fields


def _check_outcome(name: str, fields: dict[str, Any], warnings: list[str]) -> None:
    outcome = fields.get("outcome")
    if name in _OUTCOMES and isinstance(outcome, dict) and outcome.get("type") not in _OUTCOMES[name]:
        warnings.append(f"{name}.outcome of an unknown type dropped.")
        del fields["outcome"]


def _check_patch(fields: dict[str, Any], key: str, warnings: list[str]) -> None:
    patch = fields.get(key)
    if not isinstance(patch, list):
        return
    known = []
    for i, operation in enumerate(patch):
        if isinstance(operation, dict) and operation.get("op") not in _OPERATIONS:
            warnings.append(f"/{key}/{i}: unknown patch operation dropped.")
            continue
        _check_operation(operation, f"/{key}/{i}")
        known.append(operation)
    fields[key] = known


def _check_operation(operation: Any, where: str) -> None:
    if not isinstance(operation, dict):
        raise DecodeError(f"{where} is not a patch operation.")
    members = _OPERATIONS[operation["op"]]
    pointers = [operation.get(name) for name in members if name != "value"]
    if not all(isinstance(pointer, str) and (not pointer or pointer[0] == "/") for pointer in pointers):
        raise DecodeError(f"{where} lacks a JSON pointer.")
    if "value" in members and "value" not in operation:
        raise DecodeError(f"{where} lacks a value.")


def _check_messages(fields: dict[str, Any], warnings: list[str]) -> None:
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            kept = [part for part in content if not isinstance(part, dict) or part.get("type") in _PARTS]
            warnings += [f"/messages/{i}/content: unknown part dropped."] * (len(content) - len(kept))
            messages[i] = message | {"content": kept}
        try:
            _MESSAGE.validate_python(messages[i])
        except ValidationError:
            raise DecodeError(f"/messages/{i} is not a message.") from None
