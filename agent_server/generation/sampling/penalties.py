"""Repetition, presence and frequency penalties.

Repetition (Keskar et al. 2019) counts the prompt and the output, as transformers does; presence and frequency count
the output alone, as OpenAI describes them. The counts `[rows, vocabulary]` exist only once a request needs them, and
only rows that have a penalty keep theirs up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.generation.device import send
from events.options import SamplingParams

_REPETITION, _PRESENCE, _FREQUENCY = range(3)
NEUTRAL = [1.0, 0.0, 0.0]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of every row, `[rows, vocabulary]`: how often each token was generated, int32, and whether it is in the prompt,
    bool; and the factors `[rows, 3]` float32 of repetition, presence and frequency."""

    generated: Tensor
    prompts: Tensor
    factors: Tensor


class Penalties:
    """Counts and factors of every row."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (rows, vocab_size)
        self._device = device
        self._active: set[int] = set()
        self._factors = torch.tensor([NEUTRAL], device=device).repeat(rows, 1)
        self._counts: Tensor | None = None
        self._prompts: Tensor | None = None

    def set(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        repetition = params.repetition_penalty or 1.0
        if repetition == 1.0 and not params.presence_penalty and not params.frequency_penalty:
            self.clear(row)
            return
        factors = [repetition, params.presence_penalty, params.frequency_penalty]
        self._factors[row] = send(factors, torch.float32, self._device)
        self._active.add(row)
        if self._counts is None or self._prompts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._prompts = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._prompts[row] = False
        self._prompts[row].index_fill_(0, send(list(prompt), torch.int64, self._device), True)
        generated = send(list(output), torch.int64, self._device)
        one = torch.ones(len(output), dtype=torch.int32, device=self._device)
        self._counts[row].zero_().index_add_(0, generated, one)  # a bincount would ask the device for its largest id

    def clear(self, row: int) -> None:
        if row in self._active:
            self._active.discard(row)
            self._factors[row] = send(NEUTRAL, torch.float32, self._device)

    def counts(self, rows: list[int]) -> TokenCounts | None:
        """What counts for these rows; None where none of them has a penalty. Rows without one have neutral factors."""
        if self._counts is None or self._prompts is None or not self._active.intersection(rows):
            return None
        return TokenCounts(self._counts, self._prompts, self._factors)

    def _members(self, rows: list[int]) -> list[int]:
        """Places in the batch of the rows with a penalty."""
        if not self._active:
            return []
        return [place for place, row in enumerate(rows) if row in self._active]

    def apply(self, logits: Tensor, rows: list[int], index: Tensor) -> Tensor:
        """The penalised logits; the same tensor where no row has a penalty, else a new one."""
        members = self._members(rows)
        if not members:
            return logits
        assert self._counts is not None and self._prompts is not None
        places = send(members, torch.int64, self._device)
        at = index.index_select(0, places)
        factors = self._factors.index_select(0, at)
        counts = self._counts.index_select(0, at)
        produced = counts > 0
        seen = produced | self._prompts.index_select(0, at)
        own = logits.index_select(0, places)
        repetition = factors[:, _REPETITION, None]
        own = torch.where(seen, torch.where(own > 0, own / repetition, own * repetition), own)
        own = own - counts * factors[:, _FREQUENCY, None] - produced * factors[:, _PRESENCE, None]
        return logits.index_copy(0, places, own)

    def count(self, rows: list[int], index: Tensor, tokens: Tensor) -> None:
        """The tokens that were picked."""
        members = self._members(rows)
        if not members:
            return
        assert self._counts is not None
        places = send(members, torch.int64, self._device)
        at, picked = index.index_select(0, places), tokens.index_select(0, places)
        one = torch.ones(1, dtype=torch.int32, device=self._device)
        self._counts.index_put_((at, picked), one, accumulate=True)
