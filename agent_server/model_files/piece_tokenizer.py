"""Lists of pieces, as SentencePiece and llama.cpp keep a vocabulary, → a tokenizer that encodes as they do.

Both number the kinds of pieces alike: `ModelProto.SentencePiece.Type` in sentencepiece_model.proto, `llama_token_type`
in llama.h.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"
Prefix = Literal["always", "first", "never"]
"""Where a space is put: before the text and before what follows a control token, before the text alone, or nowhere."""
Step = Mapping[str, object]
"""A part of a tokenizer, as tokenizer.json describes it."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary by id. scores: of merges, the highest first. merges: where a file lists them itself. right_stripped:
    control tokens that take the white space behind them."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] = ()
    merges: Sequence[tuple[str, str]] | None = None
    right_stripped: frozenset[str] = frozenset()

    def added(self) -> list[dict[str, object]]:
        """The pieces that are found in a text before anything else."""
        return [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": token in self.right_stripped,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]

    @property
    def unknown(self) -> str | None:
        return next((token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind == UNKNOWN), None)


def sentencepiece_bpe(pieces: Pieces, *, prefix: Prefix, normalizers: Sequence[Step] = ()) -> Tokenizer:
    """SentencePiece's BPE: merges over the whole text, with a `▁` for each space, and unknown characters as bytes.

    normalizers: steps before spaces are put anywhere. Raises what tokenizers raises for lists that contradict each
    other.
    """
    pieces = _respelled(pieces)
    vocabulary = {token: number for number, token in enumerate(pieces.tokens)}
    model = {
        "type": "BPE",
        "unk_token": pieces.unknown,
        "fuse_unk": True,
        "byte_fallback": BYTE in pieces.kinds,
        "ignore_merges": False,
        "vocab": vocabulary,
        "merges": list(pieces.merges if pieces.merges is not None else _implied_merges(pieces, vocabulary)),
    }
    return _tokenizer(model, pieces, [*normalizers, *_spaces(prefix)], _first_space(prefix), _decoder(prefix))


def sentencepiece_unigram(pieces: Pieces, *, prefix: Prefix, normalizers: Sequence[Step] = ()) -> Tokenizer:
    """SentencePiece's unigram model: the likeliest of all ways to cut a text."""
    model = {
        "type": "Unigram",
        "unk_id": pieces.kinds.index(UNKNOWN),
        "byte_fallback": BYTE in pieces.kinds,
        "vocab": list(zip(pieces.tokens, pieces.scores, strict=True)),
    }
    return _tokenizer(model, pieces, [*normalizers, *_spaces(prefix)], _first_space(prefix), _decoder(prefix))


def byte_level_bpe(pieces: Pieces, splits: Sequence[str], *, normalizer: str = "", ignore_merges: bool) -> Tokenizer:
    """GPT-2's kind of BPE over bytes. splits: regular expressions whose matches are cut out of the text, one after the
    other. ignore_merges: a word that is a token is that token, whatever its merges come to."""
    model = {
        "type": "BPE",
        "ignore_merges": ignore_merges,
        "vocab": {token: number for number, token in enumerate(pieces.tokens)},
        "merges": list(pieces.merges or ()),
    }
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in splits
    ]
    words = {"type": "Sequence", "pretokenizers": [*steps, bytewise]}
    return _tokenizer(model, pieces, [{"type": normalizer}] if normalizer else [], words, bytewise)


def _tokenizer(
    model: Step, pieces: Pieces, normalizers: Sequence[Step], pre_tokenizer: Step | None, decoder: Step
) -> Tokenizer:
    described = {
        "version": "1.0",
        "added_tokens": pieces.added(),
        "normalizer": {"type": "Sequence", "normalizers": list(normalizers)} if normalizers else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }
    made: Tokenizer = Tokenizer.from_str(json.dumps(described))
    return made


def _spaces(prefix: Prefix) -> list[Step]:
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return [{"type": "Prepend", "prepend": SPACE}, replace] if prefix == "always" else [replace]


def _first_space(prefix: Prefix) -> Step | None:
    step = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
    return step if prefix == "first" else None


def _decoder(prefix: Prefix) -> Step:
    steps: list[Step] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix != "never":
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _respelled(pieces: Pieces) -> Pieces:
    """With the runs of spaces that some files list (Gemma's) written as the runs of `▁` that a normalised text has."""
    tokens = [SPACE * len(token) if token.strip(" ") == "" else token for token in pieces.tokens]
    known = set(pieces.tokens)
    tokens = [new if new not in known else old for new, old in zip(tokens, pieces.tokens, strict=True)]
    return Pieces(tokens, pieces.kinds, pieces.scores, pieces.merges, pieces.right_stripped)


def _implied_merges(pieces: Pieces, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together of two others, the best piece first. Pieces that a user defined come before all
    others, the longest first, since SentencePiece finds them before it merges anything."""
    ranked = sorted(_ways(pieces, vocabulary), key=lambda way: way[0], reverse=True)
    return [way[1] for way in ranked]


Rank = tuple[bool, float, int, int]


def _ways(pieces: Pieces, vocabulary: Mapping[str, int]) -> Iterator[tuple[Rank, tuple[str, str]]]:
    for token, kind, score in zip(pieces.tokens, pieces.kinds, pieces.scores, strict=True):
        if kind not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        users = kind == USER_DEFINED
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                yield (users, 0.0 if users else score, cut, len(right)), (left, right)
