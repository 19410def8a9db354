"""Grammar masks on a batch, by how much they allow.

Most masks allow a handful of tokens, where a grammar wants a key, a quote or a bracket, or forbid a handful, within
strings and free text. To unpack a large vocabulary's bits for those, and to sample from all of it, would cost more than
parts of the model do; so on the CPU the logits of few choices are gathered, and the sampler sees nothing else, and few
bans are put in their places one by one. Either way what a row does depends on its own mask alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_server.generation.device import send

FEW = 256
"""Choices up to which a row is sampled from these alone. Every such row is padded to as many, so that what is summed
up does not depend on its neighbours."""
FEW_BANS = 128
"""A mask that forbids no more than one token of so many has few bans."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Masks of few choices: their numbers, and `ids` `[numbers, FEW]` int64, ascending, of which those that are `real`
    are allowed; the others stand for none."""

    numbers: list[int]
    ids: Tensor
    real: Tensor

    def of(self, logits: Tensor, places: list[int]) -> Tensor:
        """The choices' logits `[numbers, FEW]`, from those of the whole batch, in which they stand at `places`."""
        return logits[torch.tensor(places)[:, None], self.ids].masked_fill_(~self.real, -torch.inf)

    def tokens(self, picked: Tensor) -> Tensor:
        """The ids of what was picked among the choices, `[numbers]`."""
        return self.ids.gather(1, picked[:, None])[:, 0]


@dataclass(frozen=True, slots=True)
class Bans:
    """Masks of few bans: their numbers, and each banned id with the number of its mask, `[bans]` int64 each."""

    numbers: list[int]
    masks: Tensor
    ids: Tensor

    def put(self, logits: Tensor, rows: list[int]) -> None:
        """Forbid them in place; `rows` are the places of all masks in the batch."""
        logits.index_put_((torch.tensor(rows)[self.masks], self.ids), logits.new_tensor(-torch.inf))


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks for some rows of a batch: `bits` `[masks, ceil(vocabulary / 32)]` int32, a set bit allows the token, least
    significant first; `rows` are their places in the batch. `few`, `open`: those that are made easier."""

    bits: Tensor
    rows: list[int]
    few: Choices | None = None
    open: Bans | None = None

    @property
    def places(self) -> list[int]:
        """Places in the batch of those with few choices."""
        return [] if self.few is None else [self.rows[number] for number in self.few.numbers]

    def apply(self, logits: Tensor) -> Tensor:
        """The logits, changed in place, with everything that is not allowed at minus infinity; rows with few choices
        are left as they are."""
        easy = {number for kind in (self.few, self.open) if kind is not None for number in kind.numbers}
        if self.open is not None:
            self.open.put(logits, self.rows)
        left = [number for number in range(len(self.rows)) if number not in easy]
        rows = [self.rows[number] for number in left]
        if not rows:
            return logits
        banned = _banned(self.bits[left] if easy else self.bits, logits)
        if rows == list(range(len(logits))):
            return logits.masked_fill_(banned, -torch.inf)
        if logits.device.type == "cpu":
            for place, row in enumerate(rows):
                logits[row].masked_fill_(banned[place], -torch.inf)
            return logits
        index = send(rows, torch.int64, logits.device)
        return logits.index_copy_(0, index, logits[index].masked_fill_(banned, -torch.inf))


def _banned(bits: Tensor, logits: Tensor) -> Tensor:
    """`[masks, vocabulary]`, True for what is not allowed; ids beyond the mask are not."""
    size = logits.shape[1]
    if logits.device.type == "cpu":  # many times faster than shifts, which have no kernel of their own there
        unpacked = np.unpackbits(~bits.numpy().view(np.uint8), axis=1, bitorder="little")
        banned = torch.from_numpy(unpacked).view(torch.bool)
    else:
        bits = bits.to(logits.device, non_blocking=True)
        places = torch.arange(32, dtype=torch.int32, device=logits.device)
        banned = (((bits[:, :, None] >> places) & 1) == 0).flatten(1)
    missing = size - banned.shape[1]
    return torch.nn.functional.pad(banned, (0, missing), value=True) if missing > 0 else banned[:, :size]


def sorted_out(bits: Tensor, rows: list[int], vocab_size: int) -> Masks:
    """Masks on the CPU, with those that are easy found. vocab_size: the width of the logits; the bits beyond it are
    cleared."""
    words = bits.numpy().view(np.uint32)
    if vocab_size % 32:
        words[:, -1] &= np.uint32((1 << vocab_size % 32) - 1)
    counts = np.bitwise_count(words).sum(1, dtype=np.int32)
    few = np.flatnonzero((counts > 0) & (counts <= FEW))
    opened = np.flatnonzero(counts > max(vocab_size - vocab_size // FEW_BANS, FEW))
    return Masks(bits, rows, _choices(words, counts, few), _bans(words, opened, vocab_size))


def _choices(words: NDArray[np.uint32], counts: NDArray[np.int32], numbers: NDArray[np.intp]) -> Choices | None:
    if not len(numbers):
        return None
    _, found = _set_bits(words[numbers])
    ids = np.zeros((len(numbers), FEW), dtype=np.int64)
    real = np.arange(FEW) < counts[numbers, None]
    ids[real] = found
    return Choices(numbers.tolist(), torch.from_numpy(ids), torch.from_numpy(real))


def _bans(words: NDArray[np.uint32], numbers: NDArray[np.intp], vocab_size: int) -> Bans | None:
    if not len(numbers):
        return None
    rows, ids = _set_bits(~words[numbers])
    inside = ids < vocab_size
    return Bans(numbers.tolist(), torch.from_numpy(numbers[rows[inside]]), torch.from_numpy(ids[inside]))


def _set_bits(words: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and number of each bit that is set, in order."""
    at = np.flatnonzero(words != 0)
    single = np.unpackbits(words.reshape(-1)[at].view(np.uint8), bitorder="little").view(np.bool_)
    flat = np.flatnonzero(single)
    rows, columns = np.divmod(at[flat >> 5], words.shape[1])
    return rows, columns * 32 + (flat & 31)
