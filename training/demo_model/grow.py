"""Start from the weights of a smaller model: the grown network computes what the small one did.

A new layer adds nothing to the residual stream, because the matrices that write to it are zero; new inner features of
a feed-forward block are not read, because their columns are zero. Training then makes use of both.
"""

import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from training.demo_model.model import TinyLlama

LAYER = re.compile(r"layers\.(\d+)\.(.*)")
SILENT = ("o_proj.weight", "down_proj.weight")


def places_of(small: int, large: int) -> list[int]:
    """Return where the layers of the small model stand: the first stays first, the last becomes last."""
    if not 1 < small <= large:
        raise ValueError(f"a model of {small} layers cannot grow to {large}; the larger one needs as many or more")
    return [round(index * (large - 1) / (small - 1)) for index in range(small)]


@torch.no_grad()
def _fill(parameter: Tensor, name: str, weight: Tensor) -> None:
    if any(have < need for have, need in zip(parameter.shape, weight.shape, strict=True)):
        raise ValueError(f"{name}: {tuple(weight.shape)} does not fit into {tuple(parameter.shape)}")
    if name.endswith(SILENT):
        parameter.zero_()
    parameter[tuple(slice(0, size) for size in weight.shape)] = weight


@torch.no_grad()
def grow_from(model: TinyLlama, folder: Path) -> None:
    """Fill a model of the same width with the weights of a smaller model folder.

    Raises ValueError where the folder's model is wider, deeper or of another vocabulary.
    """
    loaded = load_file(folder / "model.safetensors")
    weights = {name.removeprefix("model."): weight.float() for name, weight in loaded.items()}
    depth = 1 + max(int(found[1]) for name in weights if (found := LAYER.match(name)))
    places = places_of(depth, model.shape.layers)
    own = dict(model.named_parameters())
    for name, parameter in own.items():
        if name.endswith(SILENT):
            parameter.zero_()
    for name, weight in weights.items():
        if name == "lm_head.weight":
            continue
        found = LAYER.match(name)
        target = f"layers.{places[int(found[1])]}.{found[2]}" if found else name
        _fill(own[target].data, target, weight)
