"""Helpers for writing JSON text incrementally.

They convert literals of Python and of models to JSON, and find the end of strings with unescaped quotes or with
delimiters of their own. `JsonOutput` collects the JSON text.
"""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {
    "true": "true", "True": "true", "TRUE": "true", "false": "false", "False": "false", "FALSE": "false",
    "null": "null", "None": "null", "NULL": "null", "undefined": "null",
    "NaN": "NaN", "Infinity": "Infinity", "-Infinity": "-Infinity",
}  # fmt: skip


def quoted(text: str) -> str:
    """Return `text` as a JSON string."""
    return encode_basestring(text)


def escaped(text: str) -> str:
    """Return `text` escaped for the inside of a JSON string."""
    return encode_basestring(text)[1:-1]


def number(word: str) -> str | None:
    """Convert a number in JSON's or Python's notation to JSON. Return None for anything else."""
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
    """Convert a literal (number, boolean, null) in JSON's or Python's notation to JSON. Return None for anything
    else."""
    return _WORDS.get(word) or number(word)


_ARGUMENT = re.compile(r"[A-Za-z_]\w*\s*=(?!=)")
_NAME_START = re.compile(r"[A-Za-z_]\w*\s*")
_NEXT_KEY = re.compile(r"\s{0,64}(?:[\w.$-]{1,64}\s{0,64}:|[}\]<])")
_KEY_BEGUN = re.compile(r"\s{0,64}[\w.$-]{0,64}\s{0,64}")
_AFTER_CALL = "],;\n"
_AFTER_STRING = ",]})<"
_BEFORE_STRING = (":", ",", "[", "{", "(")
_FARTHEST = 64
_FARTHEST_QUOTE = 4096
_HEX = re.compile(r"[0-9a-fA-F]+")
_HEX_DIGITS = {"u": 4, "x": 2, "U": 8}
_SIMPLE_ESCAPES = frozenset('"\\/bfnrt')
_BRACKETS_CLOSE = "}])"
_BRACKETS = re.compile(r"[\[\](){}]")
STRING_PREFIXES = frozenset("fFrRbBuU")


def string_prefix(text: str, position: int, final: bool) -> int | None:
    """Return the length of a Python string's prefix at `position` (`f"..."`, `rb'...'`), 0 for none, or None if more
    text is needed."""
    for size in (1, 2):
        char = text[position + size : position + size + 1]
        if not char:
            return 0 if final else None
        if char in "\"'":
            return size
        if char not in STRING_PREFIXES:
            break
    return 0


