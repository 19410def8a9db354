"""A prompt's pictures and sounds: the expansion of their placeholders, and the data that its sequence has for them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class TokenWords(Protocol):
    """The part of a tokenizer that placing media needs."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...

    def is_control(self, token: int) -> bool: ...


class Expansion(Protocol):
    """The tokens of a picture or sound. digest: the hash of its content. ids: its tokens. places: the indices of the
    tokens that are replaced by features."""

    @property
    def digest(self) -> bytes: ...

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def places(self) -> Sequence[int]: ...


Expanded = TypeVar("Expanded", bound=Expansion)


class MisplacedMedia(ValueError):
    """The prompt does not have one placeholder for each picture or sound."""


@dataclass(frozen=True, slots=True)
class Span:
    """The tokens `start` to `end` of the prompt, which belong to picture or sound number `item`. places: the indices of
    those that are replaced by features."""

    item: int
    start: int
    end: int
    places: tuple[int, ...]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Iterate over the runs of adjacent places, as (start, end)."""
        begin = previous = self.places[0]
        for place in self.places[1:]:
            if place != previous + 1:
                yield begin, previous + 1
                begin = place
            previous = place
        yield begin, previous + 1


@dataclass(frozen=True, slots=True)
class PlacedPrompt:
    """A prompt with expanded placeholders.

    ids: the tokens for the model. keys: the tokens for the prefix cache, with hashes of the content at the places of
    media: equal for equal content, and different from those of any other content and from any token id.
    """

    ids: list[int]
    keys: list[int]
    spans: list[Span]


def lay_out(
    prompt: Sequence[int], media: Mapping[int, Sequence[Expanded]], words: TokenWords
) -> tuple[PlacedPrompt, list[Expanded]]:
    """Replace each placeholder by the tokens of its picture or sound. Return the prompt, and the media in its order.

    media: each kind's media in their order, by the kind's placeholder. Text at an edge of a medium's tokens (Gemma's
    line breaks) is tokenised together with the adjacent text. Raises MisplacedMedia.
    """
    placed: list[tuple[int, Expanded]] = []
    for placeholder, items in media.items():
        indices = [index for index, token in enumerate(prompt) if token == placeholder]
        if len(indices) != len(items):
            raise MisplacedMedia(f"the prompt has {len(indices)} places for {len(items)}")
        placed += zip(indices, items, strict=True)
    placed.sort(key=lambda each: each[0])
    ids: list[int] = []
    keys: list[int] = []
    spans: list[Span] = []
    text: list[list[int]] = []
    at = 0
    for number, (index, item) in enumerate(placed):
        # The core is from the first control token to the last one; before and after it is text.
        controls = [index for index, token in enumerate(item.ids) if words.is_control(token)]
        first, last = (controls[0], controls[-1] + 1) if controls else (0, len(item.ids))
        ids += _joined([*text, list(prompt[at:index]), list(item.ids[:first])], words)
        keys += ids[len(keys) :]
        core, offsets = item.ids[first:last], [place - first for place in item.places]
        spans.append(Span(number, len(ids), len(ids) + len(core), tuple(len(ids) + offset for offset in offsets)))
        ids += core
        keys += core
        for place, offset in zip(spans[-1].places, offsets, strict=True):
            keys[place] = content_key(item.digest, offset)
        text, at = [list(item.ids[last:])], index + 1
    ids += _joined([*text, list(prompt[at:])], words)
    keys += ids[len(keys) :]
    return PlacedPrompt(ids, keys, spans), [item for _, item in placed]


def content_key(digest: bytes, offset: int) -> int:
    """Return a negative number from 62 bits of a hash, below the scheduler's own placeholders."""
    value = blake2b(digest + offset.to_bytes(4, "little"), digest_size=8).digest()
    return -2 - (int.from_bytes(value, "little") >> 2)


def _joined(pieces: list[list[int]], words: TokenWords) -> list[int]:
    """Join the pieces of a prompt, and tokenise the text where they meet again. Its tokens are left alone if the
    tokenizer does not reproduce them from their text, or would turn text into a control token."""
    joined = pieces[0]
    for piece in pieces[1:]:
        start = next((i + 1 for i in range(len(joined) - 1, -1, -1) if words.is_control(joined[i])), 0)
        end = next((i for i, token in enumerate(piece) if words.is_control(token)), len(piece))
        before, after = joined[start:], piece[:end]
        meeting = before + after
        if before and after:
            texts = words.decode(before), words.decode(after)
            together = words.encode(texts[0] + texts[1])
            reproduced = words.encode(texts[0]) == before and words.encode(texts[1]) == after
            if reproduced and not any(words.is_control(token) for token in together):
                meeting = together
        joined = [*joined[:start], *meeting, *piece[end:]]
    return joined


@dataclass(frozen=True, eq=False, slots=True)
class PreparedMedia:
    """A picture (kind "image") or a sound ("audio") as the input of its encoder.

    digest: the hash of its content. ids: its tokens in the prompt. places: the indices of the tokens that are replaced
    by features. tensors: arguments of the model's forward; for a picture, of its `get_image_features`.
    """

    kind: str
    digest: bytes
    ids: tuple[int, ...]
    places: tuple[int, ...]
    tensors: dict[str, Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class MediaInputs:
    """The media of a sequence.

    items: in the prompt's order. positions: `[3, prompt]` int64 for models with three-dimensional positions (M-RoPE,
    Qwen2-VL), else None. shift: added to a token's index for its position after the prompt. bidirectional: a picture's
    tokens attend to each other (Gemma 3), so a chunk never ends within one.
    """

    layout: PlacedPrompt
    items: list[PreparedMedia]
    positions: Tensor | None = None
    shift: int = 0
    bidirectional: bool = False
    _blocks: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.bidirectional:
            pictures = (span for span in self.layout.spans if self.items[span.item].kind == "image")
            self._blocks.extend(block for span in pictures for block in span.blocks())

    @property
    def end(self) -> int:
        """The index of the first token after the last picture or sound."""
        return self.layout.spans[-1].end

    def length(self, start: int, length: int) -> int:
        """Return the length of a chunk at `start` of about `length` tokens: it ends before a picture that it would
        divide, or after the one that it begins with."""
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
        """Return the blocks of tokens with bidirectional attention that overlap `start` to `end`."""
        return [block for block in self._blocks if block[0] < end and block[1] > start]

    def spans(self, start: int, end: int) -> list[Span]:
        """Return the spans that overlap `start` to `end`."""
        return [span for span in self.layout.spans if span.start < end and span.end > start]

    def ids(self, start: int, end: int) -> list[int]:
        return self.layout.ids[start:end]

    def positions_of(self, start: int, end: int) -> Tensor:
        """Return the positions of tokens, `[3, tokens]`. After the prompt all three are equal."""
        plain = torch.arange(start, end) + self.shift
        plain = plain.expand(3, -1)
        if self.positions is None or start >= self.positions.shape[1]:
            return plain
        own = self.positions[:, start:end]
        return torch.cat([own, plain[:, own.shape[1] :]], 1)
