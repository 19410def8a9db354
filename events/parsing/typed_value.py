"""A value written as plain text between tags, made into JSON as it arrives.

The tool's schema decides the value's type before it opens. A string streams at once; an object or list streams as
soon as it has shown to be one; a number, boolean or null is short and is held until its end. What turns out not to be
of the declared type becomes a string, so the result is always valid JSON.
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
    """The types a value may have: what the output itself declares, else the schema, else the format's `untyped`.

    `declared` is a JSON type's name, or "true" / "false" for "this is a string" / "this is JSON". What a tool's schema
    does not allow to be a string is none, whatever "true" says.
    """
    known = types(schema, root)
    if declared == "true":
        return frozenset({"string"}) if "string" in known else known
    if declared == "string":
        return frozenset({"string"})
    if declared == "false":
        return known if known != ANY else ANY
    if declared in ANY:
        return frozenset({declared})
    return frozenset({"string"}) if known == ANY and untyped == "string" else known


class TypedValue:
    """One value: `write` what arrives, `end` when its end marker was seen; JSON text is in `parts`."""

    __slots__ = ("_backslash", "_escaped", "_held", "_json", "_kinds", "_rest", "_write", "parts")

    def __init__(self, kinds: frozenset[str]) -> None:
        self.parts: list[str] = []
        self._kinds = kinds
        self._held: list[str] = []
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
                self.parts.append(quoted("".join(self._held)))
        else:
            self.parts.append(self._scalar("".join(self._held)))

    def take(self) -> str:
        """What was written since the last call."""
        text = "".join(self.parts)
        self.parts.clear()
        return text

    # How the value is being read.

    def _string(self, text: str) -> None:
        self.parts.append(escaped(text))

    def _space(self, text: str) -> None:
        """Nothing but white space so far; the first character behind it tells what the value can be."""
        self._held.append(text)
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
        """What may still be a number, boolean or null."""
        if text:
            self._held.append(text)
        word = "".join(self._held).strip()
        if not self._could_be_literal(word):
            self._be_string()

    def _quoted(self, text: str) -> None:
        """A value in quotes although it is not known to be a string: JSON, if it is JSON to the end."""
        self._held.append(text)
        if len(self._held) > _LONGEST_QUOTED or sum(map(len, self._held)) > _LONGEST_QUOTED:
            self._be_string()

    def _container(self, text: str) -> None:
        """An object or a list, which some models escape once more than they should: `[{\\"a\\": 1}]`."""
        if not self._json.committed:
            self._held.append(text)
        if self._json.done:
            return
        if self._escaped is None:
            self._rest += text
            # Whether a backslash stands where the first string of an object or list should open; None: not seen yet.
            first = self._rest.lstrip("[{ \t\r\n")[:2]
            over_escaped = None if first in ("", "\\") else first == '\\"'
            self._escaped, text = over_escaped, self._rest
            if self._escaped is None:
                return
            self._rest = ""
        rest = self._rest + (self._unescaped(text) if self._escaped else text)
        self._rest = rest[self._json.consume(rest, 0) :]
        if self._json.failed:
            self._be_string()
        elif self._json.committed:
            self._held.clear()
            self.parts.append(self._json.output.take())

    def _unescaped(self, text: str) -> str:
        """`text` without one level of escapes; a backslash at its end waits for what follows."""
        text = self._backslash + text
        self._backslash = "\\" if (len(text) - len(text.rstrip("\\"))) % 2 else ""
        return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text.removesuffix(self._backslash))

    # What comes of it.

    def _be_string(self) -> None:
        self._write = self._string
        self.parts.append('"')
        self.parts += map(escaped, self._held)
        self._held.clear()

    def _could_be_literal(self, word: str) -> bool:
        if len(word) > _LONGEST_WORD:
            return False
        if "string" not in self._kinds or (self._kinds & {"number", "integer"} and _NUMERIC.issuperset(word)):
            return True
        return any(known.startswith(word) for known, kind in _LITERALS.items() if kind in self._kinds)

    def _scalar(self, text: str) -> str:
        word = text.strip()
        found = literal(word)
        if self._kinds == {"boolean"}:
            found = _BOOLEANS.get(word.lower(), found)
        if self._write == self._quoted and found is None:
            return self._unquoted(text)
        if found is None or found in _NO_JSON or ("string" in self._kinds and not self._allows(word)):
            return quoted(text)
        return found

    def _unquoted(self, text: str) -> str:
        """A value in quotes: a string, or the literal within them that the type asks for."""
        try:
            value = json.loads(text)
        except ValueError:
            return quoted(text)
        found = literal(value.strip()) if "string" not in self._kinds else None
        return quoted(value) if found is None or not self._allows(found) else found

    def _allows(self, word: str) -> bool:
        if word in _LITERALS:
            return _LITERALS[word] in self._kinds
        return bool(self._kinds & {"number", "integer"}) and number(word) == word
