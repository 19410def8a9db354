"""Compile constraints and fill masks with llguidance. It compiles in milliseconds, refuses what it cannot enforce, and
bounds its own work, both while it compiles and in each step. Other libraries can block without bound, on a grammar that
takes minutes to compile or on one whose masks do.

Every constraint is translated to Lark (`events.grammar.lark`), with JSON schemas embedded. Grammars match bytes, in
which control tokens have no text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import llguidance
import msgspec
from tokenizers import Tokenizer, models

from agent_server.engine_protocol.detokenizer import byte_level_bytes
from agent_server.engine_protocol.protocol import Constraint, node_of
from agent_server.generation.core.constraint import ConstraintError, Grammar, Matcher
from agent_server.model_files import control_tokens, without_control_tokens
from events.grammar.lark import Unwritable, lark

if TYPE_CHECKING:
    from torch import Tensor

    from agent_server.generation.core.runaway import StringClosers

_CONTROL = b"\xff"
"""Prefix of a token that no text can spell (toktrie's SPECIAL_TOKEN_MARKER)."""


def grammar_vocabulary(
    tokenizer: Tokenizer, rows: int, controls: Collection[int], ends: Collection[int]
) -> tuple[llguidance.LLTokenizer, Sequence[bytes]]:
    """Return llguidance's vocabulary for a model with `rows` logits, and the bytes of each token. Tokens of higher ids
    have no logit, so no grammar uses them; rows without a token have no text. controls: ids of tokens without text.
    ends: ids that end an answer.

    Raises ConstraintError if the bytes of the tokens cannot be determined."""
    texts = _TokenTexts(tokenizer, rows, controls, min(ends))
    texts.vocabulary = llguidance.LLTokenizer(texts, eos_token=sorted(ends))
    return texts.vocabulary, texts.tokens


class _TokenTexts:
    """The interface that llguidance expects of a tokenizer (its `TokenizerWrapper`)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, rows: int, controls: Collection[int], end: int) -> None:
        self.eos_token_id = end
        self.special_token_ids = sorted(controls)
        controls = frozenset(controls)  # some tokenizers have thousands
        # The parts of the tokenizer beside its vocabulary, which takes a second to write and read.
        parts = Tokenizer(models.BPE())
        parts.normalizer, parts.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
        parts.decoder = tokenizer.decoder
        spec = msgspec.json.decode(parts.to_str())
        decoder = spec.get("decoder")
        names = [tokenizer.id_to_token(number) for number in range(rows)]
        steps = list(_steps(decoder, "decoders"))
        kinds = {step["type"] for step in steps}
        if "ByteLevel" in kinds:
            tokens = [byte_level_bytes(name or "") for name in names]
        elif kinds & {"ByteFallback", "Metaspace"}:
            tokens = [_spelled_bytes(name or "", steps) for name in names]
        else:
            raise ConstraintError(
                f"Grammars cannot use this tokenizer: its decoder is {', '.join(sorted(kinds)) or None}."
            )
        for number, name in enumerate(names):
            if name is None:
                tokens[number] = _CONTROL + b"<[%d]>" % number
            elif number in controls:
                tokens[number] = _CONTROL + name.encode()
        self.tokens = tokens
        # A tokenizer that leaves the text unchanged and recognises no control tokens in it.
        spaces = [step for step in _steps(spec.get("normalizer"), "normalizers") if step["type"] == "Replace"]
        plain = {
            **spec,
            "normalizer": {"type": "Sequence", "normalizers": spaces} if spaces else None,
            "pre_tokenizer": _without_prefix(spec.get("pre_tokenizer")),
        }
        parts = Tokenizer.from_str(msgspec.json.encode(plain).decode())
        self._encoder = without_control_tokens(tokenizer, controls)
        self._encoder.normalizer, self._encoder.pre_tokenizer = parts.normalizer, parts.pre_tokenizer
        self.vocabulary: Any = None

    def __call__(self, text: str) -> list[int]:
        """Encode `text` with the model's tokenizer or, if its tokens spell another text, with the longest matching
        tokens."""
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) < len(self.tokens) and b"".join(self.tokens[each] for each in ids) == text.encode():
            return list(ids)
        return list(self.vocabulary.greedy_tokenize(text))


def _spelled_bytes(name: str, steps: list[dict[str, Any]]) -> bytes:
    """Return the bytes of one SentencePiece token, without decoder steps that apply to a whole text."""
    for step in steps:
        if step["type"] == "ByteFallback" and len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            return bytes([int(name[3:5], 16)])
        if step["type"] == "Replace" and "String" in step["pattern"]:
            name = name.replace(step["pattern"]["String"], step["content"])
        if step["type"] == "Metaspace":
            name = name.replace(step["replacement"], " ")
    return name.encode()


def _steps(part: Any, inner: str) -> list[dict[str, Any]]:
    """Flatten a decoder or normalizer of a tokenizer.json into its steps."""
    if not isinstance(part, dict):
        return []
    if part["type"] == "Sequence":
        return [step for each in part[inner] for step in _steps(each, inner)]
    return [part]


def _without_prefix(part: Any) -> Any:
    """Return the pre-tokenizer without the option that puts a space in front of the text."""
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
"""Limits of one grammar. A step that exceeds them ends its generation: about 14 ms for a lexer and up to 0.2 s for a
parser, measured with the worst of thirteen grammars."""


class LarkMatcher:
    """A generation's state in an llguidance grammar."""

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
    def forced(self) -> Sequence[int]:
        tokens: list[int] = self.inner.compute_ff_tokens()
        return tokens if tokens and not self.accepting else ()

    @property
    def error(self) -> str | None:
        return str(self.inner.get_error()) if self.inner.is_error() else None


class LarkGrammar:
    """A compiled grammar: a matcher in its initial state, which is copied for each generation."""

    def __init__(self, first: Any) -> None:
        self._first = first

    def matcher(self) -> LarkMatcher:
        return LarkMatcher(self._first.deep_copy())


class GrammarBackend:
    """Grammars over one vocabulary.

    vocab_size: the number of the model's logits; the tokenizer may have fewer tokens or more. ends: ids that end an
    answer; if the model has none, a control token that no step allows. controls: ids of tokens without text; None for
    those that are known without the model's chat templates. Raises ConstraintError for a tokenizer that grammars
    cannot use.
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
        """Compile a constraint, and compute its first mask once to check that it stays within the limits."""
        try:
            text = str(constraint.value) if constraint.kind == "lark" else lark(node_of(constraint), self._controls)
        except Unwritable as error:
            raise ConstraintError(str(error)) from error
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            message = f"The structural tag is not well-formed: {type(error).__name__} {str(error)[:100]}."
            raise ConstraintError(message) from error
        matcher = llguidance.LLMatcher(self._vocabulary, text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            first = matcher.deep_copy()
            first.compute_bitmask()
            matcher = first if first.is_error() else matcher
        if matcher.is_error():
            raise ConstraintError(f"The grammar cannot be compiled: {reason(matcher.get_error())}")
        return LarkGrammar(matcher)

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
    """Return the first line of llguidance's error message, without the position and the grammar that it quotes."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = lines[0] if lines else "unknown reason"
    return (first.partition(": ")[2] if first.startswith("at ") else first)[:300]
