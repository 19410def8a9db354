"""Slices of a text for tokenizers in the manner of SentencePiece, which do not split text into words first.

Llama 2, Mistral and Gemma write a space as `▁` and merge pieces over the whole text. Where no piece of the vocabulary
has a `▁` behind another character, no merge reaches across such a place, and so what stands on either side of it is
encoded as if it were alone (BPE merges by rank, and ranks are compared among neighbours that may merge).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

SPACE = "▁"


def space_to_drop(tokenizer: Tokenizer) -> int | None:
    """How many of the spaces before a slice are left out, since the tokenizer puts one there itself: 0 or 1. None if
    its texts cannot be cut at spaces."""
    described: dict[str, Any] = json.loads(tokenizer.to_str())
    model, splitter = described["model"], described.get("pre_tokenizer")
    steps = _flat(described.get("normalizer"))
    written = [step for step in steps if _writes_space(step)]
    prepends = [step for step in steps if step == {"type": "Prepend", "prepend": SPACE}]
    metaspace = splitter is not None and splitter["type"] == "Metaspace" and splitter["replacement"] == SPACE
    sound = (
        model["type"] == "BPE"
        and not any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and len(written) + len(prepends) == len(steps)
        and (metaspace or (bool(written) and (splitter is None or _finds_no_space(splitter))))
        and SPACE in model["vocab"]
        and not any(SPACE in piece.lstrip(SPACE) for piece in model["vocab"])
        and all(map(_stands_apart, described.get("added_tokens") or []))
    )
    return len(prepends) if sound and len(prepends) <= 1 else None


def _flat(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    inner = normalizer.get("normalizers")
    return [normalizer] if inner is None else [step for each in inner for step in _flat(each)]


def _writes_space(step: dict[str, object]) -> bool:
    return bool(step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == SPACE)


def _finds_no_space(splitter: dict[str, object]) -> bool:
    """Gemma's: it splits at spaces, of which the normalizer has left none."""
    return bool(splitter["type"] == "Split" and splitter["pattern"] == {"String": " "})


def _stands_apart(token: dict[str, Any]) -> bool:
    """Whether an added token has nothing to do with a space between two letters."""
    content = token["content"]
    plain = not (token["lstrip"] or token["rstrip"] or token["single_word"])
    return plain and " " not in content and not (content[:1].isalnum() or content[-1:].isalnum())


def pieces(text: str, size: int, drop: int) -> Iterator[tuple[int, str]]:
    """(where it begins, the piece) of a text, each about `size` characters or less, cut at a space between two letters
    or digits; longer where there is no such place."""
    start = 0
    while len(text) - start > size:
        cut = _last_cut(text, start, start + size) or _first_cut(text, start + size)
        if cut is None:
            break
        yield start, text[start:cut]
        start = cut + drop
    yield start, text[start:]


def _last_cut(text: str, start: int, end: int) -> int | None:
    place = text.rfind(" ", start + 1, end)
    while place > start:
        if _is_cut(text, place):
            return place
        place = text.rfind(" ", start + 1, place)
    return None


def _first_cut(text: str, start: int) -> int | None:
    place = text.find(" ", start)
    while place >= 0:
        if _is_cut(text, place):
            return place
        place = text.find(" ", place + 1)
    return None


def _is_cut(text: str, place: int) -> bool:
    return text[place - 1 : place].isalnum() and text[place + 1 : place + 2].isalnum()
