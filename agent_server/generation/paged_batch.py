"""A step's attention over pages.

On CUDA one variable-length flash attention call takes the whole batch, decodes and chunks alike, and reads pages
through a block table. Where that kernel is missing, or scores have a soft cap or sinks, the pages are gathered and
attended as anywhere else: slower, and the measure of the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.attention import Call, additive, attend
from agent_server.generation.device import send
from agent_server.generation.kv_cache import KVCache, LayerShape
from agent_server.generation.pages import PagedMemory
from agent_server.generation.scheduler import Plan

varlen_attn: Callable[..., Any] | None
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None

logger = logging.getLogger("agent_server.generation")
KERNEL_TOLERANCE = 0.05


@dataclass(slots=True)
class Paging:
    """Where everything is. tables: `[sequences, pages]` int32. lengths: keys of each sequence, the new ones included.
    starts, key_starts: `[sequences + 1]`, where each one's queries begin in the batch, and its keys if they were laid
    end to end. places: where new keys go."""

    tables: Tensor
    lengths: Tensor
    starts: Tensor
    key_starts: Tensor
    places: Tensor
    spans: list[tuple[int, int]]
    counts: list[int]
    most_queries: int
    most_keys: int


class PagedBatch:
    """One step over paged memory and its KVCache."""

    def __init__(self, paging: Paging, cache: KVCache, page_size: int, *, kernel: bool) -> None:
        self.paging = paging
        self.cache = cache
        self.page_size = page_size
        self.kernel = kernel

    def attend(self, layer: int, call: Call) -> Tensor:
        self.cache.write(layer, self.paging.places, call.keys, call.values)
        keys = self.cache.keys[layer].view(-1, self.page_size, *self.cache.keys[layer].shape[1:])
        values = self.cache.values[layer].view(-1, self.page_size, *self.cache.values[layer].shape[1:])
        if self.kernel and call.softcap is None and call.sinks is None:
            return attend_varlen(self.paging, keys, values, call)
        return attend_gathered(self.paging, keys, values, call)


def page(plan: Plan, memory: PagedMemory, device: torch.device) -> Paging:
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
    return Paging(
        tables=send([table + [0] * (width - len(table)) for table in pages], torch.int32, device),
        lengths=send(counts, torch.int32, device),
        starts=send([0, *accumulate(end - start for start, end in spans)], torch.int32, device),
        key_starts=send([0, *accumulate(counts)], torch.int32, device),
        places=send(places, torch.int64, device),
        spans=spans,
        counts=counts,
        most_queries=max(end - start for start, end in spans),
        most_keys=max(counts),
    )


def decoding(tables: Tensor, lengths: Tensor, starts: Tensor, page_size: int) -> Paging:
    """A step that decodes a token each, from tensors on the device alone: `tables` `[sequences, pages]` int32 and
    `lengths` `[sequences]` int64, `starts` counts up to the number of sequences. For the kernel: there are no spans."""
    positions = lengths - 1
    pages = tables.gather(1, (positions // page_size)[:, None])[:, 0].to(torch.int64)
    key_starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
    return Paging(
        tables=tables,
        lengths=lengths.to(torch.int32),
        starts=starts,
        key_starts=key_starts,
        places=pages * page_size + positions % page_size,
        spans=[],
        counts=[],
        most_queries=1,
        most_keys=tables.shape[1] * page_size,
    )


def attend_varlen(paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """Paged flash attention over `[pages, page_size, kv_heads, dim]`. A window of w tokens is w - 1 to the left."""
    assert varlen_attn is not None
    out: Tensor = varlen_attn(
        call.queries.contiguous(),
        keys,
        values,
        paging.starts,
        paging.key_starts,
        paging.most_queries,
        paging.most_keys,
        scale=call.scale,
        window_size=(-1 if call.window is None else call.window - 1, 0),
        enable_gqa=call.queries.shape[1] != keys.shape[2],
        seqused_k=paging.lengths,
        block_table=paging.tables,
    )
    return out


def attend_gathered(paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
    """The same sequence by sequence, on copies of their pages."""
    out = call.queries.new_empty(*call.queries.shape[:2], values.shape[-1])
    starts = list(accumulate((end - start for start, end in paging.spans), initial=0))
    for index, (first, last) in enumerate(pairwise(starts)):
        begin, end = paging.spans[index]
        k = keys[paging.tables[index]].flatten(0, 1)[:end].transpose(0, 1)[None]
        v = values[paging.tables[index]].flatten(0, 1)[:end].transpose(0, 1)[None]
        mask = _mask(begin, end, call.window, call.queries)
        out[first:last] = attend(call.queries[first:last].transpose(0, 1)[None], k, v, mask, call)[0].transpose(0, 1)
    return out


def _mask(begin: int, end: int, window: int | None, like: Tensor) -> Tensor:
    queries = torch.arange(begin, end, device=like.device)[:, None]
    keys = torch.arange(end, device=like.device)[None]
    seen = keys <= queries
    if window is not None:
        seen &= keys > queries - window
    return additive(seen, like.dtype)


def kernel_fits(device: torch.device, dtype: torch.dtype, layers: list[LayerShape], page_size: int) -> bool:
    """Whether the flash attention kernel with block tables serves these layers on this device: by its conditions, and
    then by trying it against the gathered path."""
    if device.type != "cuda" or varlen_attn is None or "block_table" not in signature(varlen_attn).parameters:
        return False
    if dtype not in (torch.float16, torch.bfloat16) or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    if any(layer.key_dim != layer.value_dim or layer.key_dim > 256 or layer.key_dim % 8 for layer in layers):
        return False
    try:
        return all(_kernel_agrees(device, dtype, layer, page_size) for layer in set(layers))
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        logger.warning("The paged attention kernel of torch does not run here: %s", str(error).splitlines()[0])
        return False


def _kernel_agrees(device: torch.device, dtype: torch.dtype, layer: LayerShape, page_size: int) -> bool:
    """One sequence that decodes and one chunk that goes on from the middle, over scattered pages."""
    generator = torch.Generator(device).manual_seed(1)
    shape = (8, page_size, layer.kv_heads, layer.key_dim)
    keys, values = (torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(2))
    spans = [(page_size + 4, page_size + 5), (7, 40)]
    queries = torch.randn((34, layer.kv_heads, layer.key_dim), generator=generator, device=device, dtype=dtype)
    paging = Paging(
        tables=send([[5, 2], [7, 0]], torch.int32, device),
        lengths=send([end for _, end in spans], torch.int32, device),
        starts=send([0, 1, 34], torch.int32, device),
        key_starts=send([0, page_size + 5, page_size + 45], torch.int32, device),
        places=send([0], torch.int64, device),
        spans=spans,
        counts=[end for _, end in spans],
        most_queries=33,
        most_keys=page_size + 5,
    )
    call = Call(queries, queries, queries, None, {"sliding_window": layer.window})
    found, wanted = attend_varlen(paging, keys, values, call), attend_gathered(paging, keys, values, call)
    return bool((found.float() - wanted.float()).abs().max() < KERNEL_TOLERANCE)
