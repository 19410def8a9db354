"""Translates a constraint into a grammar of the upstream's own library."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary, Vocabulary
from agent_server.engine_protocol.protocol import Constraint, EngineError, node_of
from agent_server.engines.upstream.errors import refused
from events.grammar.lark import Unwritable, lark
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
                return {**node, "excludes": list(dict.fromkeys([*node.get("excludes", ()), *self._excludes]))}
            case "regex":
                if node.get("excludes") or node.get("not_pattern"):
                    raise Unwritable("a pattern cannot exclude text.")
                return {"type": "regex", "pattern": node["pattern"]}
            case "json_schema":
                schema = _plain(node["json_schema"])
                converted = {"max_whitespace_cnt": 1, **node, "json_schema": schema}
                return converted if _has(schema, BOUNDS) else {**converted, "excludes": self._excludes}
            case "sequence" | "or":
                return {**node, "elements": [self._node(each) for each in node["elements"]]}
            case "optional" | "star" | "repeat":
                return {**node, "content": self._node(node["content"])}
            case "tag":
                return self._tag(node)
            case "triggered_tags" | "token_triggered_tags":
                converted = {**node, "tags": [self._tag(tag) for tag in node["tags"]]}
                if node["type"] == "triggered_tags":
                    excluded = [self._controls.get(number, "") for number in converted.pop("exclude_tokens", ())]
                    converted["excludes"] = [text for text in excluded if text]
                return converted
            case "grammar" if node.get("syntax", "ebnf") == "ebnf":
                return {"type": "grammar", "grammar": node["grammar"]}
        raise Unwritable(f"it does not support this kind of {node['type']!r}.")

    def _tag(self, node: Node) -> Node:
        """Convert a tag. The text of a greedy tag may contain its end marker, so it becomes a plain sequence, in which
        the last one counts."""
        begin, content, end = node["begin"], self._node(node["content"]), node["end"]
        if node.get("greedy"):
            return sequence(constant(begin), content, constant(end))
        return {"type": "tag", "begin": begin, "content": content, "end": end}


def _tokens(node: object) -> Iterable[int]:
    """Yield the ids of all tokens that the grammar names."""
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
    """Return the schema without llguidance's options. Raises Unwritable for a keyword that xgrammar would not
    enforce."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    unknown = next((key for key in schema if key in UNKNOWN), None)
    if unknown is not None:
        raise Unwritable(f"it does not enforce {unknown!r}.")
    plain: dict[str, object] = {}
    for key, value in schema.items():
        if key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, Mapping):
            plain[key] = {name: _plain(each) for name, each in value.items()}  # by the client's names, not keywords
        elif key in ("enum", "const", "default", "examples"):
            plain[key] = value
        elif key != "x-guidance":
            plain[key] = _plain(value)
    return plain


def _has(schema: object, keywords: Iterable[str]) -> bool:
    if isinstance(schema, list):
        return any(_has(each, keywords) for each in schema)
    if not isinstance(schema, Mapping):
        return False
    return any(word in schema for word in keywords) or any(_has(each, keywords) for each in schema.values())


HEADER = "%llguidance {}\n"


class UpstreamGrammar(msgspec.Struct, frozen=True):
    """value: a string for "lark", "ebnf" and "regex", a JSON value for "structural_tag" and "json_schema"."""

    kind: Literal["lark", "ebnf", "structural_tag", "json_schema", "regex"]
    value: Any


async def translate(
    constraint: Constraint | None, language: str | None, controls: Mapping[int, str]
) -> UpstreamGrammar | None:
    """Translate a constraint for an upstream that accepts grammars for `language`: "llguidance" or "xgrammar".
    controls: the spellings of control tokens by id. Raises EngineError("invalid_request") if the library cannot enforce
    the constraint in full: an incomplete grammar is never sent."""
    if constraint is None:
        return None
    if language == "llguidance":
        return await asyncio.to_thread(for_llguidance, constraint, tuple(controls))
    try:
        return await asyncio.to_thread(for_xgrammar, constraint, controls)
    except Unwritable as error:
        message = f"This upstream's grammar library (xgrammar) cannot enforce the requested output: {error}"
        raise refused("response_format", message) from error


