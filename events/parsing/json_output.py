"""JSON text as it is written piece by piece.

Literals: what models and Python write → JSON. Strings whose end is in doubt, because the model did not escape a quote
or because they stand between markers of their own. `JsonOutput` joins what was written.
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


_ARGUMENT = re.compile(r"[A-Za-z_]\w*\s*=(?!=)")
_BEGUN = re.compile(r"[A-Za-z_]\w*\s*")
_NEXT_KEY = re.compile(r"\s{0,64}(?:[\w.$-]{1,64}\s{0,64}:|[}\]<])")
_KEY_BEGUN = re.compile(r"\s{0,64}[\w.$-]{0,64}\s{0,64}")
_AFTER_CALL = "],;\n"
_FARTHEST = 64
_HEX = re.compile(r"[0-9a-fA-F]+")
_HEX_DIGITS = {"u": 4, "x": 2, "U": 8}
_SIMPLE_ESCAPES = frozenset('"\\/bfnrt')
_BRACKETS_CLOSE = "}])"
_BRACKETS = re.compile(r"[\[\](){}]")
STRING_PREFIXES = frozenset("fFrRbBuU")


def string_prefix(text: str, position: int, final: bool) -> int | None:
    """The length of what marks the string of Python's that begins here (`f"..."`, `rb'...'`), 0 where there is none.
    None: more text is needed to tell."""
    for size in (1, 2):
        char = text[position + size : position + size + 1]
        if not char:
            return 0 if final else None
        if char in "\"'":
            return size
        if char not in STRING_PREFIXES:
            break
    return 0


def ends_string(text: str, position: int, depth: int, final: bool) -> bool | None:
    """Whether a quote that ends at `position` ends its string: what follows must go on with the call. None: more text
    is needed to tell. depth: 1 for the call's own arguments, more inside of lists and dictionaries."""
    at = _past(text, position, " \t\r\n")
    # Bounded, so that a page of white space behind a quote costs no more than a look at its beginning.
    if at - position > _FARTHEST:
        return True
    if at >= len(text):
        return True if final else None
    char = text[at]
    # Within a list nothing more is known of what may follow: only what looks like text goes on with the string.
    if depth > 1:
        return not char.isalnum() and char not in "/\\.-_$"
    if char == ",":
        return _argument(text, _past(text, at + 1, " \t\r\n"), final)
    # A bracket closes the call only if nothing follows that a call could not be followed by; `say("a) b")` has text.
    if char == ")":
        at = _past(text, at, ") \t")
        if at >= len(text):
            return True if final else None
        return text[at] in _AFTER_CALL or not (text[at].isalnum() or text[at] in "\"'.")
    return char in "]}<" or _argument(text, at, final)


def _past(text: str, position: int, characters: str) -> int:
    end = min(len(text), position + _FARTHEST + 1)
    while position < end and text[position] in characters:
        position += 1
    return position


def _argument(text: str, position: int, final: bool) -> bool | None:
    """Whether a further argument stands here, or the end of the call."""
    if position >= len(text):
        return True if final else None
    if text[position] in ")]}":
        return True
    if _ARGUMENT.match(text, position):
        return True
    begun = _BEGUN.match(text, position)
    return None if begun and begun.end() >= len(text) - 1 and not final else False


def word_goes_on(word: list[str], text: str, position: int, final: bool) -> bool | None:
    """Whether the comma in front of `position` is part of a bare word (its pieces) and not its end: what follows is no
    further key. None: more text is needed to tell."""
    is_short = sum(map(len, word[: _FARTHEST + 1])) <= _FARTHEST
    if (is_short and literal("".join(word).strip()) is not None) or _NEXT_KEY.match(text, position):
        return False
    return None if not final and _KEY_BEGUN.fullmatch(text, position) else not final


def balance(text: str) -> int:
    """Brackets that the text opens, less those that it closes."""
    if _BRACKETS.search(text) is None:
        return 0
    return sum(map(text.count, "{[(")) - sum(map(text.count, _BRACKETS_CLOSE))


def _unfinished(text: str, position: int, marker: str) -> int:
    """From where on the end of `text` could be the beginning of `marker`; its length if nowhere."""
    for start in range(max(position, len(text) - len(marker) + 1), len(text)):
        if marker.startswith(text[start:]):
            return start
    return len(text)


