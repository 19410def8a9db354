"""AG-UI's binary wire: `application/vnd.ag-ui.event+proto`.

Each frame is a big-endian uint32 with the length, then one `Event` message. No Python package has this encoder; the
reference is `@ag-ui/proto` 1.0.0 on npm, and a test compares the bytes of every event type with it. The schema below is
that package's: fields are numbered from 1 in the order listed (the first field of every event message holds the common
fields) and written in that order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from adapters.agui import PROTOBUF, downgrade
from events.encode import to_wire
from events.vocabulary import Event

Wire = dict[str, Any]

# Position in the enumeration is the value on the wire.
EVENT_TYPES = [
    *("TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"),
    *("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"),
    *("STATE_SNAPSHOT", "STATE_DELTA", "MESSAGES_SNAPSHOT", "RAW", "CUSTOM"),
    *("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "STEP_STARTED", "STEP_FINISHED"),
    *("SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"),
    *("TEXT_MESSAGE_CHUNK", "TOOL_CALL_CHUNK", "TOOL_CALL_RESULT", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA"),
    *("REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END"),
    *("REASONING_MESSAGE_CHUNK", "REASONING_END", "REASONING_ENCRYPTED_VALUE"),
]
PATCH_OPERATIONS = ["add", "remove", "replace", "move", "copy", "test"]

# event type → its field number in the envelope, and its own fields. `name` is a string that is written if present,
# `name!` a string that is written unless empty. Other kinds follow a colon: a message, value (any JSON), struct (a JSON
# object), int64, bool, enum. [ ] means repeated; value! also writes null.
ENVELOPE: dict[str, tuple[int, str]] = {
    "TEXT_MESSAGE_START": (1, "messageId! role name subagentRunId"),
    "TEXT_MESSAGE_CONTENT": (2, "messageId! delta! subagentRunId"),
    "TEXT_MESSAGE_END": (3, "messageId! subagentRunId"),
    "TOOL_CALL_START": (4, "toolCallId! toolCallName! parentMessageId subagentRunId"),
    "TOOL_CALL_ARGS": (5, "toolCallId! delta! subagentRunId"),
    "TOOL_CALL_END": (6, "toolCallId! subagentRunId"),
    "STATE_SNAPSHOT": (7, "snapshot:value! subagentRunId"),
    "STATE_DELTA": (8, "delta:[Operation] subagentRunId"),
    "MESSAGES_SNAPSHOT": (9, "messages:[Message]"),
    "RAW": (10, "event:value! source subagentRunId"),
    "CUSTOM": (11, "name! value:value! subagentRunId"),
    "RUN_STARTED": (12, "threadId! runId! parentRunId input:Input protocolVersion"),
    "RUN_FINISHED": (
        13,
        "threadId! runId! result:value outcome! interrupts:[Interrupt] usage:[Usage] pendingToolCallIds:[string]",
    ),
    "RUN_ERROR": (14, "code message! usage:[Usage]"),
    "STEP_STARTED": (15, "stepName! subagentRunId"),
    "STEP_FINISHED": (16, "stepName! subagentRunId"),
    "TEXT_MESSAGE_CHUNK": (17, "messageId role delta name subagentRunId"),
    "TOOL_CALL_CHUNK": (18, "toolCallId toolCallName parentMessageId delta subagentRunId"),
    "SUBAGENT_STARTED": (
        19,
        "subagentRunId! name! description parentSubagentRunId parentToolCallId parentMessageId",
    ),
    "SUBAGENT_FINISHED": (20, "subagentRunId! result:value outcome! interruptIds:[string]"),
    "SUBAGENT_ERROR": (21, "subagentRunId! message! code"),
    "TOOL_CALL_RESULT": (22, "subagentRunId messageId! toolCallId! content role contentParts:[Part]"),
    "ACTIVITY_SNAPSHOT": (23, "subagentRunId messageId! activityType! content:struct replace:bool"),
    "ACTIVITY_DELTA": (24, "subagentRunId messageId! activityType! patch:[Operation]"),
    "REASONING_START": (25, "subagentRunId messageId!"),
    "REASONING_MESSAGE_START": (26, "subagentRunId messageId! role!"),
    "REASONING_MESSAGE_CONTENT": (27, "subagentRunId messageId! delta!"),
    "REASONING_MESSAGE_END": (28, "subagentRunId messageId!"),
    "REASONING_MESSAGE_CHUNK": (29, "subagentRunId messageId delta"),
    "REASONING_END": (30, "subagentRunId messageId!"),
    "REASONING_ENCRYPTED_VALUE": (31, "subagentRunId subtype! entityId! encryptedValue!"),
}
_MEDIA = "source:Source metadata:value id"
MESSAGES: dict[str, str] = {
    "Base": "type:enum timestamp:int64 rawEvent:value metadata:struct",
    "Usage": "provider model inputTokens:int64 outputTokens:int64 totalTokens:int64 reasoningTokens:int64 "
    "cachedInputTokens:int64 cacheWriteInputTokens:int64",
    "Operation": "op:enum path! from value:value!",
    "Message": "id! role! content name toolCalls:[Call] toolCallId error contentParts:[Part] metadata:struct "
    "subagentRunId encryptedValue activityType activityContent:struct",
    "Call": "id! type! function:Function metadata:struct encryptedValue",
    "Function": "name! arguments!",
    "Part": "text:Text image:Media audio:Media video:Media document:Media",
    "Text": "text! id metadata:value",
    "Media": _MEDIA,
    "Source": "data:Data url:Url file:File",
    "Data": "value! mimeType!",
    "Url": "value! mimeType",
    "File": "value! provider mimeType",
    "Input": "threadId! runId! parentRunId state:value messages:[Message] tools:[Tool] context:[Context] "
    "forwardedProps:value resume:[Resume] protocolVersion",
    "Tool": "name! description! parameters:value metadata:struct",
    "Context": "description! value!",
    "Resume": "interruptId! status! payload:value metadata:struct",
    "Interrupt": "id! reason! message toolCallId responseSchema:value expiresAt metadata:value subagentRunId",
}  # fmt: skip

# ---- primitives (protobuf encoding: varint, 64-bit, length-delimited) ------------------------------------------------

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def _varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF  # negative numbers are two's complement in 64 bits
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _delimited(number: int, data: bytes) -> bytes:
    return _tag(number, _BYTES) + _varint(len(data)) + data


def _value(value: Any) -> bytes:
    """google.protobuf.Value: any JSON value."""
    match value:
        case None:
            return _tag(1, _VARINT) + _varint(0)
        case bool():
            return _tag(4, _VARINT) + _varint(value)
        case int() | float():
            return _tag(2, _FIXED64) + struct.pack("<d", value)
        case str():
            return _delimited(3, value.encode())
        case dict():
            return _delimited(5, _struct(value))
    return _delimited(6, b"".join(_delimited(1, _value(item)) for item in value))


def _struct(fields: Wire) -> bytes:
    """google.protobuf.Struct: a JSON object.

    Keys are in the reference's order: array indices in numeric order, then the others as inserted. `__proto__` is
    missing there, since assigning it to a JavaScript object does not create a key.
    """
    keys = [key for key in fields if key != "__proto__"]
    if indices := sorted((key for key in keys if _is_index(key)), key=int):
        keys = [*indices, *(key for key in keys if not _is_index(key))]
    entries = ((_delimited(1, key.encode()) if key else b"") + _delimited(2, _value(fields[key])) for key in keys)
    return b"".join(_delimited(1, entry) for entry in entries)


def _is_index(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key and int(key) < 2**32 - 1


# ---- the schema, compiled --------------------------------------------------------------------------------------------

Writer = Callable[[Wire], bytes]


def _field(number: int, spec: str) -> Writer:
    """Compile a field of the schema into a function that writes it, or nothing if it is absent."""
    name, _, kind = spec.partition(":")
    if not kind:
        key, is_implicit, tag = name.removesuffix("!"), name.endswith("!"), _tag(number, _BYTES)

        def string(message: Wire) -> bytes:
            value = message.get(key)
            if value is None or (is_implicit and not value):
                return b""
            data: bytes = value.encode()
            return tag + _varint(len(data)) + data

        return string
    if kind == "[string]":
        return lambda message: b"".join(_delimited(number, item.encode()) for item in message.get(name) or ())
    if kind.startswith("["):
        item_kind = kind[1:-1]
        return lambda message: b"".join(
            _delimited(number, _message(item_kind, item)) for item in message.get(name) or ()
        )
    write = _WRITERS.get(kind)
    if write is None:

        def inner_message(message: Wire) -> bytes:
            value = message.get(name)
            return b"" if value is None else _delimited(number, _message(kind, value))

        return inner_message
    null_counts = kind == "value!"

    def scalar(message: Wire) -> bytes:
        value = message.get(name)
        return write(number, value) if value is not None or (null_counts and name in message) else b""

    return scalar


_WRITERS: dict[str, Callable[[int, Any], bytes]] = {
    "value": lambda number, value: _delimited(number, _value(value)),
    "value!": lambda number, value: _delimited(number, _value(value)),
    "struct": lambda number, value: _delimited(number, _struct(value)),
    "int64": lambda number, value: _tag(number, _VARINT) + _varint(int(value)),
    "bool": lambda number, value: _tag(number, _VARINT) + _varint(value),
    "enum": lambda number, value: _tag(number, _VARINT) + _varint(value) if value else b"",
}


def _compile(spec: str, start: int) -> tuple[Writer, ...]:
    return tuple(_field(number, field) for number, field in enumerate(spec.split(), start))


_MESSAGE_WRITERS = {name: _compile(spec, 1) for name, spec in MESSAGES.items()}
_EVENT_WRITERS = {name: (number, _compile(spec, 2)) for name, (number, spec) in ENVELOPE.items()}


def _message(kind: str, value: Wire) -> bytes:
    prepare = _PREPARE.get(kind)
    shaped = prepare(value) if prepare else value
    return b"".join(write(shaped) for write in _MESSAGE_WRITERS[kind])


# ---- where the schema differs from the JSON -------------------------------------------------------------------------


def _shape_message(message: Wire) -> Wire:
    """Move the content to one of three fields: a string, parts, or an activity's object."""
    content = message.get("content")
    if isinstance(content, list):
        return message | {"content": None, "contentParts": content}
    if message.get("role") == "activity":
        return message | {"content": None, "activityContent": content if isinstance(content, dict) else {}}
    return message


