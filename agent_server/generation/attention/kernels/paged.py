"""Launch the kernels of `paged_kernels.py`, with the shapes of tiles and the number of splits of a sequence's keys.

The launch depends only on the batch's shape and never on values in tensors, and there is no synchronisation with the
device, so a call in which every sequence has one query can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.generation.attention.kernels.paged_kernels import attend_kernel, combine_kernel, store_kernel

KEYS = 64
"""The number of keys in a tile."""
TILE_BYTES = 32 * 1024
"""The maximum bytes of a tile's keys and values. Two stages at once fit the 64 KiB of AMD's chips."""
ROWS = 64
"""Rows of a prompt's tile: queries times the heads of a group."""
LEAST_ROWS = 16
"""The least number of rows that a matrix unit takes."""
LEAST_SPLIT = 256
"""The least number of keys of a split; a smaller one costs more to combine than it saves."""
LONGEST_SPLIT = 4096
"""The maximum number of keys of a split, unless MOST_SPLITS are too few: a long sequence beside short ones is divided
even if there are programs enough without."""
MOST_SPLITS = 32
"""The maximum number of splits, and the width of the kernel that combines them, so that it is compiled only once."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """The tokens and pages of each sequence.

    tables: its pages, `[sequences, pages]` int32. lengths: the number of its keys, new ones included, `[sequences]`
    int32. starts: the index of its first query, `[sequences + 1]` int32. single: how many leading sequences have
    exactly one query. most_queries, most_keys: the maximum of a sequence, or an upper bound.
    """

    tables: Tensor
    lengths: Tensor
    starts: Tensor
    single: int
    most_queries: int
    most_keys: int


@dataclass(frozen=True, slots=True)
class AttentionKind:
    """The kind of attention. window: the number of tokens that a query attends to, itself included. softcap: the bound
    of the scores. sinks: `[heads]`, a score that takes part in each head's softmax and has no value."""

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None


def store(keys: Tensor, values: Tensor, places: Tensor, key_cache: Tensor, value_cache: Tensor) -> None:
    """Write the keys `[tokens, kv_heads, key_dim]` and values `[tokens, kv_heads, value_dim]` of new tokens to the
    slots `places` `[tokens]` int64 of the caches `[slots, kv_heads, dim]`."""
    tokens, kv_heads, key_dim = keys.shape
    value_dim = values.shape[-1]
    keys, values = _rows(keys), _rows(values)
    store_kernel[(tokens, kv_heads)](
        keys, values, places, key_cache, value_cache,
        kv_heads, *keys.stride()[:2], *values.stride()[:2],
        DK=key_dim, DV=value_dim, WIDTH=_power_of_two(max(key_dim, value_dim)),
        num_warps=1,
    )  # fmt: skip


def attend(
    queries: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    page_size: int,
    ranges: Ranges,
    how: AttentionKind,
    *,
    processors: int,
) -> Tensor:
    """Attend with queries `[tokens, heads, key_dim]` to the keys up to each query's own, in pages of the caches
    `[slots, kv_heads, dim]`. Returns `[tokens, heads, value_dim]`. processors: how many programs the device runs at
    once."""
    out = queries.new_empty(*queries.shape[:2], value_cache.shape[-1])
    launch = _Launch(out, _rows(queries), key_cache, value_cache, page_size, ranges, how)
    if ranges.single:
        launch.single(processors)
    if len(ranges.lengths) > ranges.single:
        launch.several()
    return out


