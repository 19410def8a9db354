"""The constraint checked again on this side, token by token, where the upstream's library reads it in its own way."""

from __future__ import annotations

from typing import Any

from agent_server.engine.detokenizer import TokenizerVocabulary, Vocabulary
from agent_server.engine.protocol import Constraint, EngineError
from agent_server.engine.upstream.errors import refused

LEFT = "The upstream's output left the grammar that it was to be held to."


class Judge:
    """One generation's place in its grammar. Raises EngineError("internal") for a token that does not belong there."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def token(self, number: int, *, ends: bool) -> None:
        """`ends`: the token ends the answer, which must be complete."""
        complete = self._matcher.accepting or self._matcher.finished
        if not (complete if ends else self._matcher.accept(number)):
            raise EngineError("internal", LEFT)


class Court:
    """Compiles constraints; the vocabulary is read when the first one comes. Blocking: for a thread."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, ends: frozenset[int]) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._ends = ends
        self._backend: Any = None

    def judge(self, constraint: Constraint) -> Judge:
        from agent_server.generation.constraint import ConstraintError
        from agent_server.generation.grammar import GrammarBackend

        assert isinstance(self._vocabulary, TokenizerVocabulary)
        try:
            if self._backend is None:
                self._backend = GrammarBackend(self._vocabulary.tokenizer, self._vocab_size, self._ends)
            return Judge(self._backend.compile(constraint).matcher())
        except ConstraintError as error:
            raise refused("response_format", str(error)) from error