def for_llguidance(constraint: Constraint, controls: Sequence[int]) -> UpstreamGrammar:
    """Return the same grammar that the embedded engine uses. A constraint that Lark cannot express is sent as the
    client's structural tag."""
    if constraint.kind == "lark":
        text = str(constraint.value)
        return UpstreamGrammar("lark", text if "%llguidance" in text else HEADER + text)
    if constraint.kind == "ebnf":
        return UpstreamGrammar("ebnf", constraint.value)
    try:
        return UpstreamGrammar("lark", lark(node_of(constraint), controls))
    except Unwritable:
        return UpstreamGrammar("structural_tag", whole_tag(node_of(constraint)))


def for_xgrammar(constraint: Constraint, controls: Mapping[int, str]) -> UpstreamGrammar:
    """Translate a constraint for xgrammar. Raises Unwritable if xgrammar cannot enforce it."""
    if constraint.kind in ("lark", "ebnf", "regex"):
        if constraint.kind == "lark":
            raise Unwritable("it has no Lark.")
        return UpstreamGrammar(constraint.kind, constraint.value)
    return UpstreamGrammar("structural_tag", whole_tag(TagWriter(controls).write(node_of(constraint))))


def whole_tag(node: Node) -> dict[str, object]:
    return {"type": "structural_tag", "format": node}


VIOLATION = "The upstream generated a token that the request's grammar does not allow."

ANY_SPACE = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
"""Options of llguidance that allow any white space in JSON, as xgrammar does."""


class ConstraintVerifier:
    """The state of one generation's grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def token(self, number: int, *, ends: bool) -> None:
        """Take the next token. `ends`: it ends the answer, which must be complete. Raises EngineError("internal") if
        the grammar does not allow it."""
        complete = self._matcher.accepting or self._matcher.finished
        if not (complete if ends else self._matcher.accept(number)):
            raise EngineError("internal", VIOLATION)


class ConstraintVerifiers:
    """Compiles constraints into verifiers. The grammar library and the vocabulary are loaded with the first
    constraint."""

    def __init__(
        self, vocabulary: Vocabulary, vocab_size: int, ends: frozenset[int], controls: Collection[int]
    ) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._ends = ends
        self._controls = controls
        self._backend: Any = None

    def verifier(self, constraint: Constraint) -> ConstraintVerifier:
        """Create a verifier for one generation. Blocks, so call it in a thread. Raises
        EngineError("invalid_request")."""
        from agent_server.generation.core.constraint import ConstraintError
        from agent_server.generation.core.grammar import GrammarBackend

        assert isinstance(self._vocabulary, TokenizerVocabulary)
        try:
            if self._backend is None:
                self._backend = GrammarBackend(self._vocabulary.tokenizer, self._vocab_size, self._ends, self._controls)
            return ConstraintVerifier(self._backend.compile(with_any_space(constraint)).matcher())
        except ConstraintError as error:
            raise refused("response_format", str(error)) from error


def with_any_space(constraint: Constraint) -> Constraint:
    """Return the constraint with any white space allowed in its JSON."""
    if constraint.kind not in ("structural_tag", "json_schema", "json_object"):
        return constraint
    return Constraint(kind="structural_tag", value=whole_tag(_with_any_space(node_of(constraint))))


def _with_any_space(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_any_space(each) for each in node]
    if not isinstance(node, dict):
        return node
    schema = node.get("json_schema")
    if node.get("type") == "json_schema" and isinstance(schema, dict):
        return {**node, "json_schema": {**schema, "x-guidance": {**schema.get("x-guidance", {}), **ANY_SPACE}}}
    return {name: _with_any_space(value) for name, value in node.items()}
