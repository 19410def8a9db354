"""What transformers made of a checkpoint's files: every tensor must come from them, fit, and be a number."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.checkpoints.checkpoint import SAFETENSORS, tensor_names, weight_files
from agent_server.model_files import UnusableFile, is_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger("agent_server.generation")
COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""Formats in which torch can compare; values of the others, of eight bits and less, are scaled by such ones."""


def check_loaded(source: str, model: PreTrainedModel, found: Mapping[str, Collection[Any]]) -> None:
    """Raise EngineError if tensors were missing, which transformers fills with random numbers, had another shape, or
    hold what is not a number. found: transformers' loading information."""
    missing = sorted(found["missing_keys"])
    if missing:
        raise _unusable(
            source,
            missing[0],
            f"lacks {_counted(missing)} that {type(model).__name__} needs; without them the answers would be random",
        )
    for name, had, wanted in sorted(found["mismatched_keys"]):
        file, asks = ("metadata", "they ask") if is_gguf(source) else ("config.json", "config.json asks")
        shapes = f"{_shape(had)} where {asks} for {_shape(wanted)}"
        raise _unusable(source, name, f"does not fit its {file}: the tensor {name} is {shapes}")
    unknown = sorted(found["unexpected_keys"])
    if unknown:
        logger.info("%s has %s that %s does not use.", source, _counted(unknown), type(model).__name__)
    _check_numbers(source, model)


def _check_numbers(source: str, model: PreTrainedModel) -> None:
    scales = (  # of GGUF's blocks
        (name.removesuffix("scales") + "weight", each)
        for name, each in model.named_buffers()
        if name.endswith(".scales")
    )
    for name, parameter in itertools.chain(model.named_parameters(), scales):
        if parameter.dtype not in COMPUTED or not parameter.numel() or parameter.is_meta:
            continue
        if type(parameter.data) is not Tensor:  # torchao's, which look like what they stand for and compute little
            continue
        if not is_finite(parameter):
            raise _unusable(source, name, f"has values in the tensor {name} that are not finite numbers")


def is_finite(parameter: Tensor) -> bool:
    """Whether all values are finite numbers; nothing is copied."""
    low, high = parameter.detach().aminmax()  # either is NaN where any value is
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _unusable(source: str, tensor: str, what: str) -> EngineError:
    place = _place(Path(source).expanduser(), tensor)
    return EngineError("unavailable", f"{place or source} {what}; download the model again.")


def _place(folder: Path, tensor: str) -> Path | None:
    """The file that a tensor of a folder is in, or should be in; None where that cannot be told."""
    try:
        files = weight_files(folder)
    except UnusableFile:
        return None
    holding = [file for file in files if file.name.endswith(".safetensors") and tensor in set(tensor_names(file))]
    if holding:
        return holding[0]
    return files[0] if len(files) == 1 else folder / f"{SAFETENSORS}.index.json"


def _counted(names: list[str]) -> str:
    return f"the tensor {names[0]}" if len(names) == 1 else f"{len(names)} tensors ({names[0]} first)"


def _shape(sizes: Collection[int]) -> str:
    return " × ".join(map(str, sizes))