_IN_TEXT = frozenset("()./\\_-$;=+*&%!?:'|~^@#")
"""Characters that follow a quote in a text, and no value in JSON."""
_KEY = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""", re.DOTALL)


def ends_string(text: str, position: int, final: bool, *, depth: int, key_quote: str = "") -> bool | None:
    """Return whether a quote that ends at `position` ends its string, because a continuation of the call follows; None
    if more text is needed.

    depth: 1 for the call's own arguments, more within lists and dictionaries. key_quote: in JSON, the quote of keys;
    the string is the value of one. "" in a call in Python's syntax.
    """
    at = _past(text, position, " \t\r\n")
    # Bounded, so that long white space after a quote costs no more than its beginning.
    if at - position > _FARTHEST:
        return True
    if at >= len(text):
        return True if final else None
    if key_quote:
        return _json_follows(text, at, key_quote, final)
    char = text[at]
    # Within a list the continuation is unknown: only characters that look like text continue the string.
    if depth > 1:
        return not char.isalnum() and char not in "/\\.-_$"
    if char == ",":
        return _argument(text, _past(text, at + 1, " \t\r\n"), final)
    # A bracket closes the call only if the text after it can follow a call; `say("a) b")` contains text.
    if char == ")":
        at = _past(text, at, ") \t")
        if at >= len(text):
            return True if final else None
        return text[at] in _AFTER_CALL or not (text[at].isalnum() or text[at] in "\"'.")
    return char in "]}<" or _argument(text, at, final)


def _json_follows(text: str, at: int, key_quote: str, final: bool) -> bool | None:
    """Return whether the text at `at` can follow the value of a key in JSON, or None if more text is needed."""
    char = text[at]
    if char == ",":
        at = _past(text, at + 1, " \t\r\n")
        if at >= len(text):
            return True if final else None
        if text[at] != key_quote:
            return True
    elif char != key_quote:
        return not (char.isalnum() or char in _IN_TEXT)
    # Another key, or another quote of the text.
    key = _KEY.match(text, at, at + _FARTHEST)
    if key is None:
        return True if final or len(text) - at >= _FARTHEST else None
    after = _past(text, key.end(), " \t\r\n")
    if after >= len(text):
        return True if final else None
    return text[after] == ":"


def _past(text: str, position: int, characters: str) -> int:
    end = min(len(text), position + _FARTHEST + 1)
    while position < end and text[position] in characters:
        position += 1
    return position


def _argument(text: str, position: int, final: bool) -> bool | None:
    """Return whether another argument or the end of the call is at `position`, or None if more text is needed."""
    if position >= len(text):
        return True if final else None
    if text[position] in ")]}":
        return True
    if _ARGUMENT.match(text, position):
        return True
    name = _NAME_START.match(text, position)
    return None if name and name.end() >= len(text) - 1 and not final else False


def word_goes_on(word: list[str], text: str, position: int, final: bool) -> bool | None:
    """Return whether the comma before `position` is part of a bare word, because no key follows it; None if more text
    is needed. word: the pieces of the word."""
    is_short = sum(map(len, word[: _FARTHEST + 1])) <= _FARTHEST
    if (is_short and literal("".join(word).strip()) is not None) or _NEXT_KEY.match(text, position):
        return False
    return None if not final and _KEY_BEGUN.fullmatch(text, position) else not final


def balance(text: str) -> int:
    """Return the number of brackets that the text opens minus those that it closes."""
    if _BRACKETS.search(text) is None:
        return 0
    return sum(map(text.count, "{[(")) - sum(map(text.count, _BRACKETS_CLOSE))


def _unfinished(text: str, position: int, marker: str) -> int:
    """Return the index from which the end of `text` could be the beginning of `marker`, or the text's length."""
    for start in range(max(position, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)


def read_escape(text: str, position: int, final: bool) -> tuple[str, int]:
    """Read an escape sequence in a string. Return its JSON text and the position after it, or ("", position) if more
    text is needed. JSON's escapes are kept, Python's are translated, any other backslash stands for itself."""
    char = text[position + 1 : position + 2]
    if not char and not final:
        return "", position
    # `\x41` and `\U0001F600` are Python's; JSON has four digits alone.
    if char in _HEX_DIGITS:
        digits = _HEX_DIGITS[char]
        code = text[position + 2 : position + 2 + digits]
        valid = not code or _HEX.fullmatch(code) is not None
        if len(code) < digits and valid and not final:
            return "", position
        if len(code) < digits or not valid:
            return "\\\\", position + 1
        # Beyond the four digits a character may need a surrogate pair, which the JSON writer makes.
        escape = "\\u" + code.zfill(4) if digits < 8 else json.dumps(chr(min(int(code, 16), 0x10FFFF)))[1:-1]
        return escape, position + 2 + digits
    if char and char in _SIMPLE_ESCAPES:
        return "\\" + char, position + 2
    if char in ("'", "\n"):
        return "'" if char == "'" else "\\n", position + 2
    return "\\\\", position + 1


def undecided(text: str, opened: int) -> int:
    """Return how many characters at the end of a string's text are not part of it if its closing quote is missing:
    white space, or brackets that close nothing within the string and therefore close its surroundings.

    opened: the balance of brackets in the text before.
    """
    last = text[-1:]
    if last.isspace():
        return min(len(text) - len(text.rstrip()), _FARTHEST)
    if not last or last not in _BRACKETS_CLOSE:
        return 0
    run = min(len(text) - len(text.rstrip(_BRACKETS_CLOSE)), _FARTHEST)
    return min(run, max(0, -(opened + balance(text))))


def raw_string_goes_on(text: str, at: int, marker: str, quote: str, final: bool) -> bool | None:
    """Return whether a custom quote or a stop at `at` is part of the string around it; None if more text is needed.

    A quote is if no delimiter follows it. A stop is if the string's closing quote follows it: before one that opens
    another string, the closing quote is missing.
    """
    behind, limit = at + len(marker), at + _FARTHEST_QUOTE
    while marker != quote:
        closing = text.find(quote, behind, limit)
        if closing < 0:
            return None if not final and len(text) < limit else False
        if text[max(behind, closing - _FARTHEST) : closing].rstrip()[-1:] in _BEFORE_STRING:
            return False
        behind = closing + len(quote)
        ends = _ends_raw_string(text, behind, final)
        if ends is not False:
            return ends
    ends = _ends_raw_string(text, behind, final)
    return None if ends is None else not ends


def _ends_raw_string(text: str, position: int, final: bool) -> bool | None:
    """Return whether a custom quote before `position` ends its string; None if more text is needed."""
    following = text[position : position + _FARTHEST]
    if not following.strip():
        return True if final or len(following) == _FARTHEST else None
    return following.lstrip()[0] in _AFTER_STRING


def word_end(text: str, position: int, final: bool, ends: re.Pattern[str], stops: tuple[str, ...]) -> tuple[int, bool]:
    """Return how far a bare word certainly extends, and whether it ends there: at one of `ends` or before a stop."""
    match = ends.search(text, position)
    end = match.start() if match else len(text)
    ended = match is not None
    # A stop counts if it begins before that end; the beginning of a partial stop is held back.
    for stop in stops:
        at = text.find(stop, position, end + len(stop))
        if at >= 0 and at <= end:
            end, ended = at, True
        elif not ended and not final:
            end = min(end, _unfinished(text, position, stop))
    return end, ended


def at_marker(text: str, position: int, markers: tuple[str, ...], final: bool) -> str:
    """Return whether one of `markers` is at `position`: "yes", "" for no, "maybe" for a partial marker."""
    rest = text[position : position + _FARTHEST]
    if any(rest.startswith(marker) for marker in markers):
        return "yes"
    return "maybe" if not final and any(marker.startswith(rest) for marker in markers) else ""


class JsonOutput:
    """Collects JSON text in `parts`.

    tidy: use own white space instead of the model's. key: the text of the current key, None if it is not needed.

    Three things are held back. A comma is written when an element follows, so a trailing comma is left out. A Python
    brace opens a dictionary or a set, so it is written when a colon or a comma follows its first element. A string that
    the schema does not allow waits for its end.
    """

    def __init__(self, *, tidy: bool) -> None:
        self.parts: list[str] = []
        self.key: list[str] | None = None
        self._tidy = tidy
        self._comma: list[str] = []  # the comma, and the model's white space after it
        self._brace: list[str] | None = None  # the brace and what follows it
        self._string: list[str] | None = None  # a string that may be converted to another type

    def take(self) -> str:
        """Return the text since the last call."""
        text = "".join(self.parts)
        self.parts.clear()
        return text

    def write(self, text: str) -> None:
        if self.key is not None:
            self.key.append(text)
        if self._string is not None:
            self._string.append(text)
        else:
            (self.parts if self._brace is None else self._brace).append(text)

    def colon(self) -> None:
        self.write(": " if self._tidy else ":")

    def null_member(self) -> None:
        """Write null as the value of a key without one."""
        self.write(": null" if self._tidy else ":null")

    def comma(self) -> None:
        """Note a comma, which was read or is missing before the next element."""
        self._comma = [", " if self._tidy else ","]

    def element(self) -> None:
        """Begin an element: write the comma before it."""
        if self._comma:
            self.write("".join(self._comma))
            self._comma = []

    def drop_comma(self) -> None:
        """Drop the comma because the object or list ends."""
        self._comma = []

    def blank(self, text: str) -> None:
        """Write white space, which is kept if the model writes JSON itself."""
        if self._tidy:
            return
        if self._comma:
            self._comma.append(text)
        else:
            self.write(text)

    def hold_string(self) -> None:
        """Hold back the string that is written next."""
        self._string = []

    def held_string(self) -> str | None:
        """Return the string that was held back, as JSON, to be written now, or None."""
        text, self._string = self._string, None
        return None if text is None else "".join(text)

    def hold_brace(self) -> None:
        """Hold back the Python brace that is written next."""
        self._brace = []

    @property
    def holds_brace(self) -> bool:
        return self._brace is not None

    def brace_is_object(self) -> None:
        """Write the brace as the beginning of an object, since a key or nothing follows."""
        if self._brace is not None:
            self.parts += self._brace
            self._brace = None

    def brace_is_list(self, element: str | None) -> None:
        """Write the brace as the beginning of a list, since a value follows and it opens a set.

        element: the first element as JSON, if it was written as a key; otherwise its text stays.
        """
        rest = "".join((self._brace or [])[1:])
        self.parts += ("[", rest if element is None else element)
        self._brace = None
