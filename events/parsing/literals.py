"""Numbers, booleans, null and strings: what models and Python write → JSON."""

from __future__ import annotations

import re
from json.encoder import encode_basestring

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {
    "true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false",
    "null": "null", "None": "null", "NULL": "null", "undefined": "null",
    "NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity",
}  # fmt: skip


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return encode_basestring(text)


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return encode_basestring(text)[1:-1]


def number(word: str) -> str | None:
    """JSON's spelling of a number as JSON or Python write it, else None."""
    if _NUMBER.fullmatch(word):
        return word
    if len(word) > 64 or not word.isascii() or not any(map(str.isdigit, word)):
        return None
    try:
        return str(int(word) if word.isdigit() else int(word, 0))
    except ValueError:
        pass
    try:
        value = float(word)
    except ValueError:
        return None
    return repr(value) if value - value == 0 else None


def literal(word: str) -> str | None:
    """The JSON text of a literal (number, boolean, null) as JSON or Python write it, else None."""
    return _WORDS.get(word) or number(word)
