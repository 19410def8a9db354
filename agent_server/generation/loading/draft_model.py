"""Load a draft model for speculative decoding, with memory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.core.draft_model import DraftModel
from agent_server.generation.device import free_bytes
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.runner_choice import choose_runner
from agent_server.generation.loading.weights import (
    Report,
    check_files,
    check_memory,
    check_source,
    load_weights,
    read_configuration,
)
from agent_server.generation.sampling.fused_sampler import make_sampler
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files import ModelFiles, load_model_files

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CUDA_SHARE = 0.1
"""The share of a GPU's free memory, with both models loaded, for the draft model's keys and values."""
DRAFT_TOKENS = 5
"""The limit of draft tokens in a step, if neither the operator nor the request sets one."""


def load_draft(
    config: EngineConfig, files: ModelFiles, device: torch.device, dtype: torch.dtype, report: Report
) -> PreTrainedModel | None:
    """Load the draft model's weights in the same dtype; None if the settings name no draft model.

    files: those of the main model, whose tokenizer the draft model must share. Raises EngineError.
    """
    if not config.draft:
        return None
    own = _config(config)
    check_source(own.model)
    settings = read_configuration(own.model, trusted=own.trust_remote_code)
    check_files(own.model, settings, device)
    large, small = files.tokenizer, load_model_files(own.model, trusted=own.trust_remote_code).tokenizer
    # An id must not stand for different tokens. Tokens that only one vocabulary has are never drafted.
    for number in range(min(each.get_vocab_size(with_added_tokens=True) for each in (large, small))):
        token, other = large.id_to_token(number), small.id_to_token(number)
        if token is not None and other is not None and token != other:
            raise EngineError(
                "unavailable",
                f"--draft {config.draft} has another tokenizer than {config.model}: {number} is {other!r} "
                f"there and {token!r} here; choose a smaller model of the same family.",
            )
    check_memory(own, dtype, device)
    return load_weights(own, settings, device, dtype, report)


def _config(config: EngineConfig) -> EngineConfig:
    """Return the settings for the draft model, without the main model's LoRA weights and memory limits."""
    name = Path(config.draft).name
    changes = {"model": config.draft, "name": name, "adapter": "", "lora": (), "kv_cache_dtype": "auto"}
    return config.model_copy(update={**changes, "kv_cache_bytes": 0, "cuda_graphs": False, "quantize": ""})


def make_draft(
    config: EngineConfig,
    model: PreTrainedModel,
    device: torch.device,
    slow: list[str],
    *,
    context: int,
    vocab_size: int,
    step_tokens: int,
) -> DraftModel:
    """Build the draft model's runner. context, vocab_size, step_tokens: those of the main model. Raises EngineError for
    a model that cannot discard computed tokens, as rejected drafts require."""
    own = _config(config)
    if device.type == "cuda":
        own = own.model_copy(update={"kv_cache_bytes": int(CUDA_SHARE * free_bytes(device))})
    text = model.config.get_text_config()
    context = min(context, getattr(text, "max_position_embeddings", None) or context)
    sampler = make_sampler(config.max_batch, text.vocab_size, device, slow)
    runner, note, budget = choose_runner(own, model, context, sampler, step_tokens, slow)
    if not isinstance(runner, PackedRunner):
        raise EngineError("unavailable", f"--draft {config.draft} cannot draft tokens: it is decoded {note}.")
    return DraftModel(runner, sampler, context=context, vocab_size=vocab_size, step_tokens=budget)
