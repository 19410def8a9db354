"""What a core tells of itself and its model once it is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from agent_server.engine_protocol.protocol import SOUND_RATE, EngineInfo
from agent_server.generation.core.generation import HONOURED
from agent_server.generation.core.step import Core
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.linear_layers import parameter_count
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.multimodal.media_reader import MediaReader
from agent_server.generation.scheduling.config import EngineConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKED_ONLY = frozenset({"prompt_logprobs", "num_speculative_tokens"})
"""Parameters that only packed batches honour."""


def engine_info(
    config: EngineConfig,
    core: Core,
    model: PreTrainedModel | InnerTextModel,
    device: torch.device,
    *,
    context: int,
    vocab_size: int,
    batching: str,
) -> EngineInfo:
    """For the server, its clients and the operator. context: in tokens. batching: how sequences share a step where they
    are not packed, and why; empty where they are."""
    packed = core.runner if isinstance(core.runner, PackedRunner) else None
    sounds = None if core.multimodal is None else core.multimodal.sounds
    return EngineInfo(
        model=config.name or config.model,
        context_length=context,
        vocab_size=vocab_size,
        sampling=HONOURED if packed is not None else HONOURED - PACKED_ONLY,
        supports_constraints=core.compiler is not None,
        continues="exact",
        keeps_places=config.kept_seconds if config.kept_percent else 0.0,
        adapters=packed is not None,
        tells_progress=True,
        placeholders={kind: reader.placeholder for kind, reader in _readers(core).items()},
        sound_rate=SOUND_RATE if sounds is None else sounds.rate,
        sound_seconds=0 if sounds is None else sounds.seconds,
        details={
            "architecture": type(getattr(model, "whole", model)).__name__,
            "parameters": parameter_count(model),
            "memory_bytes": _memory(model, packed),
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(device),
            "batching": batching or "packed",
            **_cache_details(config, core),
            **_packed_details(config, packed),
        },
    )


def _readers(core: Core) -> dict[str, MediaReader]:
    return {} if core.multimodal is None else core.multimodal.readers


def _cache_details(config: EngineConfig, core: Core) -> dict[str, object]:
    """How keys and values are kept, and how long steps are, in tokens."""
    runner, scheduler = core.runner, core.scheduler
    return {
        "kv_cache_dtype": config.kv_cache_dtype,
        "kv_cache_tokens": runner.cache.tokens if isinstance(runner, PackedRunner) else runner.memory.longest,
        "step_tokens": scheduler.step_tokens,
        "chunk_tokens": scheduler.chunk_tokens or scheduler.step_tokens,
    }


def _packed_details(config: EngineConfig, packed: PackedRunner | None) -> dict[str, object]:
    """What makes steps faster."""
    return {
        "quantized": config.quantize or "no",
        "attention": "torch" if packed is None or packed.kernel is None else packed.kernel.name,
        "flat": packed is not None and packed.flat is not None,
        "draft": config.draft or "no",
        "cuda_graphs": packed is not None and packed.graphs is not None,
    }


def _memory(model: PreTrainedModel | InnerTextModel, runner: PackedRunner | None) -> int:
    """Bytes of the weights, and of keys and values; what caches of the model's own may grow to is not set aside."""
    kept = () if runner is None else (*runner.cache.keys, *runner.cache.values)
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *kept))
