"""Checks an upstream's output against the constraint, token by token, where its grammar library may read it
otherwise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agent_server.engine_protocol.constraint_nodes import node_of
from agent_server.engine_protocol.detokenizer import TokenizerVocabulary, Vocabulary
from agent_server.engine_protocol.protocol import Constraint, EngineError
from agent_server.engines.upstream.errors import refused
from agent_server.engines.upstream.grammar import whole_tag

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
        """A verifier for one generation. It blocks, so call it in a thread. Raises EngineError("invalid_request")."""
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
    """The constraint with any white space allowed in its JSON."""
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
