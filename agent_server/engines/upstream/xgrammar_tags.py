"""Rewrites our structural tags for xgrammar, for upstreams that do not use llguidance.

xgrammar treats the spelling of a control token like any other text, so these spellings are excluded wherever text is
allowed. A node that xgrammar cannot express raises Unwritable. `constraint_verifier` checks the output for whatever
xgrammar still lets through.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from events.grammar.lark import Unwritable
from events.grammar.nodes import Node, constant, sequence

MOST_EXCLUDED = 64
"""The most control tokens whose spellings are all excluded; with more, only those that the grammar uses are."""
BOUNDS = ("minLength", "maxLength", "pattern", "format")
"""Keywords with which xgrammar either ignores the excluded texts of a string or the keyword itself."""
UNKNOWN = frozenset(
    {"not", "if", "then", "else", "multipleOf", "uniqueItems", "contains", "minContains", "maxContains"}
    | {"propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "unevaluatedItems"}
)
"""Keywords that xgrammar ignores without an error."""


class TagWriter:
    """controls: the spellings of control tokens by id."""

    def __init__(self, controls: Mapping[int, str]) -> None:
        self._controls = controls
        self._excludes: list[str] = []

    def write(self, node: Node) -> Node:
        used = set(_tokens(node))
        numbers = self._controls if len(self._controls) <= MOST_EXCLUDED else used
        self._excludes = [self._controls[number] for number in numbers if self._controls.get(number)]
        return self._node(node)

    def _node(self, node: Node) -> Node:
        match node["type"]:
            case "const_string" | "token":
                return node
            case "any_text":
                return {**node, "excludes": self._excluded(node)}
            case "regex":
                return self._regex(node)
            case "json_schema":
                return self._json(node)
            case "sequence" | "or":
                return {**node, "elements": [self._node(each) for each in node["elements"]]}
            case "optional" | "star" | "repeat":
                return {**node, "content": self._node(node["content"])}
            case "tag":
                return self._tag(node)
            case "triggered_tags" | "token_triggered_tags":
                return self._triggered(node)
            case "grammar" if node.get("syntax", "ebnf") == "ebnf":
                return {"type": "grammar", "grammar": node["grammar"]}
        raise Unwritable(f"it does not support this kind of {node['type']!r}.")

    def _excluded(self, node: Node) -> list[str]:
        return list(dict.fromkeys([*node.get("excludes", ()), *self._excludes]))

    def _regex(self, node: Node) -> Node:
        if node.get("excludes") or node.get("not_pattern"):
            raise Unwritable("a pattern cannot exclude text.")
        return {"type": "regex", "pattern": node["pattern"]}

    def _json(self, node: Node) -> Node:
        schema = _plain(node["json_schema"])
        written = {"max_whitespace_cnt": 1, **node, "json_schema": schema}
        return written if _has(schema, BOUNDS) else {**written, "excludes": self._excludes}

    def _tag(self, node: Node) -> Node:
        """The text of a greedy tag may contain its end marker, so it becomes a plain sequence, in which the last one
        counts."""
        begin, content, end = node["begin"], self._node(node["content"]), node["end"]
        if node.get("greedy"):
            return sequence(constant(begin), content, constant(end))
        return {"type": "tag", "begin": begin, "content": content, "end": end}

    def _triggered(self, node: Node) -> Node:
        written = {**node, "tags": [self._tag(tag) for tag in node["tags"]]}
        if node["type"] == "triggered_tags":
            excluded = [self._controls.get(number, "") for number in written.pop("exclude_tokens", ())]
            written["excludes"] = [text for text in excluded if text]
        return written


def _tokens(node: object) -> Iterable[int]:
    """The ids of all tokens that the grammar names."""
    if isinstance(node, Mapping):
        if node.get("type") == "token":
            yield node["token"]
        for key, value in node.items():
            if key != "json_schema":
                yield from _tokens(value)
    elif isinstance(node, list):
        for each in node:
            yield from _tokens(each)


def _plain(schema: object) -> object:
    """The schema without llguidance's options. Raises Unwritable for a keyword that xgrammar would not enforce."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    unknown = next((key for key in schema if key in UNKNOWN), None)
    if unknown is not None:
        raise Unwritable(f"it does not enforce {unknown!r}.")
    kept = {key: value for key, value in schema.items() if key != "x-guidance"}
    return {key: _named(key, value) for key, value in kept.items()}


def _named(key: str, value: object) -> object:
    """The value of one keyword. The keys of properties and definitions are the client's names, not keywords."""
    if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return value if key in ("enum", "const", "default", "examples") else _plain(value)


def _has(schema: object, keywords: Iterable[str]) -> bool:
    if isinstance(schema, list):
        return any(_has(each, keywords) for each in schema)
    if not isinstance(schema, Mapping):
        return False
    return any(word in schema for word in keywords) or any(_has(each, keywords) for each in schema.values())
