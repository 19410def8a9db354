"""Grammar masks on a batch, applied according to how many tokens they allow.

Most masks allow only a handful of tokens, where a grammar requires a key, a quote or a bracket, or forbid only a
handful, within strings and free text. Unpacking the bits of a large vocabulary for those, and sampling from all of it,
would cost more than parts of the model. So on the CPU the logits of few choices are gathered and the sampler gets only
those, and few bans are written one by one. In both cases a row depends only on its own mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agent_server.generation.device import send

FEW = 256
"""A row with up to this many choices is sampled only from them. Every such row is padded to this width, so that its
sums do not depend on its neighbours."""
FEW_BANS = 128
"""A mask has few bans if it forbids at most one in this many tokens."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The masks with few choices: their numbers, and the allowed `ids` `[numbers, FEW]` int64, ascending. `real`, bool
    of the same shape, is False for padding."""

    numbers: list[int]
    ids: Tensor
    real: Tensor

    def of(self, logits: Tensor, places: list[int]) -> Tensor:
        """Gather the choices' logits `[numbers, FEW]` from the batch, where their rows are at `places`."""
        return logits[torch.tensor(places)[:, None], self.ids].masked_fill_(~self.real, -torch.inf)

    def tokens(self, picked: Tensor) -> Tensor:
        """Return the ids `[numbers]` of the choices with these indices."""
        return self.ids.gather(1, picked[:, None])[:, 0]


@dataclass(frozen=True, slots=True)
class Bans:
    """The masks with few bans: their numbers, and each banned id with the number of its mask, `[bans]` int64 each."""

    numbers: list[int]
    masks: Tensor
    ids: Tensor

    def put(self, logits: Tensor, rows: list[int]) -> None:
        """Set the banned logits to minus infinity in place. rows: the places of all masks in the batch."""
        logits.index_put_((torch.tensor(rows)[self.masks], self.ids), logits.new_tensor(-torch.inf))


@dataclass(frozen=True, slots=True)
class Masks:
    """Masks for some rows of a batch. bits: `[masks, ceil(vocabulary / 32)]` int32, a set bit allows the token, least
    significant first. rows: their places in the batch. few, open: the masks with few choices and with few bans."""

    bits: Tensor
    rows: list[int]
    few: Choices | None = None
    open: Bans | None = None

    @property
    def places(self) -> list[int]:
        """The places in the batch of the masks with few choices."""
        return [] if self.few is None else [self.rows[number] for number in self.few.numbers]

    def apply(self, logits: Tensor) -> Tensor:
        """Set all logits that are not allowed to minus infinity, in place. Rows with few choices are unchanged."""
        special = {number for kind in (self.few, self.open) if kind is not None for number in kind.numbers}
        if self.open is not None:
            self.open.put(logits, self.rows)
        others = [number for number in range(len(self.rows)) if number not in special]
        rows = [self.rows[number] for number in others]
        if not rows:
            return logits
        bits = self.bits[others] if special else self.bits
        # `[masks, vocabulary]` bool, True for tokens that are not allowed; ids beyond the mask are not.
        size = logits.shape[1]
        if logits.device.type == "cpu":  # many times faster than shifts, which have no vectorised kernel there
            unpacked = np.unpackbits(~bits.numpy().view(np.uint8), axis=1, bitorder="little")
            banned = torch.from_numpy(unpacked).view(torch.bool)
        else:
            bits = bits.to(logits.device, non_blocking=True)
            places = torch.arange(32, dtype=torch.int32, device=logits.device)
            banned = (((bits[:, :, None] >> places) & 1) == 0).flatten(1)
        missing = size - banned.shape[1]
        banned = torch.nn.functional.pad(banned, (0, missing), value=True) if missing > 0 else banned[:, :size]
        if rows == list(range(len(logits))):
            return logits.masked_fill_(banned, -torch.inf)
        if logits.device.type == "cpu":
            for place, row in enumerate(rows):
                logits[row].masked_fill_(banned[place], -torch.inf)
            return logits
        index = send(rows, torch.int64, logits.device)
        return logits.index_copy_(0, index, logits[index].masked_fill_(banned, -torch.inf))


def classify(bits: Tensor, rows: list[int], vocab_size: int) -> Masks:
    """Return masks on the CPU, with those of few choices and of few bans classified. vocab_size: the width of the
    logits; the bits beyond it are cleared."""
    words = bits.numpy().view(np.uint32)
    if vocab_size % 32:
        words[:, -1] &= np.uint32((1 << vocab_size % 32) - 1)
    counts = np.bitwise_count(words).sum(1, dtype=np.int32)
    few = np.flatnonzero((counts > 0) & (counts <= FEW))
    opened = np.flatnonzero(counts > max(vocab_size - vocab_size // FEW_BANS, FEW))
    choices = bans = None
    if len(few):
        _, allowed_ids = _set_bits(words[few])
        ids = np.zeros((len(few), FEW), dtype=np.int64)
        real = np.arange(FEW) < counts[few, None]
        ids[real] = allowed_ids
        choices = Choices(few.tolist(), torch.from_numpy(ids), torch.from_numpy(real))
    if len(opened):
        members, banned_ids = _set_bits(~words[opened])
        inside = banned_ids < vocab_size
        masks = torch.from_numpy(opened[members[inside]])
        bans = Bans(opened.tolist(), masks, torch.from_numpy(banned_ids[inside]))
    return Masks(bits, rows, choices, bans)


def _set_bits(words: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and the column of each set bit, in order."""
    at = np.flatnonzero(words != 0)
    single = np.unpackbits(words.reshape(-1)[at].view(np.uint8), bitorder="little").view(np.bool_)
    flat = np.flatnonzero(single)
    rows, columns = np.divmod(at[flat >> 5], words.shape[1])
    return rows, columns * 32 + (flat & 31)
