"""Readers of single values of decoded JSON: each gives the value in its type, or a RequestError that names the field.

`path` is the field's place in the client's own spelling ("messages.0.role").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from adapters.body import wrong

T = TypeVar("T")
Reader = Callable[[str, object], object]

MAX_NAMES = 1024
MAX_STRING = 64 * 1024


def boolean(path: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(path, "must be true or false")
    return value


def integer(path: str, value: object) -> int:
    """A whole number; 3.0 is one, as JSON has a single number type."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(path, "must be a whole number")
    if abs(value) >= 2**64:
        raise wrong(path, "must fit 64 bits")
    return value


def number(path: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, "must be a number")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise wrong(path, "is too large")
    return float(value)


def string(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(path, "must be a string")
    if len(value) > MAX_STRING:
        raise wrong(path, f"must be at most {MAX_STRING} characters long")
    return value


def mapping(path: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong(path, "must be an object")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} keys")
    return value


def sequence(path: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise wrong(path, "must be an array")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} items")
    return value


def one_of(*allowed: str) -> Callable[[str, object], str]:
    def read(path: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise wrong(path, f"must be one of {', '.join(allowed)}")
        return value

    return read


def optional(read: Callable[[str, object], T], path: str, value: object) -> T | None:
    return None if value is None else read(path, value)


def strings(path: str, value: object) -> tuple[str, ...]:
    """A string or an array of strings; empty strings are dropped."""
    values = [value] if isinstance(value, str) else sequence(path, value)
    return tuple(text for i, item in enumerate(values) if (text := string(f"{path}.{i}", item)))


def token_ids(path: str, value: object) -> tuple[int, ...]:
    ids = tuple(integer(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value)))
    if any(not 0 <= token < 2**31 for token in ids):
        raise wrong(path, "must hold token ids")
    return ids


def token_numbers(path: str, value: object) -> dict[int, float]:
    """Token ids, which JSON spells as strings, and a number for each."""
    found = {}
    for key, amount in mapping(path, value).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise wrong(path, "must map token ids to numbers")
        found[int(key)] = number(f"{path}.{key}", amount)
    return found
