"""Lark grammars of clients, rewritten for where their text stands: inside a JSON string, or in front of a marker.

In a JSON string quotes, backslashes and control characters are written as escapes. A regular expression is read by
Python's own reader and written again, with each character that needs an escape as that escape. What the rewriting
cannot do is refused by name.

The grammar library's lexer looks no character ahead: behind a backslash it could not tell a quote that belongs to one
terminal from the line break that is the next. So a grammar is written character by character, its terminals as rules,
unless it ignores something (`%ignore`), which only a lexer can.
"""

from __future__ import annotations

import json
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import string
import warnings
from typing import Any, Protocol

from events.grammar.lark import ANY, literal

ESCAPED = '"\\' + "".join(map(chr, range(0x20)))
"""What stands in no JSON string as it is (RFC 8259, section 7)."""
PLAIN = '[^\\x00-\\x1f"\\\\]'
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|\#[^\n]*)|(?P<text>"(?:[^"\\\n]|\\.)*"i?)|(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/[a-z]*)
    |(?P<command>%[a-z_]+)|(?P<name>[!?]*[A-Za-z_]\w*(?:\.\d+)?)|(?P<other>\.\.|->|<|.)""",
    re.VERBOSE,
)
COMMON = {
    "DIGIT": r"[0-9]", "HEXDIGIT": r"[a-fA-F0-9]", "INT": r"[0-9]+", "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "LCASE_LETTER": r"[a-z]", "UCASE_LETTER": r"[A-Z]", "LETTER": r"[A-Za-z]", "WORD": r"[A-Za-z]+",
    "CNAME": r"[_A-Za-z][_A-Za-z0-9]*", "WS_INLINE": r"[ \t]+", "WS": r"[ \t\f\r\n]+", "CR": r"\r", "LF": r"\n",
    "NEWLINE": r"(\r?\n)+", "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
}  # fmt: skip
"""Lark's own terminals (lark/grammars/common.lark)."""


class LarkError(ValueError):
    """A grammar that cannot be rewritten; the message says why."""


class Style(Protocol):
    """How the pieces of a grammar are written again."""

    def name(self, said: str) -> str: ...

    def text(self, plain: str) -> str: ...

    def regex(self, pattern: str, flags: str) -> str: ...


def in_json(grammar: str) -> str:
    """A grammar of what the text is inside of a JSON string. Raises LarkError."""
    return rewritten(grammar, _Lexed() if "%ignore" in grammar else _Spelled())


def in_front_of(grammar: str, end: str) -> str:
    """A grammar of the same text, in which no regular expression matches what `end` begins with: the lexer takes the
    longest match and does not go back, so one that did could not be ended. Raises LarkError."""
    style = _Bounded()
    body = rewritten(grammar, style)
    guard = f" & ~({ANY} {literal(end[0])} {ANY})" if end else ""
    return body + "".join(f"\n{name}: {regex}{guard}" for regex, name in style.lifted.items())


def rewritten(grammar: str, style: Style) -> str:
    written: list[str] = []
    found = list(_TOKEN.finditer(grammar))
    at = 0
    while at < len(found):
        kind, said = found[at].lastgroup, found[at].group()
        at += 1
        if kind == "text" and at + 1 < len(found) and found[at].group() == "..":
            ends = [_character(_string(said)), _character(_string(found[at + 1].group()))]
            written.append(style.regex(f"[{'-'.join(map(re.escape, ends))}]", ""))
            at += 2
        elif kind == "text":
            plain = _string(said)
            written.append(style.regex(re.escape(plain), "i") if said.endswith("i") else style.text(plain))
        elif kind == "regex":
            pattern, _, flags = said[1:].rpartition("/")
            written.append(style.regex(pattern.replace("\\/", "/"), flags))
        elif kind == "name":
            written.append(style.name(said.partition(".")[0]))  # priorities are the lexer's
        elif said == "%import":
            end = (grammar + "\n").index("\n", found[at - 1].end())
            # `%import common.INT`, `%import common (INT, WS)`, `%import common.INT -> N`, as terminals.
            line = grammar[found[at - 1].end() : end]
            match = re.fullmatch(r"\s*common(?:\.(\w+)(?:\s*->\s*(\w+))?|\s*\(([\w\s,]+)\))\s*(?://.*|#.*)?", line)
            if match is None:
                raise LarkError("%import is taken of Lark's common terminals alone.")
            names = [match[1]] if match[1] else [name.strip() for name in match[3].split(",")]
            lines = []
            for name in names:
                if name not in COMMON:
                    raise LarkError(
                        f"%import common.{name[:40]} is not known here; write the terminal into the grammar."
                    )
                lines.append(f"{style.name(match[2] or name)}: {style.regex(COMMON[name], '')}")
            imported = "\n".join(lines)
            written.append(imported)
            at = next((index for index in range(at, len(found)) if found[index].start() >= end), len(found))
        elif (kind == "command" and said != "%ignore") or said == "<":
            raise LarkError(f"{said} is not taken in a custom tool's grammar.")
        else:
            written.append("\n" if kind == "space" and "\n" in said else " " if kind == "space" else said)
    return "".join(written)


