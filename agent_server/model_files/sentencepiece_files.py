"""Read SentencePiece's `tokenizer.model`, for models without a tokenizer.json. A file whose ids would differ from
SentencePiece's is refused.

The vocabulary is rebuilt for `tokenizers`, and then compared with SentencePiece itself on texts that are easily encoded
differently: white space, characters that it composes or does not know, control characters, long runs. Differences that
are intended or unavoidable are logged.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
from tokenizers import AddedToken, Tokenizer, models

from agent_server.model_files.served_tokenizer import put_around
from agent_server.model_files.usable_files import UnusableFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"
Prefix = Literal["always", "first", "never"]
"""The rule for inserting a space: before the text and after each control token, only before the text, or nowhere."""
Step = Mapping[str, object]
"""A part of a tokenizer, as tokenizer.json describes it."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vocabulary by id. scores: of merges, the highest first. merges: if a file lists them. right_stripped: control
    tokens that absorb the white space after them."""

    tokens: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float] = ()
    merges: Sequence[tuple[str, str]] | None = None
    right_stripped: frozenset[str] = frozenset()

    def added(self) -> list[AddedToken]:
        """The pieces that are matched in a text before anything else."""
        return [
            AddedToken(token, rstrip=token in self.right_stripped, normalized=False, special=kind != USER_DEFINED)
            for token, kind in zip(self.tokens, self.kinds, strict=True)
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]

    @property
    def unknown(self) -> str | None:
        return next((token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind == UNKNOWN), None)


def sentencepiece_bpe(pieces: Pieces, *, prefix: Prefix, normalizers: Sequence[Step] = ()) -> Tokenizer:
    """SentencePiece's BPE: merges over the whole text, with a `▁` for each space, and unknown characters as bytes.

    normalizers: steps before spaces are inserted. Raises the errors of `tokenizers` for lists that contradict each
    other.
    """
    # Replace the runs of spaces that some files list (Gemma's) by the runs of `▁` of a normalised text.
    tokens = [SPACE * len(token) if token.strip(" ") == "" else token for token in pieces.tokens]
    names = set(pieces.tokens)
    tokens = [new if new not in names else old for new, old in zip(tokens, pieces.tokens, strict=True)]
    pieces = Pieces(tokens, pieces.kinds, pieces.scores, pieces.merges, pieces.right_stripped)
    vocabulary = {token: number for number, token in enumerate(pieces.tokens)}
    merges = pieces.merges if pieces.merges is not None else _implied_merges(pieces, vocabulary)
    model = models.BPE(
        vocabulary, list(merges), unk_token=pieces.unknown, fuse_unk=True, byte_fallback=BYTE in pieces.kinds
    )
    return _tokenizer(model, pieces, [*normalizers, *_spaces(prefix)], _first_space(prefix), _decoder(prefix))


def sentencepiece_unigram(pieces: Pieces, *, prefix: Prefix, normalizers: Sequence[Step] = ()) -> Tokenizer:
    """SentencePiece's unigram model: the most likely of all segmentations of a text."""
    vocabulary = list(zip(pieces.tokens, pieces.scores, strict=True))
    model = models.Unigram(vocabulary, pieces.kinds.index(UNKNOWN), BYTE in pieces.kinds)
    return _tokenizer(model, pieces, [*normalizers, *_spaces(prefix)], _first_space(prefix), _decoder(prefix))


def byte_level_bpe(pieces: Pieces, splits: Sequence[str], *, normalizer: str = "", ignore_merges: bool) -> Tokenizer:
    """GPT-2's BPE over bytes. splits: regular expressions that split the text, applied in order. ignore_merges: a word
    that is a token becomes that token, regardless of the merges."""
    vocabulary = {token: number for number, token in enumerate(pieces.tokens)}
    model = models.BPE(vocabulary, list(pieces.merges or ()), ignore_merges=ignore_merges)
    bytewise = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    steps = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in splits
    ]
    words = {"type": "Sequence", "pretokenizers": [*steps, bytewise]}
    return _tokenizer(model, pieces, [{"type": normalizer}] if normalizer else [], words, bytewise)


def _tokenizer(
    model: models.Model, pieces: Pieces, normalizers: Sequence[Step], pre_tokenizer: Step | None, decoder: Step
) -> Tokenizer:
    # Written as JSON without the vocabulary, which takes tokenizers twice as long to read from JSON.
    described: dict[str, object] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": list(normalizers)} if normalizers else None,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": decoder,
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    tokenizer: Tokenizer = Tokenizer.from_str(msgspec.json.encode(described).decode())
    tokenizer.model = model
    tokenizer.add_tokens(pieces.added())
    return tokenizer


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


Rank = tuple[bool, float, int, int]


