"""Random numbers by counting: the number for a seed and a position is always the same, whatever else is in the batch.

SplitMix64 (Steele, Lea, Flood 2014) on int64 tensors, whose multiplication wraps as it does on uint64.
"""

from __future__ import annotations

import torch
from torch import Tensor

MASK = (1 << 64) - 1


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


GOLDEN = signed(0x9E3779B97F4A7C15)
FIRST = signed(0xBF58476D1CE4E5B9)
SECOND = signed(0x94D049BB133111EB)


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """float32 in (0, 1], of 24 bits, for each pair of a seed and a position (int64)."""
    state = _mix(seeds) + (positions + 1) * GOLDEN
    return ((_mix(state) >> 40) & 0xFFFFFF).add(1).to(torch.float32) * 2.0**-24


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * FIRST
    state = (state ^ _shift(state, 27)) * SECOND
    return state ^ _shift(state, 31)


def _shift(state: Tensor, bits: int) -> Tensor:
    """A logical shift to the right."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
