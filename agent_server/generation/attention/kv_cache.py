"""The tensors behind the bookkeeping: one arena for keys and one for values per layer.

An arena has `tokens` times `kv_heads` rows of `head_dim` numbers. A page is `[page_size, kv_heads, head_dim]`, as
kernels want it. A slab is `[kv_heads, size, head_dim]`: one head's keys lie end to end, which a CPU reads a quarter
faster. Views turn the arena into neighbouring pages or slabs without a copy.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from agent_server.generation.scheduling.slabs import Copy


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer keeps for a token, and how it looks back.

    window: how many tokens it sees, itself included; None is all. softcap: scores are bounded by it. sinks: the
    softmax has one more, learned, term per head.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


def bytes_per_token(layers: Iterable[LayerShape], dtype: torch.dtype) -> int:
    """Memory that one token takes in all layers."""
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


class KVCache:
    """Arenas of `tokens` tokens for the given layers."""

    def __init__(self, layers: list[LayerShape], tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = layers
        self.tokens = tokens
        self.keys = [_zeros((tokens, layer.kv_heads, layer.key_dim), dtype, device) for layer in layers]
        self.values = [_zeros((tokens, layer.kv_heads, layer.value_dim), dtype, device) for layer in layers]

    def write(self, layer: int, at: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keys and values `[tokens, kv_heads, head_dim]` of new tokens to the places `at` of pages."""
        self.keys[layer].index_copy_(0, at, keys)
        self.values[layer].index_copy_(0, at, values)

    def copy(self, copies: list[Copy]) -> None:
        """Carry out what a SlabMemory ordered, one after the other. Slabs overlap only where one has grown."""
        for copy in copies:
            for arena in (*self.keys, *self.values):
                source = slab(arena, copy.source, copy.source_size)[:, : copy.length]
                target = slab(arena, copy.target, copy.target_size)[:, : copy.length]
                target.copy_(source.clone() if copy.source == copy.target else source)
        copies.clear()


def slab(arena: torch.Tensor, offset: int, size: int) -> torch.Tensor:
    """`[kv_heads, size, head_dim]`"""
    return slabs(arena, offset, size, 1, 0, size)[0]


def slabs(arena: torch.Tensor, offset: int, size: int, count: int, start: int, end: int) -> torch.Tensor:
    """Tokens `start` to `end` of `count` neighbouring slabs, the first at `offset`: `[count, kv_heads, end - start,
    head_dim]`, by one operation, since every layer of every step asks for it."""
    _, heads, dim = arena.shape
    strides = (size * heads * dim, size * dim, dim, 1)
    return arena.as_strided((count, heads, end - start, dim), strides, offset * heads * dim + start * dim)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU as memory that is not taken before it is written. Never uninitialised: what is masked still
    takes part in a product, and nothing times infinity is not nothing. In huge pages where there are such: reading many
    slabs is a fifth faster with them."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    elements = 1
    for size in shape:
        elements *= size
    buffer = _memory(max(1, elements * dtype.itemsize))
    return torch.frombuffer(buffer, dtype=dtype, count=elements).view(shape)


def _memory(size: int) -> mmap.mmap:
    if sys.platform != "linux":
        return mmap.mmap(-1, size)
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
