"""A step's attention over pages (GPU) and slabs (CPU), and the arenas of keys and values behind them.

An arena has `tokens` times `kv_heads` rows of `head_dim` numbers. A page is `[page_size, kv_heads, head_dim]`, as
kernels want it. A slab is `[kv_heads, size, head_dim]`: one head's keys are contiguous, which a CPU reads a quarter
faster. Views turn the arena into neighbouring pages or slabs without a copy.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call, additive, attend, attend_one, window_mask
from agent_server.generation.device import send
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Chunk, StepPlan
from agent_server.generation.scheduling.slabs import Copy, SlabMemory


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


@dataclass(slots=True)
class Paging:
    """Where everything is. tables: `[sequences, pages]` int32. lengths: keys of each sequence, the new ones included.
    starts, key_starts: `[sequences + 1]`, where each one's queries begin in the batch, and its keys if they were laid
    end to end. places: where new keys go. single: the first so many sequences have one query each. most_keys: the most
    of a sequence, or a bound of it. blocks: by the sequence's place, runs of its tokens that see each other."""

    tables: Tensor
    lengths: Tensor
    starts: Tensor
    key_starts: Tensor
    places: Tensor
    spans: list[tuple[int, int]]
    counts: list[int]
    single: int
    most_queries: int
    most_keys: int
    blocks: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    def behind(self, count: int) -> Paging:
        """Without the first `count` sequences, which have one query each."""
        key_starts = self.key_starts[count:]
        return replace(
            self,
            tables=self.tables[count:],
            lengths=self.lengths[count:],
            starts=self.starts[count:] - count,
            key_starts=key_starts - key_starts[:1],
            places=self.places[count:],
            single=self.single - count,
            spans=self.spans[count:],
            counts=self.counts[count:],
        )


class Kernel(Protocol):
    """Attention over pages `[pages, page_size, kv_heads, dim]`."""

    name: str
    page_size: int

    def refuses(self, layer: LayerShape, dtype: torch.dtype) -> str | None:
        """Why it does not serve such a layer, as half a sentence; None where it does."""

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """The call's keys and values to these places `[tokens]` of the arenas `[places, kv_heads, dim]`."""

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        """`[tokens, heads, value_dim]`; for sequences of one query each nothing is asked of the device."""


class PagedBatch:
    """One step over paged memory and its KVCache."""

    def __init__(self, paging: Paging, cache: KVCache, page_size: int, *, kernel: Kernel | None) -> None:
        self.paging = paging
        self.cache = cache
        self.page_size = page_size
        self.kernel = kernel

    def attend(self, layer: int, call: Call) -> Tensor:
        keys = self.cache.keys[layer].view(-1, self.page_size, *self.cache.keys[layer].shape[1:])
        values = self.cache.values[layer].view(-1, self.page_size, *self.cache.values[layer].shape[1:])
        if self.kernel is not None and not self.paging.blocks:  # kernels know causal masks and windows alone
            self.kernel.write(call, self.paging.places, self.cache.keys[layer], self.cache.values[layer])
            return self.kernel.attend(self.paging, keys, values, call)
        self.cache.write(layer, self.paging.places, call.keys, call.values)
        return attend_gathered(self.paging, keys, values, call)