_PREPARE: dict[str, Callable[[Wire], Wire]] = {
    "Operation": lambda operation: operation | {"op": PATCH_OPERATIONS.index(operation["op"])},
    "Message": _shape_message,
    "Part": lambda part: {part["type"]: part},
    "Source": lambda source: {source["type"]: source},
}


# ---- outbound --------------------------------------------------------------------------------------------------------


def encode_event(event: Event) -> bytes:
    """The `Event` message, without its frame."""
    wire = to_wire(event)
    number, writers = _EVENT_WRITERS[wire["type"]]
    base = _message("Base", wire | {"type": EVENT_TYPES.index(wire["type"])})
    match wire["type"]:
        case "RUN_FINISHED" | "SUBAGENT_FINISHED":
            outcome = wire.get("outcome") or {}
            wire = wire | outcome | {"outcome": outcome.get("type", "")}
        case "TOOL_CALL_RESULT" if isinstance(wire["content"], list):
            wire = wire | {"content": None, "contentParts": wire["content"]}
    return _delimited(number, _delimited(1, base) + b"".join(write(wire) for write in writers))


def frame(message: bytes) -> bytes:
    return struct.pack(">I", len(message)) + message


class ProtobufEncoder:
    """Encodes events as binary frames. Send the content type without parameters, which the client does not accept."""

    content_type = PROTOBUF

    def __init__(self, *, legacy: bool = False) -> None:
        self._legacy = legacy

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        """Return zero or one frame. The wire has no field for sequence numbers."""
        outgoing = downgrade(event) if self._legacy else event
        return b"" if outgoing is None or choice else frame(encode_event(outgoing))

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """Return nothing: the wire has no comments, and clients reject an empty frame."""
        return b""
