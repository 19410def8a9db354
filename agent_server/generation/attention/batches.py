"""A step's attention over pages (GPU) and slabs (CPU), and the arenas that store their keys and values.

An arena has `tokens` times `kv_heads` rows of `head_dim` numbers. A page is `[page_size, kv_heads, head_dim]`, as
kernels expect it. A slab is `[kv_heads, size, head_dim]`: one head's keys are contiguous, which a CPU reads 25 %
faster. Pages and slabs are views of the arena, without copies.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call, additive, attend, attend_one, window_mask
from agent_server.generation.device import send
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import StepPlan
from agent_server.generation.scheduling.slabs import SlabCopy, SlabMemory


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The keys and values that an attention layer stores for a token, and its kind of attention.

    window: the number of tokens that a token attends to, itself included; None for all. softcap: the bound of the
    scores. sinks: the softmax has an additional learned term for each head.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False


def bytes_per_token(layers: Iterable[LayerShape], dtype: torch.dtype) -> int:
    """Return the bytes that a token's keys and values take in all layers."""
    return sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize


class KVCache:
    """Arenas of keys and values with room for `tokens` tokens in each layer."""

    def __init__(self, layers: list[LayerShape], tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        self.layers = layers
        self.tokens = tokens
        self.keys = [_zeros((tokens, layer.kv_heads, layer.key_dim), dtype, device) for layer in layers]
        self.values = [_zeros((tokens, layer.kv_heads, layer.value_dim), dtype, device) for layer in layers]

    def write(self, layer: int, at: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the keys and values `[tokens, kv_heads, head_dim]` of new tokens to the slots `at` of pages."""
        self.keys[layer].index_copy_(0, at, keys)
        self.values[layer].index_copy_(0, at, values)

    def copy(self, copies: list[SlabCopy]) -> None:
        """Execute and clear the copies that a SlabMemory ordered, in order. Source and target overlap only if a slab
        grew in place."""
        for copy in copies:
            for arena in (*self.keys, *self.values):
                source = slab(arena, copy.source, copy.source_size)[:, : copy.length]
                target = slab(arena, copy.target, copy.target_size)[:, : copy.length]
                target.copy_(source.clone() if copy.source == copy.target else source)
        copies.clear()


def slab(arena: torch.Tensor, offset: int, size: int) -> torch.Tensor:
    """Return a view of a slab, `[kv_heads, size, head_dim]`."""
    return slabs(arena, offset, size, 1, 0, size)[0]


def slabs(arena: torch.Tensor, offset: int, size: int, count: int, start: int, end: int) -> torch.Tensor:
    """Return a view of tokens `start` to `end` of `count` adjacent slabs, the first at `offset`: `[count, kv_heads,
    end - start, head_dim]`. It takes one operation, since every layer of every step does it."""
    _, heads, dim = arena.shape
    strides = (size * heads * dim, size * dim, dim, 1)
    return arena.as_strided((count, heads, end - start, dim), strides, offset * heads * dim + start * dim)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return zeros; on the CPU in memory that the system allocates when it is first written, with huge pages if it has
    them: reading many slabs is a fifth faster with those.

    Uninitialised memory would be wrong: masked values still take part in a product, and 0 times infinity is not 0.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    elements = math.prod(shape)
    size = max(1, elements * dtype.itemsize)
    if sys.platform != "linux":
        buffer = mmap.mmap(-1, size)
    else:
        buffer = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory gets no huge pages
        with contextlib.suppress(OSError):  # a kernel without them
            buffer.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(buffer, dtype=dtype, count=elements).view(shape)


@dataclass(slots=True)
class Paging:
    """The metadata of a step's attention over pages.

    tables: each sequence's pages, `[sequences, pages]` int32. lengths: the keys of each sequence, new ones included,
    `[sequences]` int32. starts: the index of each sequence's first query in the batch, `[sequences + 1]` int32.
    key_starts: the same for its keys, if they were concatenated. places: the slots of new keys in the arena, `[tokens]`
    int64. spans: the first new token of each sequence and its length after them. counts: `lengths` as numbers.
    single: how many leading sequences have exactly one query. most_queries, most_keys: the maximum of a sequence, or an
    upper bound. blocks: ranges of tokens with bidirectional attention, by the sequence's index.
    """

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


class Kernel(Protocol):
    """Attention over pages `[pages, page_size, kv_heads, dim]`."""

    name: str
    page_size: int

    def refuses(self, layer: LayerShape, dtype: torch.dtype) -> str | None:
        """Return why the kernel does not support such a layer, as a clause; None if it does."""

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write the call's keys and values to the slots `places` `[tokens]` of the arenas `[slots, kv_heads, dim]`."""

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        """Attend, and return `[tokens, heads, value_dim]`. If every sequence has one query, there is no
        synchronisation with the device."""


class PagedBatch:
    """A step's attention over paged memory."""

    def __init__(self, paging: Paging, cache: KVCache, page_size: int, *, kernel: Kernel | None) -> None:
        self.paging = paging
        self.cache = cache
        self.page_size = page_size
        self.kernel = kernel

    def attend(self, layer: int, call: Call) -> Tensor:
        keys = self.cache.keys[layer].view(-1, self.page_size, *self.cache.keys[layer].shape[1:])
        values = self.cache.values[layer].view(-1, self.page_size, *self.cache.values[layer].shape[1:])
        if self.kernel is not None and not self.paging.blocks:  # kernels support only causal masks and windows
            self.kernel.write(call, self.paging.places, self.cache.keys[layer], self.cache.values[layer])
            return self.kernel.attend(self.paging, keys, values, call)
        self.cache.write(layer, self.paging.places, call.keys, call.values)
        return attend_gathered(self.paging, keys, values, call)


def page(plan: StepPlan, memory: PagedMemory, device: torch.device) -> Paging:
    """Build the metadata of a step on the host, and send each tensor to the device without waiting."""
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
    """Attend one sequence after the other, to copies of its pages. Slow, but correct on every device."""
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
"""The maximum number of runs of adjacent slabs that are computed one by one. More are gathered into one call."""


@dataclass(slots=True)
class SlabGroup:
    """The decoding sequences `first` to `last` of the batch, in slabs of `size` tokens.

    slots: the slabs' numbers, if the arena is divided into slabs of that size. lengths: the tokens to attend to, the
    new one included. index: the slots as a tensor, if the slabs are not adjacent and are gathered. masks: cached by
    window.
    """

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
        """Return the keys or values from token `start` on, `[sequences, kv_heads, longest - start, dim]`."""
        if self.index is None:
            return slabs(arena, self.slots[0] * self.size, self.size, len(self.slots), start, self.longest)
        return slabs(arena, 0, self.size, len(arena) // self.size, start, self.longest).index_select(0, self.index)

    def mask(self, window: int | None, dtype: torch.dtype) -> tuple[int, Tensor | None]:
        """Return the first key that any sequence attends to, and the bias on the scores of the keys from there on; None
        if all of them are visible to all sequences."""
        if (cached := self.masks.get(window)) is not None:
            return cached
        shortest, longest = min(self.lengths), self.longest
        start = 0 if window is None else max(0, shortest - window)
        bias = None
        if shortest != longest:
            lengths = torch.tensor(self.lengths)[:, None]
            keys = torch.arange(start, longest)[None]
            visible = keys < lengths
            if window is not None:
                visible &= keys >= lengths - window
            bias = additive(visible, dtype)[:, None, None]
        self.masks[window] = start, bias
        return start, bias


class SlabBatch:
    """A step's attention over a SlabMemory. order: the decoding sequences as they come in the batch, by their slabs, so
    that adjacent slabs are computed together."""

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
            lengths = [s.computed for s in order[first:last]]
            ends = [i for i in range(1, len(slots)) if slots[i] != slots[i - 1] + 1] + [len(slots)]
            if len(ends) > MAX_RUNS:
                groups.append(SlabGroup(first, last, size, slots, lengths, torch.tensor(slots)))
            else:
                groups += [
                    SlabGroup(first + begin, first + end, size, slots[begin:end], lengths[begin:end])
                    for begin, end in pairwise([0, *ends])
                ]
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
        # The rows of new tokens in an arena with that many heads: `[tokens * heads]`.
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
            slab, end, blocks = self.slabs[index], chunk.start + chunk.length, chunk.blocks
            q = queries[at : at + chunk.length].transpose(0, 1)[None]
            k, v = (slabs(arena, slab.offset, slab.size, 1, 0, end) for arena in (keys, values))
            causal = chunk.start == 0 and (call.window is None or end <= call.window) and not blocks
            mask = None if causal else self._masks.get((index, call.window))
            if mask is None and not causal:
                mask = window_mask(chunk.start, end, call.window, q.dtype, q.device, blocks)
                self._masks[index, call.window] = mask
            out[at : at + chunk.length] = attend(q, k, v, mask, call, causal=causal)[0].transpose(0, 1)
            at += chunk.length
        return out

    def _decode(self, group: SlabGroup, queries: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        start, mask = group.mask(call.window, queries.dtype)
        return attend_one(queries, group.view(keys, start), group.view(values, start), mask, call)
