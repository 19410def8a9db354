"""A prompt's pictures and sounds: where their placeholders are, and what a sequence carries besides its tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class TokenWords(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def is_control(self, token: int) -> bool: ...


class Expansion(Protocol):
    """What stands for a picture or a sound. digest: of its content. ids: its tokens. places: those of them that
    features stand in for, by their index."""

    @property
    def digest(self) -> bytes: ...

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def places(self) -> Sequence[int]: ...


Expanded = TypeVar("Expanded", bound=Expansion)


class Misplaced(ValueError):
    """The prompt has not one placeholder for each picture or sound. placeholder: of which kind."""

    def __init__(self, placeholder: int, found: int, given: int) -> None:
        super().__init__(f"the prompt has {found} places for {given}")
        self.placeholder, self.found, self.given = placeholder, found, given


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` of the prompt belong to picture or sound number `item`; `places` are those of them that
    its features stand in for."""

    item: int
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
    """ids: what the model reads. keys: the same, with numbers made of the content in the places of a picture or sound,
    which is what prefix caches compare: equal for equal ones, and different from every other's and every token's."""

    ids: list[int]
    keys: list[int]
    spans: list[Span]


def lay_out(
    prompt: Sequence[int], given: Mapping[int, Sequence[Expanded]], words: TokenWords
) -> tuple[PlacedPrompt, list[Expanded]]:
    """The prompt with each placeholder replaced by the tokens of what it stands for, and these in the prompt's order.
    given: those of a kind in their order, by the kind's placeholder. Text at an edge (Gemma's line breaks) is tokenised
    together with the text next to it, as it would be in one text. Raises Misplaced."""
    found = _in_order(prompt, given)
    ids: list[int] = []
    keys: list[int] = []
    spans: list[Span] = []
    text: list[list[int]] = []
    at = 0
    for number, (index, item) in enumerate(found):
        # From the first control token to behind the last one; what is before and behind is text.
        controls = [index for index, token in enumerate(item.ids) if words.is_control(token)]
        first, last = (controls[0], controls[-1] + 1) if controls else (0, len(item.ids))
        ids += _joined([*text, list(prompt[at:index]), list(item.ids[:first])], words)
        keys += ids[len(keys) :]
        core, offsets = item.ids[first:last], [place - first for place in item.places]
        spans.append(Span(number, len(ids), len(ids) + len(core), tuple(len(ids) + offset for offset in offsets)))
        ids += core
        keys += _keyed(core, item.digest, offsets)
        text, at = [list(item.ids[last:])], index + 1
    ids += _joined([*text, list(prompt[at:])], words)
    keys += ids[len(keys) :]
    return PlacedPrompt(ids, keys, spans), [item for _, item in found]


def _in_order(prompt: Sequence[int], given: Mapping[int, Sequence[Expanded]]) -> list[tuple[int, Expanded]]:
    """Each with its placeholder's index. Raises Misplaced."""
    found: list[tuple[int, Expanded]] = []
    for placeholder, items in given.items():
        places = [index for index, token in enumerate(prompt) if token == placeholder]
        if len(places) != len(items):
            raise Misplaced(placeholder, len(places), len(items))
        found += zip(places, items, strict=True)
    return sorted(found, key=lambda each: each[0])


def _keyed(core: Sequence[int], digest: bytes, offsets: Sequence[int]) -> list[int]:
    keys = list(core)
    for offset in offsets:
        keys[offset] = content_key(digest, offset)
    return keys


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


@dataclass(frozen=True, eq=False, slots=True)
class PreparedMedia:
    """A picture ("image") or a sound ("audio") as its tower takes it. digest: of its content. ids: the tokens that
    stand for it. places: those of them that features stand in for, by their index. tensors: the arguments of the
    model's forward, those of its `get_image_features` for a picture."""

    kind: str
    digest: bytes
    ids: tuple[int, ...]
    places: tuple[int, ...]
    tensors: dict[str, Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class MediaInputs:
    """items: in the prompt's order. positions: `[3, prompt]` int64, for models that count pictures in three dimensions
    (M-RoPE, Qwen2-VL), else None. shift: what is added to a token's index behind the prompt. whole: a picture's tokens
    see each other (Gemma 3), so a chunk never ends within one."""

    layout: PlacedPrompt
    items: list[PreparedMedia]
    positions: Tensor | None = None
    shift: int = 0
    whole: bool = False
    _blocks: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.whole:
            pictures = (span for span in self.layout.spans if self.items[span.item].kind == "image")
            self._blocks.extend(block for span in pictures for block in span.blocks())

    @property
    def end(self) -> int:
        """The first token behind the last picture or sound."""
        return self.layout.spans[-1].end

    def length(self, start: int, length: int) -> int:
        """The length of a chunk from `start` that may have `length` tokens: it ends before a picture that it would cut,
        or behind the one that it begins with."""
        if not length or not self._blocks:
            return length
        index = bisect_right(self._blocks, start + length - 1, key=lambda block: block[0]) - 1
        if index < 0:
            return length
        first, last = self._blocks[index]
        if not first < start + length < last:
            return length
        return first - start if first > start else last - start

    def blocks(self, start: int, end: int) -> list[tuple[int, int]]:
        """The runs of tokens that see each other and have some among `start` to `end`."""
        return [block for block in self._blocks if block[0] < end and block[1] > start]

    def spans(self, start: int, end: int) -> list[Span]:
        """The pictures and sounds with tokens among `start` to `end`."""
        return [span for span in self.layout.spans if span.start < end and span.end > start]

    def ids(self, start: int, end: int) -> list[int]:
        return self.layout.ids[start:end]

    def places(self, start: int, end: int) -> Tensor:
        """Positions of tokens: `[3, tokens]`; behind the prompt all three are the same."""
        plain = torch.arange(start, end) + self.shift
        plain = plain.expand(3, -1)
        if self.positions is None or start >= self.positions.shape[1]:
            return plain
        own = self.positions[:, start:end]
        return torch.cat([own, plain[:, own.shape[1] :]], 1)
