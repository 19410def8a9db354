"""Rewrite clients' Lark grammars for the position of their text: inside a JSON string or before a marker.

In a JSON string, quotes, backslashes and control characters are escaped. A regular expression is parsed by Python's
parser and written again with the escapes. Unsupported features are refused by name.

The grammar library's lexer has no lookahead: after a backslash it could not distinguish a quote that belongs to one
terminal from the line break that is the next. So a grammar is written character by character with its terminals as
rules, unless it uses `%ignore`, which needs a lexer.
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
"""Characters that must be escaped in a JSON string (RFC 8259, section 7)."""
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
    """A grammar cannot be rewritten; the message says why."""


class Style(Protocol):
    """Writes the parts of a grammar."""

    def name(self, name: str) -> str: ...

    def text(self, plain: str) -> str: ...

    def regex(self, pattern: str, flags: str) -> str: ...


def in_json(grammar: str) -> str:
    """Rewrite a grammar for text inside a JSON string. Raises LarkError."""
    return rewritten(grammar, _Lexed() if "%ignore" in grammar else _Spelled())


def in_front_of(grammar: str, end: str) -> str:
    """Rewrite a grammar so that no regular expression matches the first character of `end`, since the lexer takes the
    longest match without backtracking and could not end otherwise. Raises LarkError."""
    style = _Bounded()
    body = rewritten(grammar, style)
    guard = f" & ~({ANY} {literal(end[0])} {ANY})" if end else ""
    return body + "".join(f"\n{name}: {regex}{guard}" for regex, name in style.lifted.items())


def rewritten(grammar: str, style: Style) -> str:
    output: list[str] = []
    tokens = list(_TOKEN.finditer(grammar))
    at = 0
    while at < len(tokens):
        kind, token = tokens[at].lastgroup, tokens[at].group()
        at += 1
        if kind == "text" and at + 1 < len(tokens) and tokens[at].group() == "..":
            ends = [_character(_string(token)), _character(_string(tokens[at + 1].group()))]
            output.append(style.regex(f"[{'-'.join(map(re.escape, ends))}]", ""))
            at += 2
        elif kind == "text":
            plain = _string(token)
            output.append(style.regex(re.escape(plain), "i") if token.endswith("i") else style.text(plain))
        elif kind == "regex":
            pattern, _, flags = token[1:].rpartition("/")
            output.append(style.regex(pattern.replace("\\/", "/"), flags))
        elif kind == "name":
            output.append(style.name(token.partition(".")[0]))  # priorities are the lexer's
        elif token == "%import":
            end = (grammar + "\n").index("\n", tokens[at - 1].end())
            # `%import common.INT`, `%import common (INT, WS)`, `%import common.INT -> N`, as terminals.
            line = grammar[tokens[at - 1].end() : end]
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
            output.append(imported)
            at = next((index for index in range(at, len(tokens)) if tokens[index].start() >= end), len(tokens))
        elif (kind == "command" and token != "%ignore") or token == "<":
            raise LarkError(f"{token} is not taken in a custom tool's grammar.")
        else:
            output.append("\n" if kind == "space" and "\n" in token else " " if kind == "space" else token)
    return "".join(output)


def _string(token: str) -> str:
    try:
        return str(json.loads(token.removesuffix("i")))
    except ValueError:
        raise LarkError(f"{token[:40]} is not a string of JSON's form.") from None


def _character(text: str) -> str:
    if len(text) != 1:
        raise LarkError("A range goes from one character to another.")
    return text


class _Bounded:
    """Writes a grammar unchanged, with its regular expressions as terminals. lifted: regular expression → terminal."""

    def __init__(self) -> None:
        self.lifted: dict[str, str] = {}

    def name(self, name: str) -> str:
        return name

    def text(self, plain: str) -> str:
        return literal(plain)

    def regex(self, pattern: str, flags: str) -> str:
        escaped = pattern.replace("/", "\\/")
        return self.lifted.setdefault(f"/{escaped}/{flags}", f"BOUNDED_{len(self.lifted)}")


class _Quoted:
    """Writes a grammar for the inside of a JSON string: parses patterns, whose parts a subclass writes."""

    def regex(self, pattern: str, flags: str) -> str:
        python = "".join(flag for flag in flags if flag in "imsx")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = parser.parse(f"(?{python}){pattern}" if python else pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise LarkError(f"/{pattern[:40]}/ cannot be read: {error}") from None
        return self.whole(self.sequence(parsed, parsed.state.flags))

    def whole(self, pattern: str) -> str:
        raise NotImplementedError

    def joined(self, parts: list[str]) -> str:
        raise NotImplementedError

    def spelled(self, characters: str) -> str:
        """Match exactly these characters."""
        raise NotImplementedError

    def one_of(self, pattern: str) -> str:
        """Match one of the characters or escapes of a pattern."""
        raise NotImplementedError

    def group(self, pattern: str) -> str:
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
                return self.one_of(_set(_class_pattern(argument), flags))
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
    """Writes terminals as terminals."""

    def name(self, name: str) -> str:
        return name

    def text(self, plain: str) -> str:
        return literal(json.dumps(plain, ensure_ascii=False)[1:-1])

    def whole(self, pattern: str) -> str:
        return f"/{pattern}/"

    def joined(self, parts: list[str]) -> str:
        return "".join(parts)

    def spelled(self, characters: str) -> str:
        return _as_pattern(characters)

    def one_of(self, pattern: str) -> str:
        return pattern

    def group(self, pattern: str) -> str:
        return f"(?:{pattern.replace(' | ', '|')})"


class _Spelled(_Quoted):
    """Writes everything as rules, with each character or its escape as a terminal, so that no terminal is the beginning
    of another."""

    def name(self, name: str) -> str:
        """Return a rule's name, which is in lower case."""
        plain = name.lstrip("!?")
        return plain if plain.islower() else f"t_{plain.lower()}"

    def text(self, plain: str) -> str:
        return self.group(self.joined([self.spelled(json.dumps(each, ensure_ascii=False)[1:-1]) for each in plain]))

    def whole(self, pattern: str) -> str:
        return f"({pattern})"

    def joined(self, parts: list[str]) -> str:
        return " ".join(parts) or '""'

    def spelled(self, characters: str) -> str:
        return literal(characters)

    def one_of(self, pattern: str) -> str:
        return f"/{pattern}/"

    def group(self, pattern: str) -> str:
        return f"({pattern})"


def _hex(code: int) -> str:
    return f"\\x{{{code:x}}}"


def _as_pattern(text: str) -> str:
    return "".join(_hex(ord(each)) for each in text)


def _class_pattern(items: Any) -> str:
    """Write a character class in hexadecimal, for the grammar library; `_set` determines its members with Python."""
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


def _set(character_class: str, flags: int) -> str:
    """Match one of several characters: those that need no escape, and the escapes of the others."""
    python = re.sub(r"\\x\{([0-9a-f]+)\}", lambda match: f"\\U{int(match[1], 16):08x}", character_class)
    test = re.compile(python, flags & re.IGNORECASE)
    escapes = [_as_pattern(json.dumps(each)[1:-1]) for each in ESCAPED if test.fullmatch(each)]
    plain = f"[{character_class}&&{PLAIN}]"
    plain = f"(?i:{plain})" if flags & re.IGNORECASE else plain
    choices = [plain, *escapes] if any(map(test.fullmatch, _SAMPLE)) else escapes
    return f"(?:{'|'.join(choices)})"


_SAMPLE = [each for each in string.printable if each not in ESCAPED] + ["\x7f", "é", "中", "😀", "\u2028"]
"""Characters of every kind that needs no escape."""
