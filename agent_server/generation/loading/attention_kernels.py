"""Choose the kernel that attends over pages, by tests when a model is loaded.

A kernel is used if it supports every layer of the model and its results on this device equal those of gathered pages,
for short and long sequences that decode together and for chunks. The project's own kernel is tried before torch's. If
neither is correct, pages are gathered, one sequence after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call
from agent_server.generation.attention.batches import Kernel, LayerShape, Paging, attend_gathered
from agent_server.generation.attention.library_kernels import VarlenKernel
from agent_server.generation.device import send
from agent_server.generation.faults import first_line, raise_if_lost

logger = logging.getLogger("agent_server.generation")
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.05, torch.float16: 0.02}
TRIED = ((1, 70, 1100, 5), 0), ((40, 9), 33)
"""Lengths of sequences that decode together, and of a chunk in the same step. One is long enough for split keys."""
OLDEST_CAPABILITY = (8, 0)
GATHERED = "Attention gathers pages, one sequence after the other, and steps are not captured in CUDA graphs: {}."


class TritonKernel:
    """The project's own kernel (`kernels/`): any head size, soft caps, sinks, windows, pages of 16 tokens or more."""

    name = "triton"
    page_size = 32

    def __init__(self, processors: int) -> None:
        from agent_server.generation.attention.kernels import paged

        self._paged = paged
        self._processors = processors

    def refuses(self, layer: LayerShape, dtype: torch.dtype) -> str | None:
        return None if dtype in TOLERANCE else f"it does not compute in {dtype}"

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor) -> None:
        self._paged.store(call.keys, call.values, places, keys, values)

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        ranges = self._paged.Ranges(
            paging.tables, paging.lengths, paging.starts, paging.single, paging.most_queries, paging.most_keys
        )
        how = self._paged.AttentionKind(call.scale, call.window, call.softcap, call.sinks)
        arenas = keys.flatten(0, 1), values.flatten(0, 1)
        return self._paged.attend(call.queries, *arenas, keys.shape[1], ranges, how, processors=self._processors)


def candidates(device: torch.device) -> Iterable[Callable[[], Kernel]]:
    """Return functions that make the kernels for a device, or raise an error that says why one is unavailable."""

    def triton() -> Kernel:
        return TritonKernel(torch.cuda.get_device_properties(device).multi_processor_count)

    def varlen() -> Kernel:
        from torch.nn.attention.varlen import varlen_attn

        return VarlenKernel(varlen_attn)

    return (triton, varlen)


@torch.inference_mode()
def choose(device: torch.device, dtype: torch.dtype, layers: list[LayerShape], slow: list[str]) -> Kernel | None:
    """Return the first kernel that is correct for these layers on this device; None if there is none. slow: gets the
    reason why a GPU has none."""
    if device.type != "cuda":
        return None
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < OLDEST_CAPABILITY:
        slow.append(GATHERED.format("the GPU is older than compute capability 8.0"))
        return None
    reasons = []
    for make in candidates(device):
        try:
            kernel = make()
            reason = _fault(kernel, device, dtype, layers)
        except Exception as error:  # whatever torch, a compiler or its absence brings
            raise_if_lost(error, device)
            reason = f"{type(error).__name__}: {first_line(error)}"
        if reason is None:
            logger.info("Attention over pages of %d tokens by %s.", kernel.page_size, kernel.name)
            return kernel
        reasons.append(f"{make.__name__}: {reason}")
        logger.info("Attention by %s is not used: %s.", make.__name__, reason)
    slow.append(GATHERED.format("; ".join(reasons)))
    return None


def _fault(kernel: Kernel, device: torch.device, dtype: torch.dtype, layers: list[LayerShape]) -> str | None:
    """Return why a kernel cannot be used; None if it is correct."""
    for layer in sorted(set(layers), key=repr):
        if (reason := kernel.refuses(layer, dtype)) is not None:
            return reason
        for lengths, chunk in TRIED:
            worst = difference(kernel, device, dtype, layer, lengths, chunk)
            if not worst < TOLERANCE[dtype]:
                return f"it gives other results than gathered pages (by {worst:.2g})"
    return None


def difference(
    kernel: Kernel,
    device: torch.device,
    dtype: torch.dtype,
    layer: LayerShape,
    lengths: tuple[int, ...],
    chunk: int,
) -> float:
    """Return the largest difference from gathered pages, over scattered pages: for decoding sequences of these lengths
    and a chunk of `chunk` tokens (unless 0) in the middle of its sequence."""
    spans = [(length - 1, length) for length in lengths] + ([(7, 7 + chunk)] if chunk else [])
    batch = paging, keys, values, call = example(kernel.page_size, device, dtype, layer, spans)
    kernel.write(call, paging.places, keys.flatten(0, 1), values.flatten(0, 1))
    actual, expected = kernel.attend(*batch), attend_gathered(*batch)
    worst = (actual.float() - expected.float()).abs().max()
    return float(worst)


def example(
    page_size: int,
    device: torch.device,
    dtype: torch.dtype,
    layer: LayerShape,
    spans: list[tuple[int, int]],
    group: int = 2,
) -> tuple[Paging, Tensor, Tensor, Call]:
    """Return a batch of sequences with queries at these spans, decoding ones first, with keys and values in scattered
    pages, and a call with `group` query heads for each KV head."""
    generator = torch.Generator(device).manual_seed(1)
    counts = [end for _, end in spans]
    width = -(-max(counts) // page_size)
    order = torch.randperm(len(spans) * width, generator=torch.Generator().manual_seed(1)).tolist()
    tables = [order[index * width : (index + 1) * width] for index in range(len(spans))]
    places = [
        table[at // page_size] * page_size + at % page_size
        for table, (start, end) in zip(tables, spans, strict=True)
        for at in range(start, end)
    ]

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    tokens, heads = len(places), group * layer.kv_heads
    keys = random(len(order), page_size, layer.kv_heads, layer.key_dim)
    values = random(len(order), page_size, layer.kv_heads, layer.value_dim)
    options = {
        "sliding_window": layer.window,
        "softcap": layer.softcap,
        "s_aux": random(heads) if layer.sinks else None,
    }
    new = random(tokens, layer.kv_heads, layer.key_dim), random(tokens, layer.kv_heads, layer.value_dim)
    call = Call(random(tokens, heads, layer.key_dim), *new, None, options)
    paging = Paging(
        tables=send(tables, torch.int32, device),
        lengths=send(counts, torch.int32, device),
        starts=send([0, *accumulate(end - start for start, end in spans)], torch.int32, device),
        key_starts=send([0, *accumulate(counts)], torch.int32, device),
        places=send(places, torch.int64, device),
        spans=spans,
        counts=counts,
        single=sum(end - start == 1 for start, end in spans),
        most_queries=max(end - start for start, end in spans),
        most_keys=max(counts),
    )
    return paging, keys, values, call
