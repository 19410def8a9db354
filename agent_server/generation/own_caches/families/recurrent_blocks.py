"""RecurrentGemma's recurrent blocks (De et al. 2024, "Griffin") with their states in the cache.

transformers stores the states in the modules, where only one batch can have them, and returns no cache. Here they are
in the cache with the keys and values of the windows, and the cache is returned. Prompts can then be computed in chunks
too: transformers' convolution would not see the tokens of earlier chunks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d
from transformers import DynamicCache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTRIBUTES = ("conv_1d", "conv1d_width", "rg_lru", "linear_x", "linear_y")
"""The attributes of a recurrent block."""


class RecurrentCache(DynamicCache):  # type: ignore[misc]
    """states: by the block's number, the last inputs of its convolution `[batch, width, kernel - 1]` and its state
    `[batch, width]` in float32."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.states: dict[int, tuple[Tensor, Tensor]] = {}


def keep_states_in_caches(model: PreTrainedModel) -> None:
    """Make the model store its states in its cache, and return the cache."""
    blocks: Any = [module for module in model.modules() if all(hasattr(module, name) for name in ATTRIBUTES)]
    if not blocks:
        return

    def provide_cache(
        model: Any, arguments: tuple[object, ...], options: dict[str, Any]
    ) -> tuple[tuple[object, ...], dict[str, Any]] | None:
        if not options.get("use_cache") or options.get("past_key_values") is not None:
            return None
        return arguments, {**options, "past_key_values": RecurrentCache(model.config)}

    def return_cache(model: nn.Module, arguments: tuple[object, ...], options: dict[str, Any], output: Any) -> None:
        if options.get("use_cache"):
            output["past_key_values"] = options["past_key_values"]

    for number, block in enumerate(blocks):
        block.forward = _recurrent(block, number, block.forward)
    model.register_forward_pre_hook(provide_cache, with_kwargs=True)
    model.register_forward_hook(return_cache, with_kwargs=True)


def _recurrent(block: Any, number: int, own: Callable[..., Any]) -> Callable[..., tuple[Tensor, None]]:
    """Return the block's forward, which continues from the states of a RecurrentCache if it gets one."""

    @wraps(own)
    def forward(hidden: Tensor, position_ids: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        cache = options.get("past_key_values")
        if not isinstance(cache, RecurrentCache):
            result: tuple[Tensor, None] = own(hidden, position_ids, *arguments, **options)
            return result
        # Padding and the first token all have position 0; only a token before the last such one is padding.
        is_token = nn.functional.pad(position_ids[:, 1:] != 0, (0, 1), value=True)[..., None]
        inputs = (block.linear_x(hidden) * is_token).transpose(1, 2)
        batch, width, _ = inputs.shape
        last, state = cache.states.get(number) or (
            inputs.new_zeros(batch, width, block.conv1d_width - 1),
            inputs.new_zeros(batch, width, dtype=torch.float32),
        )
        inputs = torch.cat([last, inputs], -1)
        conv = block.conv_1d
        if inputs.shape[-1] > conv.kernel_size[0]:
            mixed = conv1d(inputs, conv.weight, conv.bias, groups=conv.groups)
        else:
            mixed = (inputs * conv.weight[:, 0]).sum(-1, keepdim=True)
            mixed = mixed if conv.bias is None else mixed + conv.bias[:, None]
        block.rg_lru.recurrent_states = state
        out = block.rg_lru(mixed.transpose(1, 2), position_ids)
        cache.states[number] = inputs[..., inputs.shape[-1] - last.shape[-1] :], block.rg_lru.recurrent_states
        block.rg_lru.recurrent_states = None
        return block.linear_out(out * block.act_fn(block.linear_y(hidden))), None

    return forward
