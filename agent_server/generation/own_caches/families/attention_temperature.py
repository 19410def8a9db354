"""Llama 4's attention temperature by each row's own positions.

Layers without rotary embeddings scale their queries by a token's position (Nakanishi 2025, "Scalable-Softmax Is
Superior for Attention"). transformers derives it from the number of tokens in the cache, which in a batch is that of
the longest row with its padding. So that rows of all lengths can share a forward, the scale is applied here, by
`position_ids`. Without `position_ids` the model's own code applies it, and the check at load time compares with that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTRIBUTES = ("attn_temperature_tuning", "attn_scale", "floor_scale", "q_proj")
"""The attributes of an attention module that scales its queries like this."""


def scale_by_positions(model: PreTrainedModel) -> None:
    """Make the model's layers scale their queries by `position_ids`."""
    tuned = [
        module
        for module in model.modules()
        if all(hasattr(module, name) for name in ATTRIBUTES) and module.attn_temperature_tuning and not module.use_rope
    ]
    if not tuned:
        return
    current: list[Tensor] = []  # the positions of the forward that runs, if it has any

    def take_positions(model: nn.Module, arguments: tuple[object, ...], options: dict[str, Any]) -> None:
        positions = options.get("position_ids")
        current[:] = [] if positions is None else [positions]
        for module in tuned:
            module.attn_temperature_tuning = positions is None

    model.register_forward_pre_hook(take_positions, with_kwargs=True)
    for module in tuned:
        module.q_proj.register_forward_hook(_scale(module, current))


def _scale(module: Any, positions: list[Tensor]) -> Callable[..., Tensor | None]:
    """Return a hook that multiplies queries `[rows, tokens, width]` by `log(1 + floor((position + 1) / floor_scale)) *
    attn_scale + 1`."""

    def scale(layer: nn.Module, arguments: tuple[Tensor, ...], queries: Tensor) -> Tensor | None:
        if not positions:
            return None
        steps = torch.floor((positions[0].float() + 1.0) / module.floor_scale)
        scales: Tensor = torch.log1p(steps) * module.attn_scale + 1.0
        return (queries * scales[..., None]).to(queries.dtype)

    return scale
