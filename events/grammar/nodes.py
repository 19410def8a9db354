"""Nodes of a structural tag (xgrammar's JSON form) with a model's markers.

A marker that is a single token of the vocabulary is matched only as that token. The parser reads it in the same way, so
text that spells a marker can neither open nor close anything. Other markers are matched as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

Node = dict[str, Any]
INDENT = 24
"""The most spaces of indentation in JSON over several lines."""
EMPTY: Node = {"type": "const_string", "value": ""}
SPACE: Node = {"type": "regex", "pattern": " ?"}
"""Between JSON tokens: at most one space. Without a bound, small models write white space until max_tokens."""
LINES: Node = {"type": "regex", "pattern": f"\\n? {{0,{INDENT}}}"}
"""Between JSON tokens over several lines."""


def sequence(*nodes: Node) -> Node:
    """Concatenate nodes; nested sequences are flattened and adjacent constants joined."""
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


def repeated(node: Node, least: int, most: int | None) -> Node:
    """Repeat a node from `least` to `most` times; None means no upper bound."""
    if most == 0:
        return EMPTY
    if least == 0 and most is None:
        return star(node)
    return {"type": "repeat", "content": node, "min": least, "max": -1 if most is None else most}


def constant(text: str) -> Node:
    return {"type": "const_string", "value": text}


def pattern(regex: str) -> Node:
    return {"type": "regex", "pattern": regex}


def spaced(*parts: str, space: Node = SPACE) -> Node:
    """Concatenate pieces of JSON with optional white space between them."""
    nodes = [constant(parts[0])]
    for part in parts[1:]:
        nodes += [space, constant(part)]
    return sequence(*nodes)


class Alphabet:
    """The markers of one model. ids: marker → token id, for markers that are single tokens."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None

    def literal(self, text: str) -> Node:
        """Match `text` exactly, with its markers as tokens."""
        parts = self._splitter.split(text) if self._splitter else [text]
        return sequence(*((self.token(part) if part in self.ids else constant(part)) for part in parts if part))

    def token(self, marker: str) -> Node:
        return {"type": "token", "token": self.ids[marker]}

    def closed(self, end: str, *, content: Node | None = None, excludes: Iterable[str] = ()) -> Node:
        """Match text followed by `end`. The text must not contain what the parser reads as the end: a marker that is
        not a token counts anywhere, with or without the white space around it. content: the form of the text, else
        any."""
        first, rest = split(self.literal(end))
        core, _ = split(self.literal(end.strip() or end))
        if content is not None and content["type"] not in ("any_text", "regex"):
            return sequence(content, self.literal(end))
        inner = content or free()
        if first["type"] == "token":
            return sequence(_excluding(inner, excludes), self.literal(end))
        if core["type"] == "token":
            tag = {"type": "tag", "begin": "", "content": _excluding(inner, excludes), "end": first["value"]}
            return sequence({**tag, "greedy": True}, rest)
        inner = _excluding(inner, [*excludes, core["value"]])
        return sequence({"type": "tag", "begin": "", "content": inner, "end": first["value"]}, rest)

    def until(self, ends: Iterable[str]) -> Node:
        """Match any text up to and including the first of `ends`. If one of them is the beginning of another, the rest
        of that is optional."""
        unique = list(dict.fromkeys(end.strip() or end for end in ends))
        cores = [core for core in unique if not any(other != core and core.startswith(other) for other in unique)]
        texts = [core for core in cores if core not in self.ids]
        return either(
            *(
                sequence(
                    self.closed(core, excludes=[text for text in texts if text != core]),
                    *(
                        optional(self.literal(end[len(core) :]))
                        for end in unique
                        if end != core and end.startswith(core)
                    ),
                )
                for core in cores
            )
        )

    def tokens(self, markers: Iterable[str]) -> set[int]:
        """Return the ids of the tokens in these markers."""
        nodes = (self.literal(marker) for marker in markers if marker)
        parts = (part for node in nodes for part in node.get("elements", [node]))
        return {part["token"] for part in parts if part["type"] == "token"}

    def json(self, schema: Any, **options: Any) -> Node:
        """Match JSON that fits `schema`, with bounded white space."""
        return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": 1, **options}


def free(excludes: Iterable[str] = ()) -> Node:
    """Match any text that does not contain any of `excludes`. Control tokens are not text."""
    texts = list(dict.fromkeys(text for text in excludes if text))
    return {"type": "any_text", "excludes": texts} if texts else {"type": "any_text"}


def _excluding(content: Node, excludes: Iterable[str]) -> Node:
    texts = list(dict.fromkeys([*content.get("excludes", ()), *(text for text in excludes if text)]))
    return {**content, "excludes": texts} if texts else content


def split(node: Node) -> tuple[Node, Node]:
    if node["type"] == "sequence":
        first, *others = node["elements"]
        return first, sequence(*others)
    return node, EMPTY
