"""What models write for JSON, made into JSON text as it arrives.

Well-formed JSON passes verbatim. What models really do is mended on the way: Python literals, single quotes, bare
keys, trailing and missing commas, raw control characters and wrong escapes in strings, numbers as Python writes
them, brackets left open before a marker. Each character is looked at once and the state is a stack of open brackets,
so the cost is linear and what was sent is never taken back. NaN and Infinity pass as they are, since JSON has no word
for them.
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
    read_escape,
    string_prefix,
    undecided,
    word_end,
    word_goes_on,
)
from events.parsing.schema import Schema, item_schema, property_schema, resolved, types
from events.parsing.source import scanner_for

Coerce = Callable[[str, Schema], str]
"""A bare word and the schema of its place (or None) → JSON text."""
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
    """A bare word as JSON: a literal, else a string."""
    return literal(word) or quoted(word)


class JsonText:
    """One JSON object or array, read with `consume`; what was written is in `output`.

    keywords: the text is the inside of a Python call, `a=1, b='x')`, and becomes an object.
    quote: a further string delimiter (`<|"|>`), whose strings know no escapes.
    stops: markers that end an unfinished value where they stand outside of strings, or in a string between `quote`s.
    eager: an object has shown to be one with the opening quote of its first key, not only with the colon behind it.
    coerce: decides about bare words, given the schema of their place below `schema`.
    coerce_string: the same for strings where their place's schema allows none.

    done: the value is complete. committed: it has shown to be a value of its kind (the first key of an object and its
    colon, the first element of a list, or its end). failed: it has shown not to be. stopped: one of `stops` stands
    where the reading stopped.
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
        self._first_word = ""  # behind a brace of Python's
        if keywords:
            self._open("{")

    def take(self) -> str:
        """What was written since the last call."""
        return self.output.take()

    def consume(self, text: str, position: int, final: bool = False) -> int:
        """Read on and return how far: to the end, or less where the rest waits for more text, or to where the value
        is `done`, `failed` or `stopped`."""
        size = len(text)
        while position < size and not (self.done or self.failed or self.stopped):
            before, state = position, self._state
            position = state(self, text, position, final)
            # No state made progress: all that is left waits for more text.
            if position == before and self._state is state:
                break
        return position

    def close(self) -> None:
        """Complete what is open, so that everything written is one valid value."""
        if self._state is JsonText._string or self._state is JsonText._raw_string:
            self._end_string()
        elif self._state is JsonText._bare:
            self._end_word()
        while self._stack:
            self._close_one()
        self.done = True

    def flush(self) -> None:
        """Write what is held of an unfinished bare word, as it is: for a value that the end of the output cut off."""
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
            # What follows a brace of Python's is a value: the brace opens a set.
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
        # A missing comma is mended where the next element begins like one.
        keyword = self._keywords and len(self._stack) == 1 and (char.isalpha() or char == "_")
        if char == "," or char in "\"'{[" or keyword:
            self.output.comma()
            self._state = JsonText._key if self._stack[-1][0] == "{" else JsonText._value
            return position + (char == ",")
        return self._unexpected(text, position, final)

    def _string(self, text: str, position: int, final: bool) -> int:
        found = _STOPS[self._delimiter].search(text, position)
        if found is None:
            self._inner(text[position:])
            return len(text)
        stop = found.start()
        if stop > position:
            self._inner(text[position:stop])
        char = text[stop]
        if char == self._delimiter:
            # Python's strings: an unescaped quote may belong to the text. What follows it tells.
            if self._keywords and not self._is_key:
                ends = ends_string(text, stop + 1, len(self._stack), final)
                if ends is None:
                    return stop
                if not ends:
                    self._inner(char if self._delimiter == "'" else "\\" + char)
                    return stop + 1
            self._end_string()
            return stop + 1
        if char == "\\":
            written, position = read_escape(text, stop, final)
            if written:
                self.output.write(written)
            return position
        self.output.write(escaped(char))
        return stop + 1

    def _raw_string(self, text: str, position: int, final: bool) -> int:
        """Inside a string between custom quotes, which ends at the next quote and knows no escapes. A stop in front of
        that means that the quote was forgotten."""
        at, marker = self._raw_end.find(text, position, final)
        if marker == self._quote:
            self._raw(text[position:at])
            self._end_string()
            return at + len(marker)
        # Brackets and white space at the end may be behind a forgotten quote, so they wait.
        end = at - undecided(text[position:at], self._balance)
        self._raw(text[position:end])
        if marker:
            self._end_string()
        return at if marker or final else end

    def _raw(self, text: str) -> None:
        self._balance += balance(text)
        self.output.write(escaped(text))

    def _bare(self, text: str, position: int, final: bool) -> int:
        """A word without quotes, up to a delimiter or a stop, or up to a custom quote that was forgotten in front
        of it."""
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

    # What the states do.

    def _blank(self, text: str, position: int) -> int:
        """White space: kept where the model writes JSON itself, behind a comma only if something follows."""
        found = _SPACE.match(text, position)
        end = found.end() if found else position
        if end == position:
            return position + 1  # white space that JSON does not know is left out
        self.output.blank(text[position:end])
        return end

    def _scalar(self, text: str, position: int, final: bool) -> int:
        """Begin a string or a bare word, as a value or as a key."""
        if text[position] in self._stop_firsts and (held := at_marker(text, position, self._stops, final)):
            self.stopped = held == "yes"
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
        if text[position] in "\"'" and not quote:
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
        held = self.output.held_string()
        if held is not None and self._coerce_string:
            self.output.write(self._coerce_string(json.loads(held), self._schema))
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
            # The place below `key` of the innermost object.
            if self.output.key is not None:
                found = property_schema(self._stack[-1][1], json.loads("".join(self.output.key)), self._root)
                self._schema = resolved(found, self._root)
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
        """A closing bracket closes what was opened with its like, and what is still open within."""
        opener = "set" if char == "}" and self._stack and self._stack[-1][0] == "set" else _OPENERS[char]
        if char == ")" and self._keywords and not any(kind == "[" for kind, _ in self._stack):
            opener = "{"
        # It closes nothing that is open: a stray bracket is left out, or ends the reading.
        if all(kind != opener for kind, _ in self._stack):
            return self._unexpected(text, position, final)
        while self._close_one() != opener:
            pass
        self.committed = True
        return position + 1

    def _close_one(self) -> str:
        """Close the innermost bracket, and return how it was opened."""
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
        """A character that has no place here: the end, if a stop stands there; else it is left out."""
        if text[position] in self._stop_firsts and (held := at_marker(text, position, self._stops, final)):
            self.stopped = held == "yes"
            return position
        if not self.committed:
            self.failed = True
            return position
        return position + 1
