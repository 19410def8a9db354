"""Slices of a text for tokenizers like SentencePiece, which do not split text into words first.

Llama 2, Mistral and Gemma write a space as `▁` and merge pieces over the whole text. If no piece of the vocabulary has
a `▁` after another character, no merge crosses a space, so the text on either side of it is encoded independently (BPE
merges by rank, and ranks are compared among neighbours that may merge).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

SPACE = "▁"


def space_to_drop(tokenizer: Tokenizer) -> int | None:
    """Return how many spaces are omitted before a slice, 0 or 1, since the tokenizer may add one itself. None if texts
    cannot be cut at spaces."""
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    model, splitter = spec["model"], spec.get("pre_tokenizer")
    steps = _flat(spec.get("normalizer"))
    spaces = {"String": " "}
    replacements = [
        step for step in steps if step["type"] == "Replace" and step["pattern"] == spaces and step["content"] == SPACE
    ]
    prepends = [step for step in steps if step == {"type": "Prepend", "prepend": SPACE}]
    metaspace = splitter is not None and splitter["type"] == "Metaspace" and splitter["replacement"] == SPACE
    # Gemma's pre-tokenizer splits at spaces, which its normalizer has already replaced.
    splits_nothing = splitter is None or (splitter["type"] == "Split" and splitter["pattern"] == spaces)
    sound = (
        model["type"] == "BPE"
        and not any(model.get(name) for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"))
        and len(replacements) + len(prepends) == len(steps)
        and (metaspace or (bool(replacements) and splits_nothing))
        and SPACE in model["vocab"]
        and not any(SPACE in piece.lstrip(SPACE) for piece in model["vocab"])
        and all(map(_is_independent_of_spaces, spec.get("added_tokens") or []))
    )
    return len(prepends) if sound and len(prepends) <= 1 else None


def _flat(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    inner = normalizer.get("normalizers")
    return [normalizer] if inner is None else [step for each in inner for step in _flat(each)]


def _is_independent_of_spaces(token: dict[str, Any]) -> bool:
    """Return whether an added token cannot involve a space between two letters."""
    content = token["content"]
    plain = not (token["lstrip"] or token["rstrip"] or token["single_word"])
    return plain and " " not in content and not (content[:1].isalnum() or content[-1:].isalnum())


def pieces(text: str, size: int, drop: int) -> Iterator[tuple[int, str]]:
    """Yield (start, piece) for the pieces of a text, cut at spaces between two letters or digits. Each has at most
    `size` characters, or more if there is no such space."""
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
