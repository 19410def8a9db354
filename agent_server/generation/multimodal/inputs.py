"""What a sequence with pictures or sounds carries beside its tokens."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agent_server.generation.multimodal.placing import PlacedPrompt, Span


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
