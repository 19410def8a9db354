"""Choose the runner that decodes a loaded model, and the memory for its keys and values."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.attention.attention import install_single_query_attention
from agent_server.generation.attention.batches import KVCache, LayerShape, bytes_per_token
from agent_server.generation.device import DTYPES, free_bytes, release_unused
from agent_server.generation.execution.graphs import CHUNK_TOKENS, graph_count
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.faults import first_line, raise_if_lost
from agent_server.generation.loading import attention_kernels
from agent_server.generation.loading.fallback_check import cache_bytes, find_runner
from agent_server.generation.loading.gguf_blocks import flatten_blocks, has_blocks
from agent_server.generation.loading.linear_layers import pack, parameter_count, unpack_read
from agent_server.generation.loading.memory_plan import (
    CPU_SHARE,
    GIB,
    MemoryDemand,
    cpu_tokens,
    graphs_reserve,
    largest_step,
    media_step,
    share_out,
    state_tokens,
)
from agent_server.generation.loading.probe import UnpackableModel, check_positions, check_windows, fit, fit_flat
from agent_server.generation.loading.quantised import quantise
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.multimodal import Readers
from agent_server.generation.own_caches.delta_rule import install_fast_delta_rule
from agent_server.generation.own_caches.fallback import CachedRunner, UnservableModel
from agent_server.generation.own_caches.families.family_patches import apply_patches
from agent_server.generation.own_caches.kernel_packages import missing_packages, use_torch_functions
from agent_server.generation.own_caches.own_caches import CachesMemory
from agent_server.generation.own_caches.selective_scan import continue_scans
from agent_server.generation.recorded.flat import Forward, Recording, Rewrite, flatten, rewrite_around_products
from agent_server.generation.sampling.sampler import Sampler
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import MAX_CHUNKS
from agent_server.generation.scheduling.slabs import SlabMemory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("agent_server.generation")
GATHERED_PAGE_SIZE = 16
SMALLEST_SLAB = 128
SMALL_PARAMETERS = 20_000_000
"""The size below which a CPU spends its time on calling operations, not on computing them."""
BATCHING = {
    "padded": "on its own cache",
    "equal": "with others of its length alone, which is slow",
    "alone": "one by one, which is slow",
}
"""How sequences on the model's own caches are run."""


def choose_runner(
    config: EngineConfig,
    model: PreTrainedModel | InnerTextModel,
    context: int,
    sampler: Sampler,
    budget: int,
    slow: list[str],
    readers: Readers | None = None,
) -> tuple[PackedRunner | CachedRunner, str, int]:
    """Return the packed runner if the model fits it, and otherwise the runner on the model's own caches with a note of
    the reason; and the tokens of a step, fewer than `budget` if the device's memory requires it. slow: gets a sentence
    about each part that is slower than it could be."""
    uses_recording = is_small(model) or has_blocks(model) if config.flatten is None else config.flatten
    if not config.quantize and not uses_recording:
        pack(model)
    choice = _choose(config, model, context, sampler, budget, slow, readers)
    unpack_read(model)
    return choice


def _choose(
    config: EngineConfig,
    model: PreTrainedModel | InnerTextModel,
    context: int,
    sampler: Sampler,
    budget: int,
    slow: list[str],
    readers: Readers | None,
) -> tuple[PackedRunner | CachedRunner, str, int]:
    device, before = sampler.device, model.config._attn_implementation
    try:
        check_positions(model.config, context)
        layers = fit(model)
        check_windows(model.config, layers, context)
    except UnpackableModel as reason:
        model.set_attn_implementation(before)
        return *_cached_runner(config, model, context, device, slow, str(reason)), budget
    dtype = DTYPES.get(config.kv_cache_dtype, model.dtype)
    if config.memory == "paged" or device.type != "cpu":
        if dtype != model.dtype:
            raise EngineError(
                "unavailable",
                f"Keys and values in {config.kv_cache_dtype} beside a model in another dtype are for the CPU alone; "
                "leave --kv-cache-dtype at auto.",
            )
        _quantise(config, model)
        runner, budget = _paged_runner(config, model, layers, context, sampler, budget, slow, readers)
        return runner, "", budget
    # A recording of the model's forward is for models in which Python takes much of the time: small ones, and those
    # with quantised weights. Weights are quantised after the model and the recording were tested, since their logits
    # are compared more strictly than quantised weights allow, and before memory is divided.
    if config.quantize:
        flat = None if config.flatten is False else _try_recording(model, layers, rewrite_around_products)
        quantise(model, config.quantize, flat)
    else:
        flat = _try_recording(model, layers) if config.flatten else None
    tokens = _cache_tokens(config, model, bytes_per_token(layers, dtype), context, device)
    slabs = SlabMemory(max(tokens, SMALLEST_SLAB), SMALLEST_SLAB)
    cache = KVCache(layers, slabs.total, dtype, device)
    runner = PackedRunner(model, slabs, cache, device, flat=flat)
    if config.flatten is None and not config.quantize and (is_small(model) or has_blocks(model)):
        runner.record = lambda: setattr(runner, "flat", _try_recording(model, layers))
    return runner, "", budget


