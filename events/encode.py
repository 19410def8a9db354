"""Event ↔ JSON bytes.

`encode` gives the bytes that the Python SDK's own encoder (ag_ui.encoder.EventEncoder) gives for the same data, for
every event type; a property test holds it to that. It goes through msgspec, which is some twenty times faster.
The two libraries write one thing differently, a float of 1e16 and more (`1e16` against pydantic's `1e+16`), and msgspec
refuses a few values that the SDK accepts inside free-form fields (integers are fine at any size; bool and None as
keys, subclasses of str, pydantic models are not). Such events take the slow path, through pydantic's own serialiser.
NaN and the infinities become null in both. Dictionaries (messages, parts, patch operations, values) are written in the
order in which they hold their keys, which is the SDK's order when they come from its models.

The SDK raises on a lone surrogate. A run must not die in mid-stream over one character, so it becomes U+FFFD here.
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
# Events whose own fields hold values of any shape; any other event does only in `metadata` and `raw_event`.
_FREE_FORM = frozenset(
    {RunStarted, RunFinished, ToolCallResult, StateSnapshot, StateDelta, MessagesSnapshot}
    | {ActivitySnapshot, ActivityDelta, Raw, Custom, SubagentFinished}
)
# A number in msgspec's exponent notation without sign. A string may look like one, which costs time and nothing else.
_LARGE_FLOAT = re.compile(rb"[:,\[]-?\d+(?:\.\d+)?e\d")
_SURROGATES = re.compile("[\ud800-\udfff]")


class DecodeError(ValueError):
    """Bytes that are not an AG-UI event."""


def encode(event: Event) -> bytes:
    """The event as one line of JSON in UTF-8, without a newline."""
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
    """The event in `data`; unknown fields are ignored. Raises DecodeError."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DecodeError(str(error)) from None


def from_wire(wire: Mapping[str, Any]) -> Event:
    """The event in a decoded JSON object. Raises DecodeError."""
    try:
        event: Event = msgspec.convert(wire, Event)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(str(error)) from None
    return event


def to_wire(event: Event) -> dict[str, Any]:
    """The JSON object that `encode` writes."""
    wire: dict[str, Any] = msgspec.json.decode(encode(event))
    return wire


def _encode_slowly(event: Event) -> bytes:
    fields = _plain(event)
    try:
        return pydantic_core.to_json(fields, by_alias=True, inf_nan_mode="null")
    except pydantic_core.PydanticSerializationError:
        return pydantic_core.to_json(_without_surrogates(fields), by_alias=True, inf_nan_mode="null")


def _plain(value: object) -> object:
    """Structs to dictionaries as msgspec would write them; whatever else is inside is pydantic's to serialise."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    config = value.__struct_config__
    tagged = {config.tag_field: config.tag} if config.tag_field else {}
    named = ((wire, getattr(value, name)) for name, wire in _names(type(value)))
    return tagged | {wire: _plain(item) for wire, item in named if item is not None or wire in _REQUIRED_ANY}


def _names(kind: type[msgspec.Struct]) -> list[tuple[str, str]]:
    return list(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))


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
