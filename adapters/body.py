"""From decoded JSON to typed fields, with errors that name the place in the client's own numbering."""

from __future__ import annotations

import re
from typing import Any, TypeGuard, TypeVar, get_args

import msgspec

from adapters.errors import RequestError
from adapters.inbound import Limits, read_json
from adapters.leniency import known_only

T = TypeVar("T")
MAX_NAME = 80
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<kind>[\w |]+)`")


def read_object(body: bytes, limits: Limits, *, shape: object = dict) -> dict[str, object]:
    """A JSON object; `shape` is a msgspec type with what it must have at least. Raises RequestError."""
    value: dict[str, Any] = read_json(body, limits, shape=shape)
    return value


class Lenient(msgspec.Struct, frozen=True):
    """A part of a request in which unknown fields are left out with a note; see `adapters.leniency`."""


def convert(value: object, kind: type[T] | object, at: str) -> T:
    """`value` as `kind`, a msgspec type. Unknown fields of the `Lenient` structs in it are noted. Raises RequestError
    naming the innermost place under `at`."""
    _note_unknown(value, kind, at)
    try:
        result: T = msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        raise _named(error, at) from None
    return result


def _note_unknown(value: object, kind: object, at: str) -> None:
    if isinstance(value, list):
        for each in get_args(kind):
            for i, item in enumerate(value):
                _note_unknown(item, each, f"{at}.{i}")
    elif isinstance(value, dict):
        struct = next((each for each in (kind, *get_args(kind)) if _is_lenient(each)), None)
        if struct is not None:
            known_only(value, struct.__struct_encode_fields__, at)
            for field in msgspec.structs.fields(struct):
                _note_unknown(value.get(field.encode_name), field.type, f"{at}.{field.encode_name}")


def _is_lenient(kind: object) -> TypeGuard[type[Lenient]]:
    return isinstance(kind, type) and issubclass(kind, Lenient)


def wrong(at: str, what: str) -> RequestError:
    return RequestError("invalid_request", f"{at} {what}.", param=at)


def flag(values: dict[str, object], name: str, default: bool = False) -> bool:
    """A boolean field; null and absent are `default`."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


def _named(error: msgspec.ValidationError, at: str) -> RequestError:
    text, _, path = str(error).partition(" - at `$")
    where = (at + _INDEX.sub(r".\1", path.rstrip("`"))).lstrip(".")
    if unknown := _UNKNOWN.search(text):
        return wrong(f"{where}.{unknown['name'][:MAX_NAME]}".lstrip("."), "is not a known field")
    if missing := _MISSING.search(text):
        return wrong(f"{where}.{missing['name']}".lstrip("."), "is required")
    if expected := _EXPECTED.search(text):
        return wrong(where or "The body", f"must be of type {expected['kind']}")
    return wrong(where or "The body", "has a value that is not allowed")