def page(plan: StepPlan, memory: PagedMemory, device: torch.device) -> Paging:
    """The tensors of a step; built on the host and sent in one go each, without waiting."""
    spans = [(s.computed - 1, s.computed) for s in plan.decodes]
    spans += [(chunk.start, chunk.start + chunk.length) for chunk in plan.chunks]
    sequences = plan.decodes + [chunk.sequence for chunk in plan.chunks]
    pages = [memory.table(sequence) for sequence in sequences]
    width = max(map(len, pages))
    size = memory.page_size
    places = [
        table[position // size] * size + position % size
        for table, (start, end) in zip(pages, spans, strict=True)
        for position in range(start, end)
    ]
    counts = [end for _, end in spans]
    blocks = {
        len(plan.decodes) + index: chunk_blocks
        for index, chunk in enumerate(plan.chunks)
        if (chunk_blocks := chunk.blocks)
    }
    return Paging(
        tables=send([table + [0] * (width - len(table)) for table in pages], torch.int32, device),
        lengths=send(counts, torch.int32, device),
        starts=send([0, *accumulate(end - start for start, end in spans)], torch.int32, device),
        key_starts=send([0, *accumulate(counts)], torch.int32, device),
        places=send(places, torch.int64, device),
        spans=spans,
        counts=counts,
        single=len(plan.decodes),
        most_queries=max(end - start for start, end in spans),
        most_keys=max(counts),
        blocks=blocks,
    )


def attend_gathered(paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """The same sequence by sequence, on copies of their pages."""
    out = call.queries.new_empty(*call.queries.shape[:2], values.shape[-1])
    starts = list(accumulate((end - start for start, end in paging.spans), initial=0))
    for index, (first, last) in enumerate(pairwise(starts)):
        begin, end = paging.spans[index]
        k = keys[paging.tables[index]].flatten(0, 1)[:end].transpose(0, 1)[None]
        v = values[paging.tables[index]].flatten(0, 1)[:end].transpose(0, 1)[None]
        mask = window_mask(
            begin, end, call.window, call.queries.dtype, call.queries.device, paging.blocks.get(index, ())
        )
        out[first:last] = attend(call.queries[first:last].transpose(0, 1)[None], k, v, mask, call)[0].transpose(0, 1)
    return out


MAX_RUNS = 8
"""Up to so many runs of neighbouring slabs are attended one by one; more are gathered into one call."""


@dataclass(slots=True)
class SlabGroup:
    """Decoding sequences `first` to `last` of the batch, in slabs of `size` tokens; `slots` are the slabs' numbers in
    a view of the arena by that size, `lengths` the tokens to attend to, the new one included."""

    first: int
    last: int
    size: int
    slots: list[int]
    lengths: list[int]
    index: Tensor | None = None
    masks: dict[int | None, tuple[int, Tensor | None]] = field(default_factory=dict)
    longest: int = 0

    def __post_init__(self) -> None:
        self.longest = max(self.lengths)

    def view(self, arena: Tensor, start: int) -> Tensor:
        """`[sequences, kv_heads, keys from start on, dim]`"""
        if self.index is None:
            return slabs(arena, self.slots[0] * self.size, self.size, len(self.slots), start, self.longest)
        return slabs(arena, 0, self.size, len(arena) // self.size, start, self.longest).index_select(0, self.index)

    def mask(self, window: int | None, dtype: torch.dtype) -> tuple[int, Tensor | None]:
        """The first key that a row attends to, and what is added to the scores; None where all see all."""
        cached_mask = self.masks.get(window)
        if cached_mask is None:
            cached_mask = self.masks[window] = self._mask(window, dtype)
        return cached_mask

    def _mask(self, window: int | None, dtype: torch.dtype) -> tuple[int, Tensor | None]:
        shortest, longest = min(self.lengths), self.longest
        start = 0 if window is None else max(0, shortest - window)
        if shortest == longest:
            return start, None
        lengths = torch.tensor(self.lengths)[:, None]
        keys = torch.arange(start, longest)[None]
        visible = keys < lengths
        if window is not None:
            visible &= keys >= lengths - window
        return start, additive(visible, dtype)[:, None, None]


class SlabBatch:
    """One step over a SlabMemory and its KVCache. `order` is the order of the decoding sequences."""

    def __init__(self, plan: StepPlan, memory: SlabMemory, cache: KVCache) -> None:
        self.cache = cache
        self.order = sorted(plan.decodes, key=lambda s: (memory.slabs[s.number].size, memory.slabs[s.number].offset))
        order = self.order
        groups: list[SlabGroup] = []
        first = 0
        while first < len(order):
            size = memory.slabs[order[first].number].size
            last = first
            while last < len(order) and memory.slabs[order[last].number].size == size:
                last += 1
            slots = [memory.slabs[s.number].offset // size for s in order[first:last]]
            groups += _runs(SlabGroup(first, last, size, slots, [s.computed for s in order[first:last]]))
            first = last
        self.groups = groups
        self.chunks = plan.chunks
        self.slabs = [memory.slabs[chunk.sequence.number] for chunk in plan.chunks]
        self._new = [(memory.slabs[s.number], s.computed - 1) for s in self.order]
        for chunk, slab in zip(plan.chunks, self.slabs, strict=True):
            self._new += [(slab, at) for at in range(chunk.start, chunk.start + chunk.length)]
        self._rows: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        cache_dtype, computed = self.cache.keys[layer].dtype, call.queries.dtype
        if cache_dtype == computed:
            return self._attend(layer, call)
        return self._attend(layer, call.to(cache_dtype)).to(computed)

    def _attend(self, layer: int, call: Call) -> Tensor:
        keys, values, queries = self.cache.keys[layer], self.cache.values[layer], call.queries
        # Where new tokens go in an arena of that many heads: `[tokens * heads]`, as rows of its `head_dim` numbers.
        heads = keys.shape[1]
        rows = self._rows.get(heads)
        if rows is None:
            first = np.array([slab.offset * heads + at for slab, at in self._new])
            sizes = np.array([slab.size for slab, _ in self._new])
            rows = torch.from_numpy((first[:, None] + sizes[:, None] * np.arange(heads)).ravel())
            self._rows[heads] = rows
        for arena, new in ((keys, call.keys), (values, call.values)):
            dim = arena.shape[-1]
            arena.view(-1, dim).index_copy_(0, rows, new.reshape(-1, dim))
        if len(self.groups) == 1 and not self.chunks:
            return self._decode(self.groups[0], queries, keys, values, call)
        out = queries.new_empty(*queries.shape[:2], values.shape[-1])
        for group in self.groups:
            out[group.first : group.last] = self._decode(group, queries[group.first : group.last], keys, values, call)
        at = len(self.order)
        for index, chunk in enumerate(self.chunks):
            chunk_queries = queries[at : at + chunk.length].transpose(0, 1)[None]
            attended = self._prefill(index, chunk, chunk_queries, keys, values, call)
            out[at : at + chunk.length] = attended[0].transpose(0, 1)
            at += chunk.length
        return out

    def _decode(self, group: SlabGroup, queries: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        start, mask = group.mask(call.window, queries.dtype)
        return attend_one(queries, group.view(keys, start), group.view(values, start), mask, call)

    def _prefill(self, index: int, chunk: Chunk, queries: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        slab, end = self.slabs[index], chunk.start + chunk.length
        k, v = (slabs(arena, slab.offset, slab.size, 1, 0, end) for arena in (keys, values))
        blocks = chunk.blocks
        if chunk.start == 0 and (call.window is None or end <= call.window) and not blocks:
            return attend(queries, k, v, None, call, causal=True)
        mask = self._masks.get((index, call.window))
        if mask is None:
            mask = window_mask(chunk.start, end, call.window, queries.dtype, queries.device, blocks)
            self._masks[index, call.window] = mask
        return attend(queries, k, v, mask, call)


def _runs(group: SlabGroup) -> list[SlabGroup]:
    """The group as runs of neighbouring slabs, or as it is, to be gathered."""
    slots = group.slots
    ends = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1] + [len(slots)]
    if len(ends) > MAX_RUNS:
        group.index = torch.tensor(slots)
        return [group]
    starts = [0, *ends[:-1]]
    return [
        SlabGroup(group.first + a, group.first + b, group.size, slots[a:b], group.lengths[a:b])
        for a, b in zip(starts, ends, strict=True)
    ]