def read_escape(text: str, position: int, final: bool) -> tuple[str, int]:
    """A string's backslash: JSON text, and where to go on; ("", position) where more text is needed. JSON's escapes
    pass, Python's are translated, any other is a backslash in its own right."""
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
        written = "\\u" + code.zfill(4) if digits < 8 else json.dumps(chr(min(int(code, 16), 0x10FFFF)))[1:-1]
        return written, position + 2 + digits
    if char and char in _SIMPLE_ESCAPES:
        return "\\" + char, position + 2
    if char in ("'", "\n"):
        return "'" if char == "'" else "\\n", position + 2
    return "\\\\", position + 1


def undecided(text: str, opened: int) -> int:
    """How many characters at the end of a string's text are none of it if the string's own quote never comes: white
    space, or brackets that close nothing within it (`opened`: what the text before opened) and then close what is
    around it."""
    last = text[-1:]
    if last.isspace():
        return min(len(text) - len(text.rstrip()), _FARTHEST)
    if not last or last not in _BRACKETS_CLOSE:
        return 0
    run = min(len(text) - len(text.rstrip(_BRACKETS_CLOSE)), _FARTHEST)
    return min(run, max(0, -(opened + balance(text))))


def word_end(text: str, position: int, final: bool, ends: re.Pattern[str], stops: tuple[str, ...]) -> tuple[int, bool]:
    """How far a bare word certainly goes, and whether it ends there: at one of `ends`, or in front of a stop."""
    found = ends.search(text, position)
    end = found.start() if found else len(text)
    ended = found is not None
    # A stop counts where it begins before the end that was found; one that is only begun holds back its beginning.
    for stop in stops:
        at = text.find(stop, position, end + len(stop))
        if at >= 0 and at <= end:
            end, ended = at, True
        elif not ended and not final:
            end = min(end, _unfinished(text, position, stop))
    return end, ended


def at_marker(text: str, position: int, markers: tuple[str, ...], final: bool) -> str:
    """Whether one of `markers` stands here: "yes", "" for no, "maybe" while it is only begun."""
    rest = text[position : position + _FARTHEST]
    if any(rest.startswith(marker) for marker in markers):
        return "yes"
    return "maybe" if not final and any(marker.startswith(rest) for marker in markers) else ""


class JsonOutput:
    """Text in `parts`. tidy: white space is ours, not the model's. key: the text of the key that is being read, None
    where it need not be known.

    Three things wait. A comma is written when an element follows it, so a trailing comma is left out. A brace of
    Python's opens a dictionary or a set: it is written once a colon or a comma behind its first element tells. A string
    where the schema allows none waits for its end.
    """

    def __init__(self, *, tidy: bool) -> None:
        self.parts: list[str] = []
        self.key: list[str] | None = None
        self._tidy = tidy
        self._comma: list[str] = []  # the comma, and the model's white space behind it
        self._brace: list[str] | None = None  # the brace and what follows it
        self._string: list[str] | None = None  # a string that may have to become something else

    def take(self) -> str:
        """What was written since the last call."""
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
        """The value of a key that has none."""
        self.write(": null" if self._tidy else ":null")

    def comma(self) -> None:
        """A comma was read, or is missing in front of the next element."""
        self._comma = [", " if self._tidy else ","]

    def element(self) -> None:
        """An element begins: the comma in front of it counts."""
        if self._comma:
            self.write("".join(self._comma))
            self._comma = []

    def drop_comma(self) -> None:
        """The object or list ends instead."""
        self._comma = []

    def blank(self, text: str) -> None:
        """White space, which is kept where the model writes JSON itself."""
        if self._tidy:
            return
        if self._comma:
            self._comma.append(text)
        else:
            self.write(text)

    def hold_string(self) -> None:
        """The next thing written is a string."""
        self._string = []

    def held_string(self) -> str | None:
        """The string that waited, as JSON, which is to be written now; None where none did."""
        text, self._string = self._string, None
        return None if text is None else "".join(text)

    def hold_brace(self) -> None:
        """The next thing written is a brace of Python's."""
        self._brace = []

    @property
    def holds_brace(self) -> bool:
        return self._brace is not None

    def brace_is_object(self) -> None:
        """A key follows the brace, or nothing: it opens an object."""
        if self._brace is not None:
            self.parts += self._brace
            self._brace = None

    def brace_is_list(self, element: str | None) -> None:
        """A value follows the brace: it opens a set, which becomes a list. element: the first one as JSON, where it was
        written as a key; else what was written of it stays."""
        held = "".join((self._brace or [])[1:])
        self.parts += ("[", held if element is None else element)
        self._brace = None