def _string(said: str) -> str:
    try:
        return str(json.loads(said.removesuffix("i")))
    except ValueError:
        raise LarkError(f"{said[:40]} is not a string of JSON's form.") from None


def _character(text: str) -> str:
    if len(text) != 1:
        raise LarkError("A range goes from one character to another.")
    return text


class _Bounded:
    """As it is. lifted: each regular expression → the terminal that it becomes."""

    def __init__(self) -> None:
        self.lifted: dict[str, str] = {}

    def name(self, said: str) -> str:
        return said

    def text(self, plain: str) -> str:
        return literal(plain)

    def regex(self, pattern: str, flags: str) -> str:
        written = pattern.replace("/", "\\/")
        return self.lifted.setdefault(f"/{written}/{flags}", f"BOUNDED_{len(self.lifted)}")


class _Quoted:
    """For the inside of a JSON string: patterns are read, and their parts written as a subclass does."""

    def regex(self, pattern: str, flags: str) -> str:
        python = "".join(flag for flag in flags if flag in "imsx")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = parser.parse(f"(?{python}){pattern}" if python else pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise LarkError(f"/{pattern[:40]}/ cannot be read: {error}") from None
        return self.whole(self.sequence(parsed, parsed.state.flags))

    def whole(self, written: str) -> str:
        raise NotImplementedError

    def joined(self, parts: list[str]) -> str:
        raise NotImplementedError

    def spelled(self, characters: str) -> str:
        """These very characters."""
        raise NotImplementedError

    def one_of(self, pattern: str) -> str:
        """One of the characters, or escapes, that a pattern matches."""
        raise NotImplementedError

    def group(self, written: str) -> str:
        raise NotImplementedError

    def sequence(self, parts: Any, flags: int) -> str:
        return self.joined([self._part(operation, argument, flags) for operation, argument in parts])

    def _part(self, operation: Any, argument: Any, flags: int) -> str:
        match operation:
            case codes.LITERAL if flags & re.IGNORECASE and chr(argument).swapcase() != chr(argument):
                return self.one_of(_set(f"[{_hex(argument)}]", flags))
            case codes.LITERAL:
                return self.spelled(json.dumps(chr(argument), ensure_ascii=False)[1:-1])
            case codes.NOT_LITERAL:
                return self.one_of(_set(f"[^{_hex(argument)}]", flags))
            case codes.ANY:
                return self.one_of(_set(r"[\x{0}-\x{10ffff}]" if flags & re.DOTALL else r"[^\x{a}]", flags))
            case codes.IN:
                return self.one_of(_set(_written_class(argument), flags))
            case codes.BRANCH:
                return self.group(" | ".join(self.sequence(branch, flags) for branch in argument[1]))
            case codes.SUBPATTERN:
                _, added, removed, inner = argument
                return self.group(self.sequence(inner, (flags | added) & ~removed))
            case codes.MAX_REPEAT | codes.MIN_REPEAT:
                least, most, inner = argument
                bound = "" if most is codes.MAXREPEAT else int(most)
                return f"{self.group(self.sequence(inner, flags))}{{{int(least)},{bound}}}"
            case codes.AT if argument in _EDGES:
                return self.spelled("")
        raise LarkError(f"{str(operation).lower()} is not taken in a pattern of a custom tool's grammar.")


_EDGES = (codes.AT_BEGINNING, codes.AT_END, codes.AT_BEGINNING_STRING, codes.AT_END_STRING)


class _Lexed(_Quoted):
    """Terminals stay terminals."""

    def name(self, said: str) -> str:
        return said

    def text(self, plain: str) -> str:
        return literal(json.dumps(plain, ensure_ascii=False)[1:-1])

    def whole(self, written: str) -> str:
        return f"/{written}/"

    def joined(self, parts: list[str]) -> str:
        return "".join(parts)

    def spelled(self, characters: str) -> str:
        return _as_pattern(characters)

    def one_of(self, pattern: str) -> str:
        return pattern

    def group(self, written: str) -> str:
        return f"(?:{written.replace(' | ', '|')})"


class _Spelled(_Quoted):
    """Everything is a rule, and each character, or its escape, a terminal: none begins as another does."""

    def name(self, said: str) -> str:
        """Rules have small letters."""
        plain = said.lstrip("!?")
        return plain if plain.islower() else f"t_{plain.lower()}"

    def text(self, plain: str) -> str:
        return self.group(self.joined([self.spelled(json.dumps(each, ensure_ascii=False)[1:-1]) for each in plain]))

    def whole(self, written: str) -> str:
        return f"({written})"

    def joined(self, parts: list[str]) -> str:
        return " ".join(parts) or '""'

    def spelled(self, characters: str) -> str:
        return literal(characters)

    def one_of(self, pattern: str) -> str:
        return f"/{pattern}/"

    def group(self, written: str) -> str:
        return f"({written})"


def _hex(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _as_pattern(text: str) -> str:
    return "".join(_hex(ord(each)) for each in text)


def _written_class(items: Any) -> str:
    """A character class in hexadecimal, for the grammar library; `_set` asks Python for its members."""
    inner = ""
    for operation, argument in items:
        match operation:
            case codes.NEGATE:
                inner += "^"
            case codes.LITERAL:
                inner += _hex(argument)
            case codes.RANGE:
                inner += f"{_hex(argument[0])}-{_hex(argument[1])}"
            case codes.CATEGORY if argument in _CATEGORIES:
                inner += _CATEGORIES[argument]
            case _:
                raise LarkError(f"{str(operation).lower()} is not taken in a class of a custom tool's grammar.")
    return f"[{inner}]"


_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\x{30}-\x{39}",
    codes.CATEGORY_NOT_DIGIT: r"\x{0}-\x{2f}\x{3a}-\x{10ffff}",
    codes.CATEGORY_SPACE: r"\x{9}-\x{d}\x{20}",
    codes.CATEGORY_NOT_SPACE: r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{10ffff}",
    codes.CATEGORY_WORD: r"\x{30}-\x{39}\x{41}-\x{5a}\x{61}-\x{7a}\x{5f}",
    codes.CATEGORY_NOT_WORD: r"\x{0}-\x{2f}\x{3a}-\x{40}\x{5b}-\x{5e}\x{60}\x{7b}-\x{10ffff}",
}
"""In ASCII, as in the grammar library."""


def _set(written: str, flags: int) -> str:
    """One of several characters: those that need no escape, and the escapes of the others."""
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", written)
    test = re.compile(python, flags & re.IGNORECASE)
    escapes = [_as_pattern(json.dumps(each)[1:-1]) for each in ESCAPED if test.fullmatch(each)]
    plain = f"[{written}&&{PLAIN}]"
    plain = f"(?i:{plain})" if flags & re.IGNORECASE else plain
    choices = [plain, *escapes] if any(map(test.fullmatch, _SAMPLE)) else escapes
    return f"(?:{'|'.join(choices)})"


_SAMPLE = [each for each in string.printable if each not in ESCAPED] + ["\x7f", "é", "中", "😀", "\u2028"]
"""Of every kind of character that needs no escape."""
