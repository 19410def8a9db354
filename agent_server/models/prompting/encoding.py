"""Encodes long texts without blocking other threads, and derives a lower bound of a text's tokens from its length."""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
import threading
from collections.abc import Collection
from typing import Any

import msgspec
from tokenizers import Encoding, Tokenizer

from agent_server.engine_protocol.protocol import EngineError, too_long
from agent_server.models.prompting.space_slices import pieces, space_to_drop

LONG = 256 * 1024
"""Characters above which only one text is encoded at a time: the tokenizer needs up to 0.6 KB for each character."""
SHORT = 2048
"""Characters up to which any text is encoded in about a millisecond."""
COUNTED_CHARACTERS = 64
"""Limit on the length of a text that need not fit into the context, because it is only counted or will be cut: this
many characters for each token of the context. Only a run of one character averages as many in a token."""
COMPOSED = 4
"""The maximum number of characters that a normal form composes into one (U+1FA7 decomposes into four)."""
SLICE = 64 * 1024
"""Characters in a slice of a text that is encoded in slices."""
OPEN_WORDS = 64
"""Words at a slice's end that are encoded again with the next slice. A control token that was cut has fewer
characters."""
LOOKBEHINDS = ("(?<", "\\b", "\\B", "\\A", "\\G", "^")
"""Constructs with which a regular expression looks at the text before a match; `[^` is not one."""
KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits")
"""Types of pre-tokenizers that drop no characters."""
_long_text_lock = threading.Lock()


class TextTokens(msgspec.Struct, frozen=True):
    """The tokens of a text. spans: index of a marked token → the characters (start, end) that it stands for."""

    ids: list[int]
    spans: dict[int, tuple[int, int]]


class Slicing(msgspec.Struct, frozen=True):
    """How long texts are cut into slices. drop: cut at spaces and omit so many of them before a slice; None to cut at
    words."""

    drop: int | None = None

    def __bool__(self) -> bool:
        return True


def encoded(
    tokenizer: Tokenizer,
    text: str,
    *,
    marked: Collection[int] = (),
    add_special_tokens: bool = False,
    sliced: Slicing | bool | None = None,
    most: int | None = None,
) -> TextTokens:
    """Encode a text of any length like `tokenizer.encode`, while other threads can run.

    `encode_batch` releases the GIL and `encode` does not. That matters because a tokenizer treats a run of white space
    as one piece and needs seconds for a million such characters. Its result is read and freed with the GIL held, 0.1 s
    for a million tokens, so long texts are encoded in slices if the tokenizer is `sliced`, see `can_be_sliced`.

    marked: ids of tokens whose positions in the text are returned. most: number of tokens after which no further slices
    of a long text are encoded.
    Raises EngineError("overloaded") for a very long text while another one is being encoded, and
    EngineError("context_length_exceeded") for more than `most` tokens.
    """
    if len(text) <= SHORT:
        return _read(tokenizer.encode(text, add_special_tokens=add_special_tokens), marked)
    if len(text) <= LONG:
        return _read(tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0], marked)
    if not _long_text_lock.acquire(blocking=False):
        raise EngineError("overloaded", "Another very long prompt is being encoded; try again.", retryable=True)
    try:
        surrounding = _surrounding_tokens(tokenizer) if add_special_tokens else ([], [])
        if sliced and surrounding is not None:
            if isinstance(sliced, Slicing) and sliced.drop is not None:
                encoding = _at_spaces(tokenizer, text, marked, sliced.drop, most)
            else:
                encoding = _in_slices(tokenizer, text, marked, most)
            before, after = surrounding
            spans = {place + len(before): span for place, span in encoding.spans.items()}
            return TextTokens(before + encoding.ids + after, spans)
        return _read(tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0], marked)
    finally:
        # glibc retains small freed blocks, most of a gigabyte after a long encoding. Other C libraries have no trim.
        with contextlib.suppress(AttributeError):
            if sys.platform == "linux":
                ctypes.CDLL(None).malloc_trim(0)
        _long_text_lock.release()


def _read(encoding: Encoding, marked: Collection[int]) -> TextTokens:
    ids = list(encoding.ids)
    return TextTokens(ids, {place: _span(encoding, place) for place, number in enumerate(ids) if number in marked})


def _span(encoding: Encoding, place: int) -> tuple[int, int]:
    """Return one token's characters. `Encoding.offsets` would create a pair for every token, with the GIL held."""
    span: tuple[int, int] | None = encoding.token_to_chars(place)
    return span or (0, 0)


def _surrounding_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    """Return the special tokens that a tokenizer puts before and after a text; None if it does something else."""
    plain = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return None


def _check_most(ids: list[int], most: int | None) -> None:
    if most is not None and len(ids) > most:
        raise EngineError("context_length_exceeded", too_long(len(ids), most), param="messages")