def splits_of(programs: int, most_keys: int, processors: int) -> int:
    """Return the number of splits of a sequence's keys that keeps all processors busy, and leaves none of them with a
    long sequence when the others have finished. A short sequence uses fewer: each has LEAST_SPLIT keys or more."""
    # Two programs a processor hide each other's waiting for memory.
    idle = 2 * processors // max(1, programs)
    useful = max(1, min(idle, most_keys // LEAST_SPLIT, MOST_SPLITS))
    return max(1 << (useful.bit_length() - 1), min(-(-most_keys // LONGEST_SPLIT), MOST_SPLITS))


def _rows(tensor: Tensor) -> Tensor:
    """Return the tensor with a contiguous last dimension."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


@dataclass(slots=True)
class _Launch:
    """The tensors of one call, for the sequences with one query and for the others."""

    out: Tensor
    queries: Tensor
    key_cache: Tensor
    value_cache: Tensor
    page_size: int
    ranges: Ranges
    how: AttentionKind

    def single(self, processors: int) -> None:
        """Launch the sequences with one query. Long keys of few sequences are split between several programs."""
        ranges, (_, heads, value_dim) = self.ranges, self.out.shape
        # A query has one row for each head that shares its keys; matrix units take no fewer than 16.
        rows = min(max(LEAST_ROWS, _power_of_two(self._group)), ROWS)
        tiles = self.key_cache.shape[1] * -(-self._group // rows)
        splits = splits_of(ranges.single * tiles, ranges.most_keys, processors)
        # One program computes all keys and writes the result itself; nothing has to be combined.
        if splits == 1:
            self._run(self.out, self.out, 0, ranges.single, 1, 1, rows)
            return
        # Partial results are float32: rounding each of them would add up to more than rounding the sum.
        weighed = self.out.new_empty(ranges.single, heads, splits, value_dim, dtype=torch.float32)
        shares = self.out.new_empty(ranges.single, heads, splits, 2, dtype=torch.float32)
        self._run(weighed, shares, 0, ranges.single, 1, splits, rows)
        combine_kernel[(ranges.single, heads)](
            self.out, weighed, shares, ranges.starts, 0, splits,
            DV=value_dim, DV_BLOCK=_power_of_two(value_dim), SPLITS=MOST_SPLITS, num_warps=4,
        )  # fmt: skip

    def several(self) -> None:
        """Launch the sequences with several queries, which are enough work without splits."""
        ranges = self.ranges
        count = len(ranges.lengths) - ranges.single
        self._run(self.out, self.out, ranges.single, count, ranges.most_queries, 1, ROWS)

    @property
    def _group(self) -> int:
        return self.queries.shape[1] // self.key_cache.shape[1]

    def _run(
        self, weighed: Tensor, shares: Tensor, first: int, count: int, most_queries: int, splits: int, rows: int
    ) -> None:
        ranges, how, group = self.ranges, self.how, self._group
        kv_heads, key_dim = self.key_cache.shape[1:]
        value_dim = self.value_cache.shape[-1]
        # Heads of one group share a tile, so that their keys are read from memory once.
        heads = min(_power_of_two(group), rows)
        queries = rows // heads
        main, rest = _parts(key_dim)
        keys = KEYS  # in a tile, as many as fit with their values
        while keys > 16 and keys * (key_dim + value_dim) * self.key_cache.itemsize > TILE_BYTES:
            keys //= 2
        grid = (count * splits, kv_heads * -(-group // heads), -(-most_queries // queries))
        # A pointer for an argument that the compiled variant does not read.
        unused = ranges.lengths
        attend_kernel[grid](
            self.out, weighed, shares, self.queries, self.key_cache, self.value_cache,
            ranges.tables, ranges.lengths, ranges.starts, unused if how.sinks is None else how.sinks,
            first, how.scale, how.softcap or 0.0, how.window or 0, group, splits, LEAST_SPLIT,
            *self.queries.stride()[:2], ranges.tables.stride(0),
            DK=key_dim, DV=value_dim, DK_MAIN=main, DK_REST=rest, DV_BLOCK=max(16, _power_of_two(value_dim)),
            HEADS=heads, QUERIES=queries, KEYS=keys,
            PAGE=self.page_size, WINDOW=how.window is not None, SOFTCAP=how.softcap is not None,
            SINKS=how.sinks is not None, SPLIT=splits > 1,
            num_warps=4, num_stages=2,
        )  # fmt: skip


def _parts(dim: int) -> tuple[int, int]:
    """Return two powers of two that together cover a key's dimension; the second may be 0. 192 is 128 and 64, 576 is
    512 and 64."""
    below = max(16, 1 << (dim.bit_length() - 1))
    if dim <= below:
        return below, 0
    rest = max(16, _power_of_two(dim - below))
    return (below, rest) if rest < below else (2 * below, 0)
