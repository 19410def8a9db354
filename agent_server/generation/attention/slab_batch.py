"""A step's attention over slabs: the CPU's way.

Sequences that decode are grouped by the size of their slabs; a group whose slabs lie side by side is attended on a
view of the arena, without a copy. A chunk of a prompt is attended by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call, additive, attend, attend_one, window_mask
from agent_server.generation.attention.kv_cache import KVCache, slabs
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.slabs import SlabMemory
from agent_server.generation.scheduling.step_plan import Chunk, StepPlan

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
        found = self.masks.get(window)
        if found is None:
            found = self.masks[window] = self._mask(window, dtype)
        return found

    def _mask(self, window: int | None, dtype: torch.dtype) -> tuple[int, Tensor | None]:
        shortest, longest = min(self.lengths), self.longest
        start = 0 if window is None else max(0, shortest - window)
        if shortest == longest:
            return start, None
        lengths = torch.tensor(self.lengths)[:, None]
        keys = torch.arange(start, longest)[None]
        seen = keys < lengths
        if window is not None:
            seen &= keys >= lengths - window
        return start, additive(seen, dtype)[:, None, None]


class SlabBatch:
    """One step over a SlabMemory and its KVCache. `order` is the order of the decoding sequences."""

    def __init__(self, plan: StepPlan, memory: SlabMemory, cache: KVCache) -> None:
        self.cache = cache
        self.order = sorted(plan.decodes, key=lambda s: (memory.slabs[s.number].size, memory.slabs[s.number].offset))
        self.groups = _groups(self.order, memory)
        self.chunks = plan.chunks
        self.slabs = [memory.slabs[chunk.sequence.number] for chunk in plan.chunks]
        self._new = [(memory.slabs[s.number], s.computed - 1) for s in self.order]
        for chunk, held in zip(plan.chunks, self.slabs, strict=True):
            self._new += [(held, at) for at in range(chunk.start, chunk.start + chunk.length)]
        self._rows: dict[int, Tensor] = {}
        self._masks: dict[tuple[int, int | None], Tensor] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        kept, computed = self.cache.keys[layer].dtype, call.queries.dtype
        if kept == computed:
            return self._attend(layer, call)
        return self._attend(layer, call.to(kept)).to(computed)

    def _attend(self, layer: int, call: Call) -> Tensor:
        keys, values, queries = self.cache.keys[layer], self.cache.values[layer], call.queries
        rows = self._written(keys.shape[1])
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

    def _written(self, heads: int) -> Tensor:
        """Where new tokens go in an arena of that many heads: `[tokens * heads]`, as rows of its `head_dim` numbers."""
        rows = self._rows.get(heads)
        if rows is None:
            first = np.array([held.offset * heads + at for held, at in self._new])
            sizes = np.array([held.size for held, _ in self._new])
            rows = torch.from_numpy((first[:, None] + sizes[:, None] * np.arange(heads)).ravel())
            self._rows[heads] = rows
        return rows

    def _decode(self, group: SlabGroup, queries: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        start, mask = group.mask(call.window, queries.dtype)
        return attend_one(queries, group.view(keys, start), group.view(values, start), mask, call)

    def _prefill(self, index: int, chunk: Chunk, queries: Tensor, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        held, end = self.slabs[index], chunk.start + chunk.length
        k, v = (slabs(arena, held.offset, held.size, 1, 0, end) for arena in (keys, values))
        blocks = chunk.blocks
        if chunk.start == 0 and (call.window is None or end <= call.window) and not blocks:
            return attend(queries, k, v, None, call, causal=True)
        mask = self._masks.get((index, call.window))
        if mask is None:
            mask = window_mask(chunk.start, end, call.window, queries.dtype, queries.device, blocks)
            self._masks[index, call.window] = mask
        return attend(queries, k, v, mask, call)


def _groups(order: list[Sequence], memory: SlabMemory) -> list[SlabGroup]:
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
    return groups


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
