"""Compile constraints and fill masks, by llguidance alone: it compiles in milliseconds, refuses what it cannot enforce,
and bounds its own work, both while it compiles and in each step. Other libraries can be held up without bound, by a
grammar that takes minutes to compile or by one whose masks do.

Everything is written as Lark (`events.grammar.lark`), JSON schemas within it. The vocabulary is seen as bytes, in which
control tokens are no text.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llguidance
from tokenizers import Tokenizer

from agent_server.engine_protocol.detokenizer import ByteLevelTexts
from agent_server.engine_protocol.protocol import Constraint, node_of
from agent_server.generation.core.constraint import ConstraintError, Grammar, Matcher
from agent_server.model_files import control_tokens
from events.grammar.lark import Unwritable, lark

if TYPE_CHECKING:
    from torch import Tensor

    from agent_server.generation.core.runaway import StringClosers

_CONTROL = b"\xff"
"""Marks a token that no text spells (toktrie's SPECIAL_TOKEN_MARKER)."""


def grammar_vocabulary(
    tokenizer: Tokenizer, rows: int, controls: Collection[int], ends: Collection[int]
) -> tuple[llguidance.LLTokenizer, Sequence[bytes]]:
    """The vocabulary of a model with `rows` logits, and the bytes of each token. Tokens above have no logit, so no
    grammar writes them; rows without a token are no text. controls: ids of tokens that are no text. ends: ids that end
    an answer.

    Raises ConstraintError where it is not known which bytes a token stands for."""
    texts = _TokenTexts(tokenizer, rows, controls, min(ends))
    texts.vocabulary = llguidance.LLTokenizer(texts, eos_token=sorted(ends))
    return texts.vocabulary, texts.tokens


class _TokenTexts:
    """What llguidance asks of a tokenizer (its `TokenizerWrapper`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, rows: int, controls: Collection[int], end: int) -> None:
        self.eos_token_id = end
        self.special_token_ids = sorted(controls)
        spec = json.loads(tokenizer.to_str())
        decoder = spec.get("decoder")
        spelled = [tokenizer.id_to_token(number) for number in range(rows)]
        steps = list(_steps(decoder, "decoders"))
        kinds = {step["type"] for step in steps}
        if "ByteLevel" in kinds:
            texts = ByteLevelTexts(tokenizer)
            found = [texts.bytes_of(number) for number in range(rows)]
        elif kinds & {"ByteFallback", "Metaspace"}:
            found = [_spelled_bytes(name or "", steps) for name in spelled]
        else:
            raise ConstraintError(
                f"Grammars cannot use this tokenizer: its decoder is {', '.join(sorted(kinds)) or None}."
            )
        for number, name in enumerate(spelled):
            if name is None:
                found[number] = _CONTROL + b"<[%d]>" % number
            elif number in controls:
                found[number] = _CONTROL + name.encode()
        self.tokens = found
        # A tokenizer that changes nothing of a text and recognises no control token in it.
        spaces = [step for step in _steps(spec.get("normalizer"), "normalizers") if step["type"] == "Replace"]
        plain = {
            **spec,
            "truncation": None,
            "padding": None,
            "post_processor": None,
            "normalizer": {"type": "Sequence", "normalizers": spaces} if spaces else None,
            "pre_tokenizer": _without_prefix(spec.get("pre_tokenizer")),
            "added_tokens": [{**each, "special": each["id"] in controls} for each in spec.get("added_tokens", ())],
        }
        encoder = Tokenizer.from_str(json.dumps(plain))
        encoder.encode_special_tokens = True
        self._encoder = encoder
        self.vocabulary: Any = None

    def __call__(self, text: str) -> list[int]:
        """The model's usual tokens for `text`; where they spell another text, the longest tokens that spell it."""
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) < len(self.tokens) and b"".join(self.tokens[each] for each in ids) == text.encode():
            return list(ids)
        return list(self.vocabulary.greedy_tokenize(text))


def _spelled_bytes(name: str, steps: list[dict[str, Any]]) -> bytes:
    """The bytes of one token of SentencePiece's kind, before what the decoder does to a whole text."""
    for step in steps:
        if step["type"] == "ByteFallback" and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        if step["type"] == "Replace" and "String" in step["pattern"]:
            name = name.replace(step["pattern"]["String"], step["content"])
        if step["type"] == "Metaspace":
            name = name.replace(step["replacement"], " ")
    return name.encode()


def _steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """The decoders or normalizers that a part of a tokenizer.json consists of."""
    if not isinstance(part, dict):
        return []
    if part["type"] == "Sequence":
        return [step for each in part[inner] for step in _steps(each, inner)]
    return [part]


def _without_prefix(part: Any) -> Any:
    """A pre-tokenizer that puts no space in front of a text."""
    if not isinstance(part, dict):
        return part
    if part["type"] == "Sequence":
        return {**part, "pretokenizers": [_without_prefix(each) for each in part["pretokenizers"]]}
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: changes.get(key, value) for key, value in part.items()}


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
