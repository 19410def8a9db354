"""Nodes of a structural tag (xgrammar's JSON form), built over a model's alphabet.

A marker that the vocabulary holds as one token is matched as that token, never as its spelling: the parser reads it
the same way, so text that merely spells a marker can neither open nor close anything. Markers without a token are
matched as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Node = dict[str, Any]
EMPTY: Node = {"type": "const_string", "value": ""}
MAX_WHITESPACE = 2
"""Whitespace characters in a row inside JSON; without a bound small models write it until max_tokens."""


def sequence(*nodes: Node) -> Node:
    """Nodes one after the other; nested sequences are flattened and neighbouring constants joined."""
    flat: list[Node] = []
    for node in nodes:
        for part in node["elements"] if node["type"] == "sequence" else [node]:
            if part == EMPTY:
                continue
            if flat and part["type"] == flat[-1]["type"] == "const_string":
                flat[-1] = constant(flat[-1]["value"] + part["value"])
            else:
                flat.append(part)
    if not flat:
        return EMPTY
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def either(*nodes: Node) -> Node:
    unique = [node for i, node in enumerate(nodes) if node not in nodes[:i]]
    return unique[0] if len(unique) == 1 else {"type": "or", "elements": unique}


def optional(node: Node) -> Node:
    return EMPTY if node == EMPTY else {"type": "optional", "content": node}


def star(node: Node) -> Node:
    return {"type": "star", "content": node}


def constant(text: str) -> Node:
    return {"type": "const_string", "value": text}


def pattern(regex: str) -> Node:
    return {"type": "regex", "pattern": regex}


class Alphabet:
    """The markers of one model. `ids`: marker → token id, for markers that are single tokens.
    `text_markers`: markers of the format that are not, and that free text must not spell by accident."""

    def __init__(self, ids: Mapping[str, int], text_markers: Iterable[str] = ()) -> None:
        self.ids = dict(ids)
        self.text_markers = tuple(text for text in dict.fromkeys(text_markers) if text and text not in self.ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def literal(self, text: str) -> Node:
        """`text` exactly, with the markers inside it as tokens."""
        parts = self._splitter.split(text) if self._splitter else [text]
        return sequence(*(self._part(part) for part in parts))

    def _part(self, text: str) -> Node:
        return self.token(text) if text in self.ids else constant(text)

    def token(self, marker: str) -> Node:
        return {"type": "token", "token": self.ids[marker]}

    def until(self, end: str) -> Node:
        """Any text, and then `end` (as its token where it is one, whatever whitespace the template puts around it)."""
        core = end.strip() or end
        if core in self.ids:
            return sequence({"type": "any_text"}, self.token(core))
        return {"type": "grammar", "grammar": text_until(end)}

    def free(self) -> Node:
        """Any text to the end of the output, without any marker of the format. Control tokens are no text: the
        backend's vocabulary spells them so that only a token node can match them."""
        node: Node = {"type": "any_text"}
        return {**node, "excludes": list(self.text_markers)} if self.text_markers else node

    def others(self, *markers: str) -> list[int]:
        """Ids of every marker but these: what token-level free text has to exclude."""
        return sorted({number for marker, number in self.ids.items() if marker not in markers})

    def json(self, schema: Any, **options: Any) -> Node:
        """JSON that fits `schema`, with bounded whitespace."""
        return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE, **options}


def text_until(end: str) -> str:
    """An EBNF grammar of any text up to and with the first `end`.

    One rule for each matched prefix of `end` (the automaton of Knuth, Morris and Pratt), right-recursive and without
    ambiguity. The backend's own "any text until" works on bytes and lets control tokens through; this one works on
    characters and does not.
    """
    return "\n".join(["root ::= s0", *(_rule(end, state) for state in range(len(end)))])


def _rule(end: str, state: int) -> str:
    """What may follow once `end[:state]` was read: the next character, a shorter start of `end`, or neither."""
    targets = {char: _advance(end, state, char) for char in dict.fromkeys(end)}
    steps = [
        f"[{_escaped(char)}]" + (f" s{target}" if target < len(end) else "")
        for char, target in targets.items()
        if target
    ]
    others = "".join(_escaped(char) for char, target in targets.items() if target)
    return f"s{state} ::= {' | '.join(steps)} | [^{others}] s0"


def _advance(end: str, state: int, char: str) -> int:
    """Length of the longest prefix of `end` that is a suffix of `end[:state] + char`."""
    seen = end[:state] + char
    return next(size for size in range(len(seen), -1, -1) if seen.endswith(end[:size]) and size <= len(end))


def _escaped(char: str) -> str:
    """A character inside an EBNF character class."""
    return (
        char
        if char.isascii() and char.isalnum()
        else f"\\u{ord(char):04x}"
        if ord(char) < 0x10000
        else f"\\U{ord(char):08x}"
    )
