"""EBNF as llama.cpp (GBNF) and xgrammar write it, as Lark in llguidance's dialect.

llguidance bounds what a grammar may cost, while it is compiled and in every step; nothing else that reads EBNF does.

A grammar without recursion is one regular expression and, unless it is very long when its rules are written out,
becomes one terminal. In any other each character is a
terminal of its own: a lexer takes the longest match of whole words, so `"a" "ac" | "aa" "b"` would lose `aac`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

MAX_CHARACTERS = 64 * 1024
MAX_DEPTH = 100
MAX_UNROLLED = 32 * 1024
"""Characters and classes of a terminal, with its rules and repetitions written out."""
ROOT = "root"
# No two neighbours of this pattern may match the same white space: a client's grammar would take its time's square.
_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<rule>::=)
    |(?P<repeat>[*+?]|\{\s*(?:\d{1,9}\s*)?(?:,\s*(?:\d{1,9}\s*)?)?\})|(?P<mark>[|().])|(?P<name>[A-Za-z_][\w.-]*)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)


class EBNFError(ValueError):
    """The text is no EBNF that is known here; the message says where and why."""


class Item(msgspec.Struct, frozen=True):
    """text: its characters. set: a character class, as a regular expression. name: a rule. sequence, choice: `items`.
    repeat: one of `items`, `least` to `most` times; -1 is without a bound."""

    kind: Literal["text", "set", "name", "sequence", "choice", "repeat"]
    value: str = ""
    items: tuple[Item, ...] = ()
    least: int = 0
    most: int = -1


def lark_of(text: str, *, exact: bool = False) -> str:
    """A Lark grammar of the same language, which begins at `root`. Raises EBNFError. exact: character by character even
    if it is regular, for what is followed by something."""
    rules = parse(text)
    # Every rule that the root needs, itself first.
    found, waiting = {ROOT: None}, [ROOT]
    while waiting:
        for name in _named(rules[waiting.pop()]):
            if name not in rules:
                raise EBNFError(f"The grammar has no rule {name!r}.")
            if name not in found:
                found[name] = None
                waiting.append(name)
    reached = list(found)
    regular = not exact and not _recursive(rules, reached) and _size(rules[ROOT], rules, {}) <= MAX_UNROLLED
    letter = "G" if regular else "g"
    names = {name: f"{letter}{number}" for number, name in enumerate(reached)}
    lines = [f"{names[name]}: {_written(rules[name], names, whole=regular)}" for name in reached]
    return "\n".join([f"start: {names[ROOT]}", *lines]) + "\n"


def parse(text: str) -> dict[str, Item]:
    """The rules by their names. Raises EBNFError."""
    if len(text) > MAX_CHARACTERS:
        raise EBNFError(f"The grammar has {len(text)} characters; at most {MAX_CHARACTERS} are allowed.")
    parser = _Parser(text)
    rules = parser.rules()
    if ROOT not in rules:
        raise EBNFError(f"The grammar has no rule {ROOT!r} to begin with.")
    return rules


class _Parser:
    """Recursive descent over the tokens of a grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        found, place = [], 0
        while place < len(self._text):
            match = _TOKENS.match(self._text, place)
            if match is None:
                raise self._error(place, f"unexpected {self._text[place]!r}")
            if match.lastgroup != "space":
                found.append((str(match.lastgroup), match[0], place))
            place = match.end()
        scan = found
        self._tokens = [*scan, ("end", "", len(text))]
        self._at = 0

    def _error(self, place: int, reason: str) -> EBNFError:
        return EBNFError(f"Line {self._text.count(chr(10), 0, place) + 1} of the grammar: {reason}.")

    def _peek(self, offset: int = 0) -> str:
        return self._tokens[min(self._at + offset, len(self._tokens) - 1)][0]

    def _is(self, mark: str) -> bool:
        return self._tokens[self._at][:2] == ("mark", mark)

    def _next(self) -> tuple[str, str, int]:
        self._at += 1
        return self._tokens[self._at - 1]

    def rules(self) -> dict[str, Item]:
        rules: dict[str, Item] = {}
        while self._peek() != "end":
            kind, name, place = self._next()
            if kind != "name" or self._next()[0] != "rule":
                raise self._error(place, f"a rule was expected, like {ROOT} ::= ..., and not {name!r}")
            if name in rules:
                raise self._error(place, f"the rule {name!r} is there twice")
            rules[name] = self._choice(0)
            if self._is(")"):
                raise self._error(self._tokens[self._at][2], "')' without '('")
        return rules

    def _choice(self, depth: int) -> Item:
        if depth > MAX_DEPTH:
            raise self._error(self._tokens[self._at][2], f"nested more than {MAX_DEPTH} deep")
        options = [self._sequence(depth)]
        while self._is("|"):
            self._next()
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Item("choice", items=tuple(options))

    def _sequence(self, depth: int) -> Item:
        items: list[Item] = []
        while self._begins():
            item = self._item(depth)
            while self._peek() == "repeat":
                item = _repeated(item, self._next()[1])
            items.append(item)
        return items[0] if len(items) == 1 else Item("sequence", items=tuple(items))

    def _begins(self) -> bool:
        """Whether another item follows, and not the next rule."""
        kind = self._peek()
        return kind in ("text", "set") or self._is("(") or self._is(".") or (kind == "name" and self._peek(1) != "rule")

    def _item(self, depth: int) -> Item:
        kind, text, place = self._next()
        if kind == "text":
            return Item("text", _unescaped(text[1:-1]))
        if kind == "set":
            return Item("set", self._set(text[1:-1], place))
        if kind == "name":
            if self._is("(") and self._tokens[self._at][2] == place + len(text):
                raise self._error(place, f"{text}(...) is not known here")
            return Item("name", text)
        if text == ".":
            return Item("set", r"[\x{0}-\x{10FFFF}]")
        inner = self._choice(depth + 1)
        if not self._is(")"):
            raise self._error(place, "'(' without ')'")
        self._next()
        return inner

    def _set(self, text: str, place: int) -> str:
        """A character class as a regular expression."""
        negated = text.startswith("^")
        pieces = re.findall(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|.", text[negated:], re.DOTALL)
        if not pieces:
            raise self._error(place, "an empty character class")
        written, at = [], 0
        while at < len(pieces):
            low = high = _character(pieces[at])
            if pieces[at + 1 : at + 2] == ["-"] and at + 2 < len(pieces):
                high = _character(pieces[at + 2])
                at += 2
            if low > high:
                raise self._error(place, f"{low!r} comes behind {high!r}")
            written.append(_hex(low) if low == high else f"{_hex(low)}-{_hex(high)}")
            at += 1
        return f"[{'^' if negated else ''}{''.join(written)}]"


def _hex(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"


def _character(piece: str) -> str:
    return _unescaped(piece) if len(piece) > 1 else piece


def _unescaped(text: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        if len(code) > 1:
            number = int(code[1:], 16)
            if number > 0x10FFFF or 0xD800 <= number < 0xE000:
                raise EBNFError(f"{match[0]} is no character.")
            return chr(number)
        return _ESCAPES.get(code, code)

    return _ESCAPE.sub(replaced, text)


def _repeated(item: Item, mark: str) -> Item:
    if mark in "*+?":
        return Item("repeat", items=(item,), least=int(mark == "+"), most=1 if mark == "?" else -1)
    low, comma, high = (part.strip() for part in mark[1:-1].partition(","))
    least = int(low or 0)
    most = int(high) if high else -1 if comma else least
    if not low and not high:
        raise EBNFError(f"{mark} says no number of repetitions.")
    if most != -1 and most < least:
        raise EBNFError(f"{mark} repeats at most fewer times than at least.")
    return Item("repeat", items=(item,), least=least, most=most)


def _named(item: Item) -> list[str]:
    """The rules that an item refers to."""
    return [item.value] if item.kind == "name" else [name for inner in item.items for name in _named(inner)]


def _recursive(rules: Mapping[str, Item], reached: list[str]) -> bool:
    """Whether some rule refers to itself, directly or through others."""
    # Remove the rules that refer to no remaining rule, until nothing changes: what remains refers to itself.
    left = {name: set(_named(rules[name])) for name in reached}
    while ready := {name for name, needed in left.items() if not needed}:
        left = {name: needed - ready for name, needed in left.items() if name not in ready}
    return bool(left)


def _size(item: Item, rules: Mapping[str, Item], known: dict[str, int]) -> int:
    """Characters and classes of an item of a grammar without recursion, with rules and repetitions written out."""
    if item.kind == "name":
        if item.value not in known:
            known[item.value] = _size(rules[item.value], rules, known)
        return known[item.value]
    size = max(len(item.value), 1) if item.kind == "text" else sum(_size(i, rules, known) for i in item.items) or 1
    return size * max(item.most, item.least, 1) if item.kind == "repeat" else size


def _written(item: Item, names: Mapping[str, str], *, whole: bool) -> str:
    """An item as Lark. whole: texts are one terminal each, not one for each character."""

    def write(inner: Item) -> str:
        return _written(inner, names, whole=whole)

    match item.kind:
        case "text":
            parts = [item.value] if whole or not item.value else list(item.value)
            return f"({' '.join(json.dumps(part) for part in parts)})"
        case "set":
            return f"/{item.value}/"
        case "name":
            return names[item.value]
        case "sequence":
            return f"({' '.join(map(write, item.items))})" if item.items else '("")'
        case "choice":
            return f"({' | '.join(map(write, item.items))})"
        case "repeat":
            return f"({write(item.items[0])}){_bounds(item.least, item.most)}"


def _bounds(least: int, most: int) -> str:
    marks = {(0, -1): "*", (1, -1): "+", (0, 1): "?"}
    return marks.get((least, most)) or f"{{{least},{'' if most < 0 else most}}}"