def _cached_runner(
    config: EngineConfig, model: PreTrainedModel, context: int, device: torch.device, slow: list[str], why: str
) -> tuple[CachedRunner, str]:
    """Return a runner on the model's own caches, as many as fit into memory, and a note on how sequences are run."""
    name = config.name or config.model
    use_torch_functions(model)
    install_fast_delta_rule(model)
    install_single_query_attention(model)
    continue_scans(model)
    apply_patches(model)
    try:
        runner, reason = find_runner(model, device)
    except UnservableModel as fault:
        raise EngineError("unavailable", f"{name} cannot be served: {fault}.") from fault
    note = f"{BATCHING[runner.together]}: {'; '.join(filter(None, (why, reason)))}"
    slow.append(f"{name} is decoded {note}.")
    if missing := missing_packages(model):
        slow.append(f"{name} is slower without the kernels of these packages: pip install {' '.join(missing)}.")
    _quantise(config, model)
    per_token, per_sequence = cache_bytes(runner)
    state = state_tokens(per_token, per_sequence)
    requested_tokens = 2 * config.max_batch * (context + state)  # for running sequences, and as much for snapshots
    free = config.kv_cache_bytes or int(free_bytes(device) * (0.7 if device.type == "cuda" else CPU_SHARE))
    tokens = min(requested_tokens, free // max(1, per_token))
    if tokens < state + 2:
        raise EngineError("out_of_memory", f"{free / GIB:.2f} GiB are too little for a single sequence's state.")
    layout = runner.layout if runner.chunked else None  # a prompt continues after a snapshot as after a chunk
    padded = runner.together == "padded"
    runner.memory = CachesMemory(tokens, state=state, padded=padded, layout=layout, token_bytes=max(1, per_token))
    return runner, note


def _paged_runner(
    config: EngineConfig,
    model: PreTrainedModel | InnerTextModel,
    layers: list[LayerShape],
    context: int,
    sampler: Sampler,
    budget: int,
    slow: list[str],
    readers: Readers | None,
) -> tuple[PackedRunner, int]:
    """Return a runner whose pages use the memory that a step and graphs leave."""
    device = sampler.device
    make_cache = partial(KVCache, layers, dtype=model.dtype, device=device)
    per_token = bytes_per_token(layers, model.dtype)
    kernel = attention_kernels.choose(device, model.dtype, layers, slow)
    size = kernel.page_size if kernel is not None else GATHERED_PAGE_SIZE
    flat = _fused_forward(model, layers, device, slow) if config.flatten is not False and not config.quantize else None
    if config.kv_cache_bytes or device.type != "cuda":
        tokens = _cache_tokens(config, model, per_token, context, device)
    else:
        step, budget = largest_step(model, make_cache, sampler, budget, page=size, kernel=kernel, flat=flat)
        release_unused(device)
        rows = config.max_batch
        graphs = graph_count(rows, context) if kernel is not None and config.cuda_graphs else 0
        tokens = rows + (config.chunk_tokens or CHUNK_TOKENS[0])
        reserve = graphs_reserve(graphs, rows + MAX_CHUNKS, tokens, sampler.vocab_size, step // budget)
        if readers and isinstance(model, InnerTextModel):  # the encoders finish before the layers start
            step = max(step, media_step(model, readers))
            release_unused(device)
        demand = MemoryDemand(per_token, size, requested_tokens=2 * rows * _power_of_two(context))
        shares = share_out(free_bytes(device), demand, step=step, graphs=reserve)
        logger.info("Memory of %s beside the weights: %s.", device, shares)
        tokens = shares.tokens
    pages = PagedMemory(max(2, tokens // size), size)
    cache = make_cache((pages.total + 1) * size)
    return PackedRunner(model, pages, cache, device, kernel=kernel, flat=flat), budget


def _quantise(config: EngineConfig, model: PreTrainedModel) -> None:
    """Quantise the model if requested, before memory is divided."""
    if config.quantize:
        quantise(model, config.quantize)


def _try_recording(
    model: PreTrainedModel, layers: list[LayerShape], how: Rewrite | None = None, reasons: list[str] | None = None
) -> Recording | None:
    """Record the model's forward; None if the recording does not reproduce the model's logits. reasons: gets the reason
    for None."""
    recording = flatten_blocks(model, reasons) if has_blocks(model) else flatten(model, how, reasons)
    return recording if recording is not None and fit_flat(model, layers, recording, reasons) else None


def _fused_forward(
    model: PreTrainedModel, layers: list[LayerShape], device: torch.device, slow: list[str]
) -> Forward | None:
    """Return the model's forward with fused layers, on a device that runs Triton's kernels; None elsewhere."""
    reasons: list[str] = []
    forward = None
    try:
        from agent_server.generation.recorded.fusion import fuse
        from agent_server.generation.recorded.kernels.layers import rms_norm
        from agent_server.generation.recorded.rewrites import Norm

        rms_norm(torch.ones(1, 16, device=device), torch.ones(16, device=device), Norm(1e-6, late=False, offset=0.0))
    except Exception as error:  # whatever Triton, a compiler or its absence brings
        raise_if_lost(error, device)
        reasons.append(f"Triton does not run on {device} ({type(error).__name__}: {first_line(error)})")
    else:
        forward = _try_recording(model, layers, fuse, reasons)
    if forward is None and device.type == "cuda":
        slow.append(f"Layers are not fused, and decoding is slower: {'; '.join(reasons)}.")
    return forward


def is_small(model: PreTrainedModel | InnerTextModel) -> bool:
    return bool(parameter_count(model) < SMALL_PARAMETERS)


def _cache_tokens(
    config: EngineConfig, model: PreTrainedModel, per_token: int, context: int, device: torch.device
) -> int:
    """Return the tokens of keys and values: the configured number, or what the free memory allows."""
    if config.kv_cache_bytes:
        return config.kv_cache_bytes // per_token
    whole = _power_of_two(context)
    demand = MemoryDemand(per_token, page=1, requested_tokens=2 * config.max_batch * whole)
    return cpu_tokens(free_bytes(device), parameter_count(model) * model.dtype.itemsize, demand, whole)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
