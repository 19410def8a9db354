"""RecurrentGemma's recurrent blocks (De et al. 2024, "Griffin") with their states in the cache.

transformers keeps them in the modules, where one batch has them alone, and hands out no cache. Here they stand in the
cache beside the windows' keys and values, which is handed out; and a prompt may come in pieces, of which the
convolution there sees each alone.
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

READ = ("conv_1d", "conv1d_width", "rg_lru", "linear_x", "linear_y")
"""What a block of that kind has."""
Given = tuple[tuple[object, ...], dict[str, Any]]


class RecurrentCache(DynamicCache):  # type: ignore[misc]
    """states: each block's last inputs of the convolution `[batch, width, kernel - 1]`, and its state `[batch, width]`
    in float32, by the block's number."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.states: dict[int, tuple[Tensor, Tensor]] = {}


def keep_states_in_caches(model: PreTrainedModel) -> None:
    """Have the model keep its states in the cache that it is given, and hand it out."""
    blocks: Any = [module for module in model.modules() if all(hasattr(module, name) for name in READ)]
    if not blocks:
        return
    for number, block in enumerate(blocks):
        block.forward = _recurrent(block, number, block.forward)
    model.register_forward_pre_hook(_provide, with_kwargs=True)
    model.register_forward_hook(_hand_out, with_kwargs=True)


def _provide(model: Any, arguments: tuple[object, ...], options: dict[str, Any]) -> Given | None:
    if not options.get("use_cache") or options.get("past_key_values") is not None:
        return None
    return arguments, {**options, "past_key_values": RecurrentCache(model.config)}


def _hand_out(model: nn.Module, arguments: tuple[object, ...], options: dict[str, Any], output: Any) -> None:
    if options.get("use_cache"):
        output["past_key_values"] = options["past_key_values"]


def _recurrent(block: Any, number: int, own: Callable[..., Any]) -> Callable[..., tuple[Tensor, None]]:
    """The block's forward, from the states in a cache if there is one of the kind above."""

    @wraps(own)
    def forward(hidden: Tensor, position_ids: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        cache = options.get("past_key_values")
        if not isinstance(cache, RecurrentCache):
            result: tuple[Tensor, None] = own(hidden, position_ids, *arguments, **options)
            return result
        inputs = (block.linear_x(hidden) * _of_tokens(position_ids)).transpose(1, 2)
        last, state = cache.states.get(number) or _zeros(block, inputs)
        inputs = torch.cat([last, inputs], -1)
        mixed = _convolved(block.conv_1d, inputs)
        block.rg_lru.recurrent_states = state
        out = block.rg_lru(mixed.transpose(1, 2), position_ids)
        cache.states[number] = inputs[..., inputs.shape[-1] - last.shape[-1] :], block.rg_lru.recurrent_states
        block.rg_lru.recurrent_states = None
        return block.linear_out(out * block.act_fn(block.linear_y(hidden))), None

    return forward


def _of_tokens(positions: Tensor) -> Tensor:
    """Zeros for padding, which has a first token's position and another such behind it: `[batch, tokens, 1]`."""
    return nn.functional.pad(positions[:, 1:] != 0, (0, 1), value=True)[..., None]


def _convolved(conv: nn.Conv1d, inputs: Tensor) -> Tensor:
    if inputs.shape[-1] > conv.kernel_size[0]:
        return conv1d(inputs, conv.weight, conv.bias, groups=conv.groups)
    mixed = (inputs * conv.weight[:, 0]).sum(-1, keepdim=True)
    return mixed if conv.bias is None else mixed + conv.bias[:, None]


def _zeros(block: Any, inputs: Tensor) -> tuple[Tensor, Tensor]:
    batch, width, _ = inputs.shape
    return inputs.new_zeros(batch, width, block.conv1d_width - 1), inputs.new_zeros(batch, width, dtype=torch.float32)
