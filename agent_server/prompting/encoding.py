"""Encodes long texts without blocking other threads, and bounds a text's tokens from below by its length."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any

from tokenizers import Encoding, Tokenizer

from agent_server.engine.protocol import EngineError

LONG = 256 * 1024
"""Characters above which only one text is encoded at a time: the tokenizer needs up to 0.6 KB of memory for each."""
SHORT = 2048
"""Characters up to which any text is encoded in about a millisecond."""
COMPOSED = 4
"""The most characters that a normal form composes into one (U+1FA7 decomposes into four)."""
_turn = threading.Lock()


def encoded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> Encoding:
    """`tokenizer.encode` for texts of any length, which lets other threads run meanwhile.

    `encode_batch` releases the interpreter lock and `encode` does not. That matters because a tokenizer takes a run of
    white space as one piece, and needs seconds for a million such characters.

    Raises EngineError("overloaded") for a very long text while another one is being encoded.
    """
    if len(text) <= SHORT:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    if len(text) <= LONG:
        return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
    if not _turn.acquire(blocking=False):
        raise EngineError("overloaded", "Another very long prompt is being encoded; try again.", retryable=True)
    try:
        return tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0]
    finally:
        _give_memory_back()
        _turn.release()


def _give_memory_back() -> None:
    """Return freed memory to the system. glibc keeps small freed blocks, most of a gigabyte after a long encoding."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # a C library other than glibc
            return


def characters_per_token(tokenizer: Tokenizer) -> int | None:
    """The most characters that one token can stand for: a text of n characters has at least n / this many tokens. None
    if the tokenizer can drop white space or unknown characters, since then there is no such number."""
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    model, added = described["model"], described.get("added_tokens") or []
    normalizers = _steps(described.get("normalizer"), "normalizers")
    pieces = _steps(described.get("pre_tokenizer"), "pretokenizers")
    bytewise = model.get("byte_fallback") or any(step["type"] == "ByteLevel" for step in (*normalizers, *pieces))
    if model["type"] != "BPE" or not bytewise or any(token["lstrip"] or token["rstrip"] for token in added):
        return None
    composed = 1
    for step in normalizers:
        if step["type"] in ("NFC", "NFKC"):
            composed = COMPOSED
        elif not _keeps_length(step):
            return None
    if not all(map(_keeps_text, pieces)):
        return None
    return composed * max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)


def _steps(described: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    if described is None:
        return []
    return [step for each in described[inner] for step in _steps(each, inner)] if inner in described else [described]


def _keeps_length(normalizer: dict[str, Any]) -> bool:
    """Whether a text is never shorter after this step."""
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        return pattern is not None and len(normalizer["content"]) >= len(pattern)
    return normalizer["type"] in ("Prepend", "Lowercase", "NFD", "NFKD", "ByteLevel")


def _keeps_text(pre_tokenizer: dict[str, Any]) -> bool:
    """Whether the pieces into which this step splits a text hold all of its characters."""
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in ("ByteLevel", "Metaspace", "Digits")
