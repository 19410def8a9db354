"""Event ↔ JSON bytes.

`encode` returns the same bytes as the Python SDK's encoder (ag_ui.encoder.EventEncoder) for every event type, which a
property test checks. It uses msgspec, which is about twenty times faster. The libraries differ in one output, floats of
1e16 and more (`1e16` instead of pydantic's `1e+16`), and msgspec rejects a few values that the SDK accepts in free-form
fields (bool and None as keys, subclasses of str, pydantic models; integers of any size are fine). Such events take the
slow path through pydantic's serialiser. NaN and the infinities become null in both. Dictionaries (messages, parts,
patch operations, values) keep the order of their keys, which is the SDK's order when they come from its models.

The SDK raises an error for a lone surrogate. Here it becomes U+FFFD, so that a run does not fail because of one
character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pydantic_core
from pydantic import BaseModel

from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Custom,
    Event,
    MessagesSnapshot,
    Raw,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    SubagentFinished,
    ToolCallResult,
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
# Events with free-form values in their own fields; all others have them only in `metadata` and `raw_event`.
_FREE_FORM = frozenset(
    {RunStarted, RunFinished, ToolCallResult, StateSnapshot, StateDelta, MessagesSnapshot}
    | {ActivitySnapshot, ActivityDelta, Raw, Custom, SubagentFinished}
)
# A number in msgspec's exponent notation without sign. A string may look like one, which only costs time.
_LARGE_FLOAT = re.compile(rb"[:,\[]-?\d+(?:\.\d+)?e\d")
_SURROGATES = re.compile("[\ud800-\udfff]")


class DecodeError(ValueError):
    """The data is not an AG-UI event."""


def encode(event: Event) -> bytes:
    """Encode an event as one line of JSON in UTF-8, without a newline."""
    try:
        data = _ENCODER.encode(event)
    except (TypeError, UnicodeEncodeError, OverflowError):
        return _encode_slowly(event)
    if (event.metadata is not None or event.raw_event is not None or type(event) in _FREE_FORM) and _LARGE_FLOAT.search(
        data
    ):
        return _encode_slowly(event)
    return data


def decode(data: bytes | str) -> Event:
    """Decode an event. Unknown fields are ignored. Raises DecodeError."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DecodeError(str(error)) from None


def from_wire(wire: Mapping[str, Any]) -> Event:
    """Convert a decoded JSON object to an event. Raises DecodeError."""
    try:
        event: Event = msgspec.convert(wire, Event)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(str(error)) from None
    return event


def to_wire(event: Event) -> dict[str, Any]:
    """Convert an event to the JSON object that `encode` writes."""
    wire: dict[str, Any] = msgspec.json.decode(encode(event))
    return wire


def _encode_slowly(event: Event) -> bytes:
    fields = _plain(event)
    try:
        return pydantic_core.to_json(fields, by_alias=True, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        return pydantic_core.to_json(_without_surrogates(fields), by_alias=True, inf_nan_mode="null")


def _plain(value: object) -> object:
    """Convert structs to dictionaries as msgspec would write them; pydantic serialises all other values."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    config = value.__struct_config__
    tagged = {config.tag_field: config.tag} if config.tag_field else {}
    names = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
    named = ((wire, getattr(value, name)) for name, wire in names)
    return tagged | {wire: _plain(item) for wire, item in named if item is not None or wire in _REQUIRED_ANY}


# Required fields whose value may be null: STATE_SNAPSHOT.snapshot, RAW.event, CUSTOM.value.
_REQUIRED_ANY = frozenset({"snapshot", "event", "value"})


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_without_surrogates(key): _without_surrogates(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, BaseModel):
        return _without_surrogates(value.model_dump(by_alias=True))
    return value
