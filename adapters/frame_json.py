"""JSON bytes for frames. A lone surrogate becomes U+FFFD: a stream must not die over one character."""

from __future__ import annotations

import re

import msgspec

_encode = msgspec.json.Encoder().encode
_SURROGATES = re.compile("[\ud800-\udfff]")


def json_string(text: str) -> bytes:
    try:
        return _encode(text)
    except UnicodeEncodeError:
        return _encode(_SURROGATES.sub("\ufffd", text))


def json_bytes(value: object) -> bytes:
    """Any plain value; NaN and the infinities become null."""
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return _encode(_clean(value))


def _clean(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATES.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
