"""The constraint checked again on this side, token by token, where the upstream's library reads it in its own way."""

from __future__ import annotations

from typing import Any

from agent_server.engine.constraint_nodes import node_of
from agent_server.engine.detokenizer import TokenizerVocabulary, Vocabulary
from agent_server.engine.protocol import Constraint, EngineError
from agent_server.engines.upstream.errors import refused
from agent_server.engines.upstream.grammar import whole_tag

LEFT = "The upstream's output left the grammar that it was to be held to."


ANY_SPACE = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
"""xgrammar lets JSON's white space be any; that is no fault of the output."""


class ConstraintVerifier:
    """One generation's place in its grammar. Raises EngineError("internal") for a token that does not belong there."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def token(self, number: int, *, ends: bool) -> None:
        """`ends`: the token ends the answer, which must be complete."""
        complete = self._matcher.accepting or self._matcher.finished
        if not (complete if ends else self._matcher.accept(number)):
            raise EngineError("internal", LEFT)


class ConstraintVerifiers:
    """Compiles constraints; the vocabulary is read when the first one comes. Blocking: for a thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, ends: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._ends = ends
        self._backend: Any = None

    def judge(self, constraint: Constraint) -> ConstraintVerifier:
        from agent_server.generation.constraint import ConstraintError
        from agent_server.generation.grammar import GrammarBackend

        assert isinstance(self._vocabulary, TokenizerVocabulary)
        try:
            if self._backend is None:
                self._backend = GrammarBackend(self._vocabulary.tokenizer, self._vocab_size, self._ends)
            return ConstraintVerifier(self._backend.compile(spacious(constraint)).matcher())
        except ConstraintError as error:
            raise refused("response_format", str(error)) from error


def spacious(constraint: Constraint) -> Constraint:
    """The constraint with JSON's white space free."""
    if constraint.kind not in ("structural_tag", "json_schema", "json_object"):
        return constraint
    return Constraint(kind="structural_tag", value=whole_tag(_spacious(node_of(constraint))))


def _spacious(node: Any) -> Any:
    if isinstance(node, list):
        return [_spacious(each) for each in node]
    if not isinstance(node, dict):
        return node
    schema = node.get("json_schema")
    if node.get("type") == "json_schema" and isinstance(schema, dict):
        return {**node, "json_schema": {**schema, "x-guidance": {**schema.get("x-guidance", {}), **ANY_SPACE}}}
    return {name: _spacious(value) for name, value in node.items()}
