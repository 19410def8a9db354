"""xgrammar, for EBNF and for structural tags that are a client's own. Imported when first needed."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import xgrammar
from torch import Tensor

from agent_server.engine.protocol import Constraint
from agent_server.generation.constraint import ConstraintError

NO_TEXT = b"\xff\xfe"
"""Never part of UTF-8: what a control token is spelled with, so that only its id matches it."""
CACHE_BYTES = 64 * 2**20
MAX_CHARACTERS = 64 * 1024


class XMatcher:
    """A generation's place in an xgrammar grammar."""

    error: str | None = None

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def accept(self, token: int) -> bool:
        return bool(self.inner.accept_token(token))

    def rollback(self, count: int) -> None:
        self.inner.rollback(count)

    @property
    def finished(self) -> bool:
        return bool(self.inner.is_terminated())

    @property
    def accepting(self) -> bool:
        return bool(self.inner.is_completed())


class XGrammar:
    """A compiled grammar."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def matcher(self) -> XMatcher:
        return XMatcher(xgrammar.GrammarMatcher(self._compiled))


class XGrammarBackend:
    """spelled: the tokens' bytes, by id. controls: ids that are no text. ends: ids that end an answer."""

    def __init__(
        self, spelled: Sequence[bytes], controls: Collection[int], vocab_size: int, ends: Sequence[int]
    ) -> None:
        marked = set(controls)
        vocabulary = [NO_TEXT + text if number in marked else text for number, text in enumerate(spelled)]
        info = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=list(ends)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_limit_bytes=CACHE_BYTES)

    def compile(self, constraint: Constraint) -> XGrammar:
        try:
            if constraint.kind == "ebnf":
                return XGrammar(self._compiler.compile_grammar(_checked(constraint.value)))
            tag = constraint.value if "format" in constraint.value else {"format": constraint.value}
            text = _checked(json.dumps({"type": "structural_tag", **tag}))
            return XGrammar(self._compiler.compile_structural_tag(text))
        except ConstraintError:
            raise
        except Exception as error:
            raise ConstraintError(f"The grammar cannot be compiled: {_first_line(error)}") from error

    def fill(self, matchers: Sequence[tuple[Any, int]], bits: Tensor) -> None:
        for matcher, row in matchers:
            matcher.inner.fill_next_token_bitmask(bits, row)


def _checked(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise ConstraintError(f"The grammar has {len(text)} characters; at most {MAX_CHARACTERS} are allowed.")
    return text


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
