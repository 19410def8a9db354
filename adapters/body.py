"""Reading a JSON body field by field, so that nothing is built from a field that will be refused.

The top level is split into raw fields first; each is then decoded on its own, typed where a list could be long, since
a typed decoder stops at the first wrong element. Every failure is a RequestError that names the field.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from adapters.errors import RequestError
from adapters.inbound import Limits

T = TypeVar("T")
_RAW_FIELDS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


def read_fields(body: bytes, limits: Limits) -> dict[str, msgspec.Raw]:
    """The fields of a JSON object, undecoded. Raises RequestError."""
    if len(body) > limits.body:
        raise RequestError("payload_too_large", f"The body is larger than {limits.body} bytes.")
    try:
        return _RAW_FIELDS.decode(body)
    except msgspec.ValidationError:
        raise RequestError("invalid_request", "The body must be a JSON object.") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("invalid_request", "The body is not valid JSON.") from None


def decode(raw: msgspec.Raw, kind: type[T] | Any, at: str) -> T:
    """One field as `kind`. Raises RequestError naming the innermost path under `at`."""
    try:
        value: T = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _named(error, at) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        raise RequestError("invalid_request", f"{at} is not valid JSON.", param=at) from None
    return value


def convert(value: Any, kind: type[T] | Any, at: str) -> T:
    """An already decoded value as `kind`, with the same errors as `decode`."""
    try:
        result: T = msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        raise _named(error, at) from None
    return result


def check_depth(value: Any, limit: int, at: str) -> None:
    """Refuse a value nested deeper than `limit`, so that whoever encodes it later cannot run out of stack."""
    level = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return
    raise RequestError("invalid_request", f"{at} is nested deeper than {limit} levels.", param=at)


def _children(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return [child for child in item.values() if isinstance(child, dict | list)]
    return [child for child in item if isinstance(child, dict | list)] if isinstance(item, list) else []


def _named(error: msgspec.ValidationError, at: str) -> RequestError:
    found = _WHERE.match(str(error))
    what, path = (found["what"], found["path"] or "$") if found else ("is not valid", "$")
    where = at + _INDEX.sub(r".\1", path.removeprefix("$"))
    if unknown := _UNKNOWN.search(what):
        where, what = f"{where}.{unknown['name'][:80]}", "is not a known field"
    what = what.replace("Object missing required", "is missing the").replace("Expected", "must be")
    return RequestError("invalid_request", f"{where} {what}.".replace("`", ""), param=where)
