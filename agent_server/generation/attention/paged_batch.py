"""A step's attention over pages.

On a GPU a kernel takes the whole batch, decodes and chunks alike, and reads pages through a block table
(`attention_kernels.py` chooses it). Where there is none, the pages are gathered and attended as anywhere else: slower,
and the measure of the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call, attend, window_mask
from agent_server.generation.attention.kv_cache import KVCache, LayerShape
from agent_server.generation.device import send
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.step_plan import StepPlan


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
    blocks = {len(plan.decodes) + index: found for index, chunk in enumerate(plan.chunks) if (found := chunk.blocks)}
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
