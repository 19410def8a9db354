"""Convert a value that is plain text between tags to JSON, incrementally.

The tool's schema determines the value's type before it begins. A string is streamed at once; an object or list as soon
as it is certain to be one; a number, boolean or null is short and is held back until its end. A value that turns out
not to have the declared type becomes a string, so the result is always valid JSON.
"""

from __future__ import annotations

import json
import re

from events.parsing.json_output import escaped, literal, number, quoted
from events.parsing.json_text import JsonText
from events.parsing.schema import ANY, Schema, types

_CONTAINERS = {"{": "object", "[": "array"}
_LITERALS = {
    "true": "boolean", "false": "boolean", "True": "boolean", "False": "boolean",
    "null": "null", "None": "null",
}  # fmt: skip
_NUMERIC = frozenset("0123456789+-.eE_")
_BOOLEANS = {"1": "true", "yes": "true", "on": "true", "0": "false", "no": "false", "off": "false"}
_NO_JSON = frozenset({"NaN", "Infinity", "-Infinity"})
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_LONGEST_QUOTED = 4096
_LONGEST_WORD = 64


def value_types(schema: Schema, root: Schema, declared: str, untyped: str) -> frozenset[str]:
    """Return the types a value may have: those declared in the output, or else in the schema, or else `untyped`.

    declared: a JSON type's name, or "true" / "false" for "is a string" / "is JSON". If the tool's schema does not allow
    a string, the value is not one, even with "true".
    """
    schema_types = types(schema, root)
    if declared == "true":
        return frozenset({"string"}) if "string" in schema_types else schema_types
    if declared == "string":
        return frozenset({"string"})
    if declared == "false":
        return schema_types if schema_types != ANY else ANY
    if declared in ANY:
        return frozenset({declared})
    return frozenset({"string"}) if schema_types == ANY and untyped == "string" else schema_types


class TypedValue:
    """One value. Call `write` with its text and `end` at its end marker; the JSON text is in `parts`."""

    __slots__ = ("_backslash", "_buffer", "_escaped", "_json", "_kinds", "_rest", "_write", "parts")

    def __init__(self, kinds: frozenset[str]) -> None:
        self.parts: list[str] = []
        self._kinds = kinds
        self._buffer: list[str] = []
        self._json = JsonText()
        self._rest = self._backslash = ""
        self._escaped: bool | None = None
        self._write = self._space
        if kinds == {"string"}:
            self._be_string()

    def write(self, text: str) -> None:
        self._write(text)

    def end(self) -> None:
        """Complete the value."""
        if self._write == self._string:
            self.parts.append('"')
        elif self._write == self._container:
            if not self._json.done:
                self._json.consume(self._rest + self._backslash, 0, True)
            if self._json.committed:
                self._json.close()
                self.parts.append(self._json.output.take())
            else:
                self.parts.append(quoted("".join(self._buffer)))
        else:
            self.parts.append(self._scalar("".join(self._buffer)))

    def take(self) -> str:
        """Return the JSON text since the last call."""
        text = "".join(self.parts)
        self.parts.clear()
        return text

    # The states.

    def _string(self, text: str) -> None:
        self.parts.append(escaped(text))

    def _space(self, text: str) -> None:
        """Only white space so far; the first character after it determines the state."""
        self._buffer.append(text)
        beginning = text.lstrip()
        if not beginning:
            return
        if beginning[0] in _CONTAINERS and ("string" not in self._kinds or _CONTAINERS[beginning[0]] in self._kinds):
            self._write = self._container
            self._rest = beginning
            self._container("")
        elif beginning[0] == '"' and (self._kinds == ANY or "string" not in self._kinds):
            self._write = self._quoted
            self._quoted("")
        else:
            self._write = self._word
            self._word("")

    def _word(self, text: str) -> None:
        """Text that may still be a number, boolean or null."""
        if text:
            self._buffer.append(text)
        word, kinds = "".join(self._buffer).strip(), self._kinds
        could_be_literal = len(word) <= _LONGEST_WORD and (
            "string" not in kinds
            or (bool(kinds & {"number", "integer"}) and _NUMERIC.issuperset(word))
            or any(name.startswith(word) for name, kind in _LITERALS.items() if kind in kinds)
        )
        if not could_be_literal:
            self._be_string()

    def _quoted(self, text: str) -> None:
        """A value in quotes that need not be a string: JSON if the whole value is JSON."""
        self._buffer.append(text)
        if len(self._buffer) > _LONGEST_QUOTED or sum(map(len, self._buffer)) > _LONGEST_QUOTED:
            self._be_string()

    def _container(self, text: str) -> None:
        """An object or a list, which some models escape once too often: `[{\\"a\\": 1}]`."""
        if not self._json.committed:
            self._buffer.append(text)
        if self._json.done:
            return
        if self._escaped is None:
            self._rest += text
            # Whether a backslash is where the first string of an object or list should begin; None: undecided.
            first = self._rest.lstrip("[{ \t\r\n")[:2]
            over_escaped = None if first in ("", "\\") else first == '\\"'
            self._escaped, text = over_escaped, self._rest
            if self._escaped is None:
                return
            self._rest = ""
        if self._escaped:
            # Remove one level of escapes. A backslash at the end is held back.
            text = self._backslash + text
            self._backslash = "\\" if (len(text) - len(text.rstrip("\\"))) % 2 else ""
            text = _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[1]), text.removesuffix(self._backslash))
        rest = self._rest + text
        self._rest = rest[self._json.consume(rest, 0) :]
        if self._json.failed:
            self._be_string()
        elif self._json.committed:
            self._buffer.clear()
            self.parts.append(self._json.output.take())

    # Results.

    def _be_string(self) -> None:
        self._write = self._string
        self.parts.append('"')
        self.parts += map(escaped, self._buffer)
        self._buffer.clear()

    def _scalar(self, text: str) -> str:
        word = text.strip()
        json_literal = literal(word)
        if self._kinds == {"boolean"}:
            json_literal = _BOOLEANS.get(word.lower(), json_literal)
        if self._write == self._quoted and json_literal is None:
            # A value in quotes is a string, or the literal within them if the type requires one.
            try:
                value = json.loads(text)
            except ValueError:
                return quoted(text)
            inner = literal(value.strip()) if "string" not in self._kinds else None
            return quoted(value) if inner is None or not self._allows(inner) else inner
        if json_literal is None or json_literal in _NO_JSON or ("string" in self._kinds and not self._allows(word)):
            return quoted(text)
        return json_literal

    def _allows(self, word: str) -> bool:
        if word in _LITERALS:
            return _LITERALS[word] in self._kinds
        return bool(self._kinds & {"number", "integer"}) and number(word) == word