def _in_slices(tokenizer: Tokenizer, text: str, marked: Collection[int], most: int | None) -> TextTokens:
    """Encode a text in slices cut at words. The words at a slice's end are left to the next slice, since the text after
    them may change their tokens."""
    ids: list[int] = []
    spans: dict[int, tuple[int, int]] = {}
    start, size = 0, SLICE
    while True:
        last = start + size >= len(text)
        encoding = tokenizer.encode_batch([text[start : start + size]], add_special_tokens=False)[0]
        tokens, length = (len(encoding), 0) if last else _whole_words(encoding)
        if not tokens:  # the slice has too few words
            size *= 4
            continue
        for place, number in enumerate(encoding.ids[:tokens], len(ids)):
            if number in marked:
                begin, end = _span(encoding, place - len(ids))
                spans[place] = begin + start, end + start
        ids += encoding.ids[:tokens]
        _check_most(ids, most)
        if last:
            return TextTokens(ids, spans)
        start, size = start + length, SLICE


def _at_spaces(tokenizer: Tokenizer, text: str, marked: Collection[int], drop: int, most: int | None) -> TextTokens:
    ids: list[int] = []
    spans: dict[int, tuple[int, int]] = {}
    for start, piece in pieces(text, SLICE, drop):
        part = _read(tokenizer.encode_batch([piece], add_special_tokens=False)[0], marked)
        spans |= {place + len(ids): (begin + start, end + start) for place, (begin, end) in part.spans.items()}
        ids += part.ids
        _check_most(ids, most)
    return TextTokens(ids, spans)


def _whole_words(encoding: Encoding) -> tuple[int, int]:
    """Return how many leading tokens and characters of a slice do not depend on the text after it; (0, 0) if there are
    too few words."""
    last = encoding.token_to_word(len(encoding) - 1) if len(encoding) else None
    for word in range((last or 0) - OPEN_WORDS, 0, -1):
        if (tokens := encoding.word_to_tokens(word)) is not None and tokens[0]:
            start, _ = _span(encoding, tokens[0])
            return (tokens[0], start) if _span(encoding, tokens[0] - 1)[1] == start else (0, 0)
    return 0, 0


def can_be_sliced(tokenizer: Tokenizer) -> Slicing | None:
    """Return how texts can be encoded in slices with the same tokens as the whole text, or None if they cannot."""
    # They can be cut at words if the tokenizer splits text into words by looking ahead only, encodes each word
    # separately, and adds nothing in front.
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    tokens, steps = spec.get("added_tokens") or [], _steps(spec.get("pre_tokenizer"), "pretokenizers")
    splits_words = (
        spec["model"]["type"] == "BPE"
        and all(step["type"] in ("NFC", "NFKC") for step in _steps(spec.get("normalizer"), "normalizers"))
        and any(step["type"] == "Split" or step.get("use_regex") for step in steps)
        and all(map(_looks_ahead, steps))
        and not any(token["lstrip"] or token["rstrip"] or token["single_word"] for token in tokens)
        and max((len(token["content"]) for token in tokens), default=0) < OPEN_WORDS
    )
    if splits_words:
        return Slicing()
    drop = space_to_drop(tokenizer)
    return None if drop is None else Slicing(drop=drop)


def _looks_ahead(pre_tokenizer: dict[str, Any]) -> bool:
    if pre_tokenizer["type"] == "Split":
        pattern = pre_tokenizer["pattern"].get("Regex", "(?<")
        return pre_tokenizer["behavior"] == "Isolated" and not any(
            word in pattern.replace("[^", "[") for word in LOOKBEHINDS
        )
    return pre_tokenizer["type"] == "Digits" or (
        pre_tokenizer["type"] == "ByteLevel" and not pre_tokenizer["add_prefix_space"]
    )


def characters_per_token(tokenizer: Tokenizer) -> int | None:
    """Return the maximum number of characters that one token can stand for, so that a text of n characters has at least
    n / that many tokens. None if the tokenizer can drop white space or unknown characters, since there is no such
    number then."""
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    model, added = spec["model"], spec.get("added_tokens") or []
    normalizers = _steps(spec.get("normalizer"), "normalizers")
    pieces = _steps(spec.get("pre_tokenizer"), "pretokenizers")
    bytewise = model.get("byte_fallback") or any(step["type"] == "ByteLevel" for step in (*normalizers, *pieces))
    if model["type"] != "BPE" or not bytewise or any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    composed = 1
    for step in normalizers:
        if step["type"] in ("NFC", "NFKC"):
            composed = COMPOSED
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None or len(step["content"]) < len(pattern):  # it may shorten the text
                return None
        elif step["type"] not in ("Prepend", "Lowercase", "NFD", "NFKD", "ByteLevel"):
            return None
    for step in pieces:  # none may drop characters
        if step["behavior"] == "Removed" if step["type"] == "Split" else step["type"] not in KEEPING_PRE_TOKENIZERS:
            return None
    return composed * max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)


def _steps(part: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    return [step for each in part[inner] for step in _steps(each, inner)] if inner in part else [part]
