"""Convert what models write as JSON to valid JSON, incrementally.

Well-formed JSON is passed on verbatim. Common errors of models are repaired: Python literals, single quotes, bare keys,
trailing and missing commas, raw control characters and invalid escapes in strings, numbers in Python's notation, and
brackets left open before a marker. Each character is examined once and the state is a stack of open brackets, so the
cost is linear and text that was sent is never revoked. NaN and Infinity are kept, since JSON has no equivalent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from events.parsing.json_output import (
    STRING_PREFIXES,
    JsonOutput,
    at_marker,
    balance,
    ends_string,
    escaped,
    literal,
    quoted,
    raw_string_goes_on,
    read_escape,
    string_prefix,
    undecided,
    word_end,
    word_goes_on,
)
from events.parsing.schema import Schema, item_schema, property_schema, resolved, types
from events.parsing.source import is_token, scanner_for

Coerce = Callable[[str, Schema], str]
"""Converts a bare word to JSON text, given the schema at its position or None."""
State = Callable[["JsonText", str, int, bool], int]

_STOPS = {quote: re.compile(f"[{quote}\\\\\x00-\x1f]") for quote in ('"', "'")}
_WORD_ENDS = {  # keywords → where a bare word ends as a value, as a key
    False: (re.compile(r"[,\]}\n]"), re.compile(r"[:,\]}\n]")),
    True: (re.compile(r"[,\]})\n]"), re.compile(r"[:=,\]})\n]")),
}
_CLOSERS = {"{": "}", "[": "]", "set": "]"}
_OPENERS = {"}": "{", "]": "[", ")": "["}
_SPACE = re.compile(r"[ \t\r\n]*")


def word_to_json(word: str, schema: Schema = None) -> str:
    """Convert a bare word to JSON: to a literal if it is one, otherwise to a string."""
    return literal(word) or quoted(word)


class JsonText:
    """One JSON object or array. Feed text with `consume`; the JSON text is in `output`.

    keywords: the text is the inside of a Python call, `a=1, b='x')`, and becomes an object.
    quote: an additional string delimiter (`<|"|>`), whose strings have no escapes.
    stops: markers that end an unfinished value, outside of strings or in a string between `quote`s.
    eager: an object is accepted with the opening quote of its first key instead of the colon after it.
    coerce: converts bare words, given the schema at their position below `schema`.
    coerce_string: converts strings where the schema does not allow one.

    done: the value is complete. committed: it is certainly a value of its kind (after the first key of an object and
    its colon, the first element of a list, or its end). failed: it is certainly not. stopped: reading has stopped at
    one of `stops`.
    """

    def __init__(
        self,
        *,
        keywords: bool = False,
        quote: str = "",
        stops: tuple[str, ...] = (),
        coerce: Coerce = word_to_json,
        coerce_string: Coerce | None = None,
        schema: Schema = None,
        eager: bool = False,
    ) -> None:
        self.done = self.committed = self.failed = self.stopped = False
        self._quote = quote
        self._stops = stops
        self._stop_firsts = frozenset(stop[0] for stop in stops)
        self._word_stops = (*stops, quote) if quote else stops
        self._raw_end = scanner_for((quote, *stops))
        self._coerce = coerce
        self._coerce_string = coerce_string
        self.output = JsonOutput(tidy=keywords or bool(quote))
        self._keywords = keywords
        self._eager = eager
        self._value_end, self._key_end = _WORD_ENDS[keywords]
        self._stack: list[tuple[str, Schema]] = []
        self._schema = self._root = schema
        self._state: State = JsonText._value
        self._delimiter = ""
        self._balance = 0
        self._is_key = False
        self._word: list[str] = []
        self._first_word = ""  # after a Python brace
        if keywords:
            self._open("{")

    def take(self) -> str:
        """Return the JSON text since the last call."""
        return self.output.take()

    def consume(self, text: str, position: int, final: bool = False) -> int:
        """Read text from `position` on. Return the position reached: the end, less if the rest needs more text, or
        where the value is `done`, `failed` or `stopped`."""
        size = len(text)
        while position < size and not (self.done or self.failed or self.stopped):
            before, state = position, self._state
            position = state(self, text, position, final)
            # No progress: the rest needs more text.
            if position == before and self._state is state:
                break
        return position

    def close(self) -> None:
        """Close everything open, so that the text is one valid value."""
        if self._state is JsonText._string or self._state is JsonText._raw_string:
            self._end_string()
        elif self._state is JsonText._bare:
            self._end_word()
        while self._stack:
            self._close_one()
        self.done = True

    def flush(self) -> None:
        """Write the unchanged text of an unfinished bare word, for a value that the end of the output cut off."""
        self.output.parts += self._word
        self._word.clear()

    # The states. Each reads one thing at `position` and returns where the next one starts; the same place and the same
    # state mean that more text is needed.

    def _value(self, text: str, position: int, final: bool) -> int:
        char = text[position]
        if char.isspace():
            return self._blank(text, position)
        if char in "{[(":
            self.output.element()
            self._open("{" if char == "{" else "[")
            return position + 1
        if char in "]})":
            return self._closer(char, text, position, final)
        if char in ",:":
            return self._unexpected(text, position, final)
        return self._scalar(text, position, final)

    def _key(self, text: str, position: int, final: bool) -> int:
        char = text[position]
        if char.isspace():
            return self._blank(text, position)
        if char in "]})":
            return self._closer(char, text, position, final)
        if char in ",:={[(":
            return self._unexpected(text, position, final)
        return self._scalar(text, position, final)

    def _colon(self, text: str, position: int, final: bool) -> int:
        char = text[position]
        if char.isspace():
            return self._blank(text, position)
        if self.output.holds_brace and char != ":":
            # A value follows the Python brace, so it opens a set.
            self.output.brace_is_list(self._coerce(self._first_word, None) if self._first_word else None)
            self._stack[-1] = ("set", self._stack[-1][1])
            self._end_value()
            return position
        if char == ":" or (char == "=" and self._keywords):
            self.output.brace_is_object()
            self.committed = True
            self._state = JsonText._value
            self.output.colon()
            return position + 1
        if char in ",]})" and self.committed:
            self.output.null_member()
            self._end_value()
            return position
        return self._unexpected(text, position, final)

    def _after(self, text: str, position: int, final: bool) -> int:
        char = text[position]
        if char.isspace():
            return self._blank(text, position)
        if char in "]})":
            return self._closer(char, text, position, final)
        # A missing comma is added if the next element begins.
        keyword = self._keywords and len(self._stack) == 1 and (char.isalpha() or char == "_")
        if char == "," or char in "\"'{[" or keyword:
            self.output.comma()
            self._state = JsonText._key if self._stack[-1][0] == "{" else JsonText._value
            return position + (char == ",")
        return self._unexpected(text, position, final)

    def _string(self, text: str, position: int, final: bool) -> int:
        match = _STOPS[self._delimiter].search(text, position)
        if match is None:
            self._inner(text[position:])
            return len(text)
        stop = match.start()
        if stop > position:
            self._inner(text[position:stop])
        char = text[stop]
        if char == self._delimiter:
            # An unescaped quote may belong to the text, depending on what follows.
            if not self._is_key and (self._keywords or (self._stack and self._stack[-1][0] == "{")):
                key_quote = "" if self._keywords else self._delimiter
                ends = ends_string(text, stop + 1, final, depth=len(self._stack), key_quote=key_quote)
                if ends is None:
                    return stop
                if not ends:
                    self._inner(char if self._delimiter == "'" else "\\" + char)
                    return stop + 1
            self._end_string()
            return stop + 1
        if char == "\\":
            escape, position = read_escape(text, stop, final)
            if escape:
                self.output.write(escape)
            return position
        self.output.write(escaped(char))
        return stop + 1

    def _raw_string(self, text: str, position: int, final: bool) -> int:
        """Read a string between custom quotes, which ends at the next quote and has no escapes. A stop before it means
        that the quote is missing. Where these are spelled out and not tokens, they may also be part of the string,
        depending on what follows."""
        at, marker = self._raw_end.find(text, position, final)
        undecided_marker = False
        if marker is not None and not self._is_key and not any(map(is_token, marker)):
            goes_on = raw_string_goes_on(text, at, marker, self._quote, final)
            if goes_on:
                self._raw(text[position : at + len(marker)])
                return at + len(marker)
            undecided_marker = goes_on is None
        if marker == self._quote and not undecided_marker:
            self._raw(text[position:at])
            self._end_string()
            return at + len(marker)
        # Brackets and white space at the end may follow a missing quote, so they are held back.
        end = at - undecided(text[position:at], self._balance)
        self._raw(text[position:end])
        if undecided_marker:
            return end
        if marker:
            self._end_string()
        return at if marker or final else end

    def _raw(self, text: str) -> None:
        self._balance += balance(text)
        self.output.write(escaped(text))

    def _bare(self, text: str, position: int, final: bool) -> int:
        """Read a word without quotes, up to a delimiter, a stop, or a custom quote whose opening one is missing."""
        ends = self._key_end if self._is_key else self._value_end
        end, ended = word_end(text, position, final, ends, self._word_stops)
        if end > position:
            self._word.append(text[position:end])
        if not ended:
            return end
        if self._quote and text.startswith(self._quote, end):
            self._end_word(is_string=True)
            return end + len(self._quote)
        if self._quote and text[end] == "," and not self._is_key and self._stack and self._stack[-1][0] == "{":
            goes_on = word_goes_on(self._word, text, end + 1, final)
            if goes_on is None:
                return end
            if goes_on:
                self._word.append(",")
                return end + 1
        self._end_word()
        return end

    # Helpers of the states.

    def _blank(self, text: str, position: int) -> int:
        """Read white space: kept if the model writes JSON itself; after a comma only if something follows."""
        match = _SPACE.match(text, position)
        end = match.end() if match else position
        if end == position:
            return position + 1  # white space that JSON does not allow is left out
        self.output.blank(text[position:end])
        return end

    def _scalar(self, text: str, position: int, final: bool) -> int:
        """Begin a string or a bare word, as a value or as a key."""
        if text[position] in self._stop_firsts and (stop := at_marker(text, position, self._stops, final)):
            self.stopped = stop == "yes"
            return position
        if self._keywords and text[position] in STRING_PREFIXES:
            prefix = string_prefix(text, position, final)
            if prefix is None:
                return position
            position += prefix
        quote = self._quote
        here = text[position : position + len(quote)]
        if quote and here != quote and not final and quote.startswith(here):
            return position
        self.output.element()
        self._is_key = self._state is JsonText._key
        self.output.key = [] if self._is_key and self._schema is not None else None
        if quote and here == quote:
            return self._begin_string("", JsonText._raw_string, position + len(quote))
        if text[position] in "\"'":
            return self._begin_string(text[position], JsonText._string, position + 1)
        self._state = JsonText._bare
        return position

    def _begin_string(self, delimiter: str, state: State, position: int) -> int:
        self._delimiter = delimiter
        self._balance = 0
        if not self._is_key or self._eager:
            self.committed = True
        if self._coerce_string and not self._is_key and "string" not in types(self._schema, self._root):
            self.output.hold_string()
        self.output.write('"')
        self._state = state
        return position

    def _inner(self, run: str) -> None:
        self.output.write(run if self._delimiter == '"' else run.replace('"', '\\"'))

    def _end_string(self) -> None:
        self.output.write('"')
        text = self.output.held_string()
        if text is not None and self._coerce_string:
            self.output.write(self._coerce_string(json.loads(text), self._schema))
        self._end_scalar()

    def _end_word(self, is_string: bool = False) -> None:
        word = "".join(self._word).strip()
        self._word.clear()
        if self._is_key:
            self._first_word = word
            self.output.write(quoted(word))
        # A list whose first element is a bare word is prose in brackets.
        elif self._stack and not (self.committed or is_string) and literal(word) is None:
            self.failed = True
            return
        else:
            self.committed = True
            self.output.write(quoted(word) if is_string else self._coerce(word, self._schema))
        self._end_scalar()

    def _end_scalar(self) -> None:
        if self._is_key:
            # The schema of the innermost object's property.
            if self.output.key is not None:
                schema = property_schema(self._stack[-1][1], json.loads("".join(self.output.key)), self._root)
                self._schema = resolved(schema, self._root)
            self.output.key = None
            self._state = JsonText._colon
        else:
            self._end_value()

    def _end_value(self) -> None:
        if self._stack:
            bracket, self._schema = self._stack[-1]
            if bracket == "[":
                self._schema = resolved(item_schema(self._schema, self._root), self._root)
            self._state = JsonText._after
        else:
            self.done = True

    def _open(self, bracket: str) -> None:
        if bracket == "{" and self._keywords and self._stack:
            self.output.hold_brace()
            self._first_word = ""
        self.output.write(bracket)
        self._stack.append((bracket, self._schema))
        if bracket == "[":
            self._schema = resolved(item_schema(self._schema, self._root), self._root)
        self._state = JsonText._key if bracket == "{" else JsonText._value

    def _closer(self, char: str, text: str, position: int, final: bool) -> int:
        """Read a closing bracket, which closes its matching opening bracket and everything open within."""
        opener = "set" if char == "}" and self._stack and self._stack[-1][0] == "set" else _OPENERS[char]
        if char == ")" and self._keywords and not any(kind == "[" for kind, _ in self._stack):
            opener = "{"
        # A stray bracket, which matches no open one, is left out or ends the value.
        if all(kind != opener for kind, _ in self._stack):
            return self._unexpected(text, position, final)
        while self._close_one() != opener:
            pass
        self.committed = True
        return position + 1

    def _close_one(self) -> str:
        """Close the innermost bracket. Return its kind."""
        self.output.brace_is_object()
        bracket = self._stack[-1][0]
        if bracket == "{" and self._state is JsonText._colon:
            self.output.null_member()
        elif bracket == "{" and self._state is JsonText._value:
            self.output.write("null")
        self.output.drop_comma()
        self.output.write(_CLOSERS[bracket])
        self._schema = self._stack.pop()[1]
        self._end_value()
        return bracket

    def _unexpected(self, text: str, position: int, final: bool) -> int:
        """Handle an unexpected character: the end if a stop is there; otherwise it is left out."""
        if text[position] in self._stop_firsts and (stop := at_marker(text, position, self._stops, final)):
            self.stopped = stop == "yes"
            return position
        if not self.committed:
            self.failed = True
            return position
        return position + 1
