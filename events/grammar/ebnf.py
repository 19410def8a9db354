"""Convert EBNF of llama.cpp (GBNF) and xgrammar to Lark in llguidance's dialect.

llguidance limits the cost of a grammar during compilation and in every step; no other reader of EBNF does.

A grammar without recursion is one regular expression and becomes one terminal, unless it is very long with its rules
expanded. In all others each character is a terminal of its own: a lexer takes the longest match of whole words, so
`"a" "ac" | "aa" "b"` would lose `aac`.
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
"""The most characters and classes of a terminal, with its rules and repetitions expanded."""
ROOT = "root"
# No two adjacent parts of this pattern may match the same white space, which would take quadratic time.
_TOKENS = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<rule>::=)
    |(?P<repeat>[*+?]|\{\s*(?:\d{1,9}\s*)?(?:,\s*(?:\d{1,9}\s*)?)?\})|(?P<mark>[|().])|(?P<name>[A-Za-z_][\w.-]*)""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)


class EBNFError(ValueError):
    """The text is not supported EBNF; the message says where and why."""


class Item(msgspec.Struct, frozen=True):
    """A part of a rule, by kind. text: its characters. set: a character class, as a regular expression. name: a rule.
    sequence, choice: `items`. repeat: the only one of `items`, `least` to `most` times; -1 means no bound."""

    kind: Literal["text", "set", "name", "sequence", "choice", "repeat"]
    value: str = ""
    items: tuple[Item, ...] = ()
    least: int = 0
    most: int = -1


def lark_of(text: str, *, exact: bool = False) -> str:
    """Convert a grammar, which begins at `root`, to Lark. Raises EBNFError. exact: write it character by character even
    if it is regular, for text that is followed by something."""
    rules = parse(text)
    # All rules that the root needs, itself first.
    needed_rules, waiting = {ROOT: None}, [ROOT]
    while waiting:
        for name in _rule_names(rules[waiting.pop()]):
            if name not in rules:
                raise EBNFError(f"The grammar has no rule {name!r}.")
            if name not in needed_rules:
                needed_rules[name] = None
                waiting.append(name)
    reached = list(needed_rules)
    # Remove rules that refer to no remaining rule until nothing changes. The remaining rules are recursive.
    remaining = {name: set(_rule_names(rules[name])) for name in reached}
    while ready := {name for name, needed in remaining.items() if not needed}:
        remaining = {name: needed - ready for name, needed in remaining.items() if name not in ready}
    regular = not exact and not remaining and _size(rules[ROOT], rules, {}) <= MAX_UNROLLED
    letter = "G" if regular else "g"
    names = {name: f"{letter}{number}" for number, name in enumerate(reached)}
    lines = [f"{names[name]}: {_to_lark(rules[name], names, whole=regular)}" for name in reached]
    return "\n".join([f"start: {names[ROOT]}", *lines]) + "\n"


def parse(text: str) -> dict[str, Item]:
    """Parse rules by name. Raises EBNFError."""
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
        tokens, place = [], 0
        while place < len(self._text):
            match = _TOKENS.match(self._text, place)
            if match is None:
                raise self._error(place, f"unexpected {self._text[place]!r}")
            if match.lastgroup != "space":
                tokens.append((str(match.lastgroup), match[0], place))
            place = match.end()
        self._tokens = [*tokens, ("end", "", len(text))]
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
        while (
            (kind := self._peek()) in ("text", "set")
            or self._is("(")
            or self._is(".")
            or (kind == "name" and self._peek(1) != "rule")  # a name before "::=" begins the next rule
        ):
            item = self._item(depth)
            while self._peek() == "repeat":
                mark = self._next()[1]
                if mark in "*+?":
                    item = Item("repeat", items=(item,), least=int(mark == "+"), most=1 if mark == "?" else -1)
                    continue
                low, comma, high = (part.strip() for part in mark[1:-1].partition(","))
                least = int(low or 0)
                most = int(high) if high else -1 if comma else least
                if not low and not high:
                    raise EBNFError(f"{mark} says no number of repetitions.")
                if most != -1 and most < least:
                    raise EBNFError(f"{mark} repeats at most fewer times than at least.")
                item = Item("repeat", items=(item,), least=least, most=most)
            items.append(item)
        return items[0] if len(items) == 1 else Item("sequence", items=tuple(items))

    def _item(self, depth: int) -> Item:
        kind, text, place = self._next()
        if kind == "text":
            return Item("text", _unescaped(text[1:-1]))
        if kind == "set":
            # Convert a character class to a regular expression.
            inside = text[1:-1]
            negated = inside.startswith("^")
            pieces = re.findall(
                r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)|.", inside[negated:], re.DOTALL
            )
            if not pieces:
                raise self._error(place, "an empty character class")
            ranges, at = [], 0
            while at < len(pieces):
                low = high = _character(pieces[at])
                if pieces[at + 1 : at + 2] == ["-"] and at + 2 < len(pieces):
                    high = _character(pieces[at + 2])
                    at += 2
                if low > high:
                    raise self._error(place, f"{low!r} comes behind {high!r}")
                ranges.append(_hex(low) if low == high else f"{_hex(low)}-{_hex(high)}")
                at += 1
            return Item("set", f"[{'^' if negated else ''}{''.join(ranges)}]")
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


def _rule_names(item: Item) -> list[str]:
    """Return the rules that an item refers to."""
    return [item.value] if item.kind == "name" else [name for inner in item.items for name in _rule_names(inner)]


def _size(item: Item, rules: Mapping[str, Item], sizes: dict[str, int]) -> int:
    """Return the number of characters and classes of an item without recursion, with rules and repetitions expanded."""
    if item.kind == "name":
        if item.value not in sizes:
            sizes[item.value] = _size(rules[item.value], rules, sizes)
        return sizes[item.value]
    size = max(len(item.value), 1) if item.kind == "text" else sum(_size(i, rules, sizes) for i in item.items) or 1
    return size * max(item.most, item.least, 1) if item.kind == "repeat" else size


def _to_lark(item: Item, names: Mapping[str, str], *, whole: bool) -> str:
    """Write an item as Lark. whole: write each text as one terminal instead of one per character."""

    def write(inner: Item) -> str:
        return _to_lark(inner, names, whole=whole)

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
            bounds = f"{{{item.least},{'' if item.most < 0 else item.most}}}"
            mark = {(0, -1): "*", (1, -1): "+", (0, 1): "?"}.get((item.least, item.most), bounds)
            return f"({write(item.items[0])}){mark}"
