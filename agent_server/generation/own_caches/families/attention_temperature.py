"""Llama 4's attention temperature by each row's own positions.

Layers without rotary embeddings scale their queries by how far a token is along (Nakanishi 2025, "Scalable-Softmax Is
Superior for Attention"). transformers goes by how many tokens the cache has, which in a batch is the longest row's,
padding included. So that rows of all lengths share a forward, the scale is applied here, by the positions that the
model is given. Where it is given none, its own code does it, which is what the check at load compares with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READ = ("attn_temperature_tuning", "attn_scale", "floor_scale", "q_proj")
"""What a layer's attention has whose scale follows that rule."""


def scale_by_positions(model: PreTrainedModel) -> None:
    """Have the model's layers scale their queries by `position_ids`."""
    tuned = [
        module
        for module in model.modules()
        if all(hasattr(module, name) for name in READ) and module.attn_temperature_tuning and not module.use_rope
    ]
    if not tuned:
        return
    positions: list[Tensor] = []
    model.register_forward_pre_hook(_take_positions(tuned, positions), with_kwargs=True)
    for module in tuned:
        module.q_proj.register_forward_hook(_scale(module, positions))


def _take_positions(tuned: list[Any], captured: list[Tensor]) -> Callable[..., None]:
    def take(model: nn.Module, arguments: tuple[object, ...], options: dict[str, Any]) -> None:
        positions = options.get("position_ids")
        captured[:] = [] if positions is None else [positions]
        for module in tuned:
            module.attn_temperature_tuning = positions is None

    return take


def _scale(module: Any, positions: list[Tensor]) -> Callable[..., Tensor | None]:
    """By `log(1 + floor((position + 1) / floor_scale)) * attn_scale + 1`; queries are `[rows, tokens, width]`."""

    def scale(layer: nn.Module, arguments: tuple[Tensor, ...], queries: Tensor) -> Tensor | None:
        if not positions:
            return None
        steps = torch.floor((positions[0].float() + 1.0) / module.floor_scale)
        scales: Tensor = torch.log1p(steps) * module.attn_scale + 1.0
        return (queries * scales[..., None]).to(queries.dtype)

    return scale
