"""A tokenizer's vocabulary as grammars see it: the bytes of every token, and the usual tokens of a text that is forced.

llguidance can read a tokenizer.json itself, but then it writes forced text with everything that the tokenizer does to a
prompt: normalization to NFC turns the Ohm sign into an Omega, spelled control tokens become control tokens, and "▁" a
space. None of these is the text that the grammar asks for. Here the tokens of a forced text always have its bytes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import llguidance
from tokenizers import Tokenizer

from agent_server.engine_protocol.detokenizer import ByteLevelTexts
from agent_server.generation.core.constraint import ConstraintError

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
        self.tokens = _token_bytes(tokenizer, rows, controls, spec.get("decoder"))
        self._encoder = _plain_encoder(spec, controls)
        self.vocabulary: Any = None

    def __call__(self, text: str) -> list[int]:
        """The model's usual tokens for `text`; where they spell another text, the longest tokens that spell it."""
        ids = self._encoder.encode(text, add_special_tokens=False).ids
        if max(ids, default=0) < len(self.tokens) and b"".join(self.tokens[each] for each in ids) == text.encode():
            return list(ids)
        return list(self.vocabulary.greedy_tokenize(text))


def _token_bytes(tokenizer: Tokenizer, rows: int, controls: Collection[int], decoder: Any) -> list[bytes]:
    spelled = [tokenizer.id_to_token(number) for number in range(rows)]
    steps = list(_steps(decoder, "decoders"))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        texts = ByteLevelTexts(tokenizer)
        found = [texts.bytes_of(number) for number in range(rows)]
    elif kinds & {"ByteFallback", "Metaspace"}:
        found = [_spelled_bytes(name or "", steps) for name in spelled]
    else:
        raise ConstraintError(f"Grammars cannot use this tokenizer: its decoder is {', '.join(sorted(kinds)) or None}.")
    for number, name in enumerate(spelled):
        if name is None:
            found[number] = _CONTROL + b"<[%d]>" % number
        elif number in controls:
            found[number] = _CONTROL + name.encode()
    return found


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


def _plain_encoder(spec: dict[str, Any], controls: Collection[int]) -> Tokenizer:
    """A tokenizer that changes nothing of a text and recognises no control token in it."""
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
    return encoder


def _without_prefix(part: Any) -> Any:
    """A pre-tokenizer that puts no space in front of a text."""
    if not isinstance(part, dict):
        return part
    if part["type"] == "Sequence":
        return {**part, "pretokenizers": [_without_prefix(each) for each in part["pretokenizers"]]}
    changes = {"add_prefix_space": False, "prepend_scheme": "never"}
    return {key: changes.get(key, value) for key, value in part.items()}