def _implied_merges(pieces: Pieces, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return all merges of two pieces into another one, the best piece first. User-defined pieces come before all
    others, the longest first, since SentencePiece matches them before it merges anything."""
    merges: list[tuple[Rank, tuple[str, str]]] = []
    for token, kind, score in zip(pieces.tokens, pieces.kinds, pieces.scores, strict=True):
        if kind not in (NORMAL, USER_DEFINED, UNUSED):
            continue
        users = kind == USER_DEFINED
        for cut in range(1, len(token)):
            head, right = token[:cut], token[cut:]
            if head in vocabulary and right in vocabulary:
                merges.append(((users, 0.0 if users else score, cut, len(right)), (head, right)))
    merges.sort(key=lambda merge: merge[0], reverse=True)
    return [parts for _, parts in merges]


logger = logging.getLogger("agent_server")
UNIGRAM, BPE = 1, 2
"""Values of `TrainerSpec.ModelType`."""
PROBES = (
    'hello world', ' hello', '  hello', 'hello ', 'a  b   c    d     e', ' ', '   ', '\n', '\n\n\n', '\t\tx',
    'a\r\nb', 'def f(x):\n    return x  # two\n\n        deep', 'if (a) {\n\tb();\n}\n', '1234567890 3.14 1,000,000',
    "it's DON'T", 'caf\xe9 cafe\u0301', '\u2126 \u212b \ufb01 \xbd \xb2 \u2122',
    '\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab', '東京は夜の七時', '你好，世界！', 'Привет', 'مرحبا', 'नमस्ते दुनिया', 'สวัสดี',
    '\U0001f642 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd',
    '\xa0\u2003\u3000x', '\u200b\u200d\ufeff', '\u2028', '▁ a▁b ▁▁', '{"a": [1, {"b": null}], "c": "d e"}',
    "<div class='a'>\n  <p>x</p>\n</div>", 'camelCaseHTTPServer2XML', 'a_b__c', 'aaaaaaaaaaaaaaaaaaaaaaaaa',
    '-----=====+++++', '\x01\x1f\x7f', '𝔘𝔫𝔦 𝟙𝟚', " " * 37 + "x", "\n" * 40, "word " * 30, '', 'ｶﾞ ﷺ', 'e\u0301\u093e',
)  # fmt: skip


def sentencepiece_tokenizer(
    path: Path, settings: Mapping[str, Any], special: Mapping[str, str]
) -> tuple[Tokenizer, dict[str, str]] | None:
    """Return the tokenizer of a file, and bos_token, eos_token and the like as text; None if the file is not
    SentencePiece's.

    settings: the content of tokenizer_config.json. special: the tokens that it names, which override the file's.
    Raises UnusableFile if its ids would differ from SentencePiece's, ImportError if the packages are not installed.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    data = path.read_bytes()
    try:
        proto = ModelProto.FromString(data)
        reference = SentencePieceProcessor(model_proto=data)
    except (DecodeError, RuntimeError):
        return None
    numbers = {"bos_token": reference.bos_id(), "eos_token": reference.eos_id(), "unk_token": reference.unk_id()}
    own = {name: reference.id_to_piece(number) for name, number in numbers.items() if number >= 0}
    special = {**own, **special}
    legacy = settings.get("legacy") is not False
    tokenizer = _rebuilt(proto, path, "always" if legacy else "first")
    begins, ends = bool(settings.get("add_bos_token", "bos_token" in own)), bool(settings.get("add_eos_token", False))
    put_around(tokenizer, special.get("bos_token") if begins else None, special.get("eos_token") if ends else None)
    _check(tokenizer, reference, path, legacy=legacy, maps=bool(proto.normalizer_spec.precompiled_charsmap))
    return tokenizer, special


def _rebuilt(proto: Any, path: Path, prefix: Prefix) -> Tokenizer:
    """Build the tokenizer of a file. prefix: the rule for inserting spaces, if the file requests any."""
    kind, spec = proto.trainer_spec.model_type, proto.normalizer_spec
    if kind not in (UNIGRAM, BPE) or proto.trainer_spec.treat_whitespace_as_suffix or not spec.escape_whitespaces:
        raise UnusableFile(f"{path} is of a kind of SentencePiece's that is not read; {CONVERT}")
    pieces = Pieces(
        [piece.piece for piece in proto.pieces],
        [piece.type for piece in proto.pieces],
        [piece.score for piece in proto.pieces],
    )
    normalizers: list[Step] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        removed = {r"\A +|[ ▁]+\z": "", " {2,}": " "}  # of all white space, spaces alone
        normalizers += [
            {"type": "Replace", "pattern": {"Regex": each}, "content": new} for each, new in removed.items()
        ]
    make = sentencepiece_bpe if kind == BPE else sentencepiece_unigram
    return make(pieces, prefix=prefix if spec.add_dummy_prefix else "never", normalizers=normalizers)


CONVERT = "serve a folder with a tokenizer.json instead, which most models have."


def _check(tokenizer: Tokenizer, reference: Any, path: Path, *, legacy: bool, maps: bool) -> None:
    """Compare the tokenizer with SentencePiece. legacy: transformers' term for a tokenizer that inserts a space before
    every text; others insert none before a space. maps: characters are replaced by a table, which `tokenizers` applies
    to whole graphemes and SentencePiece to the longest entries."""
    different = [
        text for text in PROBES if tokenizer.encode(text, add_special_tokens=False).ids != reference.encode(text)
    ]
    refused = [text for text in different if (legacy or text[:1].strip("▁ ")) and (text.isascii() or not maps)]
    if refused:
        raise UnusableFile(
            f"{path} cannot be served: of {len(PROBES)} texts, {len(refused)} would have other tokens than "
            f"SentencePiece gives them, {refused[0]!r} for one; {CONVERT}"
        )
    if maps:
        logger.warning(
            "%s replaces characters by a table (precompiled_charsmap): combined characters may have other tokens than "
            "SentencePiece gives them, as with transformers; %d of %d texts have.",
            *(path, len(different), len(PROBES)),
        )
    elif different:
        logger.warning(
            "%s: texts that begin with a space have other tokens than SentencePiece gives them (%r for one), as "
            '"legacy": false in tokenizer_config.json asks.',
            *(path, different[0]),
        )
