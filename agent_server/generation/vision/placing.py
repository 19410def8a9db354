"""A prompt with a placeholder for each picture → the prompt that the model reads. Plain data, no tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol


class TokenWords(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def is_control(self, token: int) -> bool: ...


class Misplaced(ValueError):
    """The prompt has not one placeholder for each picture."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` of the prompt belong to picture number `picture`; `places` are those of them that its
    features stand in for."""

    picture: int
    start: int
    end: int
    places: tuple[int, ...]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """The runs of neighbouring places, each as (start, end)."""
        begin = previous = self.places[0]
        for place in self.places[1:]:
            if place != previous + 1:
                yield begin, previous + 1
                begin = place
            previous = place
        yield begin, previous + 1


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """ids: what the model reads. keys: the same, with numbers made of a picture's content in its places, which is what
    prefix caches compare: equal for equal pictures, and different from every other picture's and every token's."""

    ids: list[int]
    keys: list[int]
    spans: list[Span]


def lay_out(
    prompt: Sequence[int],
    placeholder: int,
    expansions: Sequence[Sequence[int]],
    digests: Sequence[bytes],
    feature: int,
    words: TokenWords,
) -> PlacedPrompt:
    """The prompt with each `placeholder` replaced by its picture's tokens. feature: the token in whose places features
    stand. Text at a picture's edges (Gemma's line breaks) is tokenised together with the text next to it, as it would
    be in one text. Raises Misplaced."""
    found = [index for index, token in enumerate(prompt) if token == placeholder]
    if len(found) != len(expansions):
        raise Misplaced(f"the prompt has {len(found)} places for {len(expansions)} pictures")
    ids: list[int] = []
    keys: list[int] = []
    spans: list[Span] = []
    text: list[list[int]] = []
    at = 0
    for number, index in enumerate(found):
        lead, core, trail = _parted(expansions[number], words)
        ids += _joined([*text, list(prompt[at:index]), lead], words)
        keys += ids[len(keys) :]
        places = tuple(len(ids) + offset for offset, token in enumerate(core) if token == feature)
        spans.append(Span(number, len(ids), len(ids) + len(core), places))
        ids += core
        keys += _keyed(core, digests[number], feature)
        text, at = [trail], index + 1
    ids += _joined([*text, list(prompt[at:])], words)
    keys += ids[len(keys) :]
    return PlacedPrompt(ids, keys, spans)


def _parted(expansion: Sequence[int], words: TokenWords) -> tuple[list[int], list[int], list[int]]:
    """What is text before the first control token, what is behind the last one, and what lies between."""
    controls = [index for index, token in enumerate(expansion) if words.is_control(token)]
    if not controls:
        return [], list(expansion), []
    first, last = controls[0], controls[-1] + 1
    return list(expansion[:first]), list(expansion[first:last]), list(expansion[last:])


def _keyed(core: Sequence[int], digest: bytes, feature: int) -> list[int]:
    return [content_key(digest, offset) if token == feature else token for offset, token in enumerate(core)]


def content_key(digest: bytes, offset: int) -> int:
    """A number below every token's and the scheduler's own, of 62 bits of a hash."""
    value = blake2b(digest + offset.to_bytes(4, "little"), digest_size=8).digest()
    return -2 - (int.from_bytes(value, "little") >> 2)


def _joined(pieces: list[list[int]], words: TokenWords) -> list[int]:
    joined = pieces[0]
    for piece in pieces[1:]:
        joined = _join(joined, piece, words)
    return joined


def _join(left: list[int], right: list[int], words: TokenWords) -> list[int]:
    """Two pieces of a prompt as one: the text where they meet is tokenised anew. It stays as it is where the tokenizer
    does not give the same tokens back for it, or would make a control token of it."""
    start = next((i + 1 for i in range(len(left) - 1, -1, -1) if words.is_control(left[i])), 0)
    end = next((i for i, token in enumerate(right) if words.is_control(token)), len(right))
    before, behind = left[start:], right[:end]
    if not before or not behind:
        return left + right
    texts = words.decode(before), words.decode(behind)
    anew = words.encode(texts[0] + texts[1])
    faithful = words.encode(texts[0]) == before and words.encode(texts[1]) == behind
    if not faithful or any(words.is_control(token) for token in anew):
        return left + right
    return [*left[:start], *anew, *right[end:]]
