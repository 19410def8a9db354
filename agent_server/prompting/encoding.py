"""Encoding long texts without holding up the process: refused by their length first, then with the interpreter free."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any

from tokenizers import Encoding, Tokenizer

from agent_server.engine.protocol import EngineError

LONG = 256 * 1024
"""Characters. The tokenizer needs up to 0.6 KB of memory for each, so texts longer than this take turns."""
SHORT = 2048
"""Characters that are encoded in about a millisecond, whatever they are."""
COMPOSED = 4
"""Characters that a normal form makes one of, at most (U+1FA7 is four in the canonical decomposition)."""
_turn = threading.Lock()


def encoded(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool = False) -> Encoding:
    """`tokenizer.encode` that lets other threads run meanwhile: only `encode_batch` gives the interpreter free. A run
    of white space is one piece to a tokenizer, and a million characters of it take seconds.

    Raises EngineError("overloaded") for a long text while another is being encoded.
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
    """glibc keeps what was freed in small pieces, which after a long encoding is most of a gigabyte."""
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except AttributeError:  # another C library
            return


def characters_per_token(tokenizer: Tokenizer) -> int | None:
    """The most characters of a text that one token can stand for, so that a text of n characters has at least
    n / this many tokens. None where white space or unknown characters can vanish, and no such number exists."""
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
    """Whether all characters of a text are in the pieces that this step cuts it into."""
    if pre_tokenizer["type"] == "Split":
        return bool(pre_tokenizer["behavior"] != "Removed")
    return pre_tokenizer["type"] in ("ByteLevel", "Metaspace", "Digits")
