"""Constraints compiled and masks filled, by llguidance alone: it compiles in milliseconds, refuses what it cannot
enforce, and bounds its own work, both while it compiles and in each step. A library that does not can be held up for
ever, by a grammar that takes minutes to compile or by one whose masks do.

Everything is written as Lark (`events.grammar.lark`), JSON schemas within it. The vocabulary is seen as bytes, in which
control tokens are no text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llguidance
from tokenizers import Tokenizer

from agent_server.engine_protocol.protocol import Constraint, node_of
from agent_server.generation.core.constraint import ConstraintError, Grammar, Matcher
from agent_server.generation.core.grammar_vocabulary import grammar_vocabulary
from agent_server.model_files import control_tokens
from events.grammar.lark import Unwritable, lark

if TYPE_CHECKING:
    from torch import Tensor

    from agent_server.generation.core.runaway import StringClosers

LIMITS = llguidance.LLParserLimits(
    max_grammar_size=200_000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=200_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    verbose_errors=False,
)
"""Of one grammar. A step that needs more than this ends its generation: about 14 ms for a lexer, and for a parser up to
0.2 s, seen with the worst grammar of thirteen."""


class LarkMatcher:
    """A generation's place in an llguidance grammar."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def accept(self, token: int) -> bool:
        return bool(self.inner.consume_token(token))

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)

    @property
    def finished(self) -> bool:
        return bool(self.inner.is_stopped()) and not self.inner.is_error()

    @property
    def accepting(self) -> bool:
        return bool(self.inner.is_accepting())

    @property
    def forced(self) -> int | None:
        tokens = self.inner.compute_ff_tokens()
        return int(tokens[0]) if tokens and not self.accepting else None

    @property
    def error(self) -> str | None:
        return str(self.inner.get_error()) if self.inner.is_error() else None


class LarkGrammar:
    """A compiled grammar: a matcher at its start, which others are copied from."""

    def __init__(self, first: Any) -> None:
        self._first = first

    def matcher(self) -> LarkMatcher:
        return LarkMatcher(self._first.deep_copy())


class GrammarBackend:
    """Grammars over one vocabulary.

    vocab_size: of the model's logits; the tokenizer may have fewer tokens or more. ends: ids that end an answer; where
    the model names none, one that the step never offers. controls: ids of tokens that are no text; without them, those
    that can be known without the model's chat templates. Raises ConstraintError for a tokenizer that grammars cannot
    use.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, ends: Collection[int], controls: Collection[int] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        controls = control_tokens(tokenizer) if controls is None else controls
        controls = [number for number in sorted(controls) if number < vocab_size]
        self.ends = sorted(end for end in ends if end < vocab_size) or [max(controls, default=0)]
        self._controls = controls
        self._vocabulary, texts = grammar_vocabulary(tokenizer, vocab_size, controls, self.ends)
        self._texts = texts
        self._executor = llguidance.LLExecutor()

    def compile(self, constraint: Constraint) -> Grammar:
        """The grammar, whose first mask was seen to be within the bounds."""
        matcher = llguidance.LLMatcher(self._vocabulary, self._lark(constraint), log_level=0, limits=LIMITS)
        if not matcher.is_error():
            first = matcher.deep_copy()
            first.compute_bitmask()
            matcher = first if first.is_error() else matcher
        if matcher.is_error():
            raise ConstraintError(f"The grammar cannot be compiled: {reason(matcher.get_error())}")
        return LarkGrammar(matcher)

    def _lark(self, constraint: Constraint) -> str:
        if constraint.kind == "lark":
            return str(constraint.value)
        try:
            return lark(node_of(constraint), self._controls)
        except Unwritable as error:
            raise ConstraintError(str(error)) from error
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"The structural tag is not well-formed: {type(error).__name__} {str(error)[:100]}."
            raise ConstraintError(message) from error

    def fill(self, matchers: Sequence[Matcher], bits: Tensor) -> None:
        inner = [(matcher.inner, row) for row, matcher in enumerate(matchers) if isinstance(matcher, LarkMatcher)]
        if len(inner) == 1:
            inner[0][0].unsafe_compute_mask_ptr(bits.data_ptr(), bits.shape[1] * 4)
        elif inner:
            self._executor.unsafe_compute_mask_ptr(inner, bits.data_ptr(), bits.shape[1] * 4, len(matchers))

    @cached_property
    def _closers(self) -> StringClosers:
        # Imports numpy, which a gateway that compiles grammars need not have.
        from agent_server.generation.core.runaway import StringClosers

        return StringClosers(self._texts)

    def close_string(self, row: Tensor) -> bool:
        return self._closers.close(row)


def reason(message: str) -> str:
    """The sentence of a library's error, without the grammar that it quotes."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = lines[0] if lines else "unknown reason"
    return (first.partition(": ")[2] if first.startswith("at ") else first)[:300]
