"""MiniMax M1's lightning attention (Qin et al. 2024, "Lightning Attention-2") for prompts in chunks.

transformers' cache takes its length from its first layer. That layer stores no keys, so a later chunk of a prompt gets
a mask as if it were the first. And transformers continues from a state token by token, although it can be done in
blocks, as from zeros.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import sigmoid

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CACHE = "MiniMaxCache"
STATE = "get_linear_cache"
ATTRIBUTES = ("slope_rate", "query_decay", "key_decay", "diagonal_decay", "block_size", "output_gate", "qkv_proj")
"""The attributes of a layer with lightning attention."""


def count_by_keys(model: PreTrainedModel) -> None:
    """Give the model caches that know their length, and make its layers continue from a state in blocks."""
    own = getattr(sys.modules[type(model).__module__], CACHE, None)
    layers: Any = [module for module in model.modules() if all(hasattr(module, name) for name in ATTRIBUTES)]
    if own is None or not layers:
        return
    indices = {layer.layer_idx for layer in layers}
    count = model.config.get_text_config().num_hidden_layers
    keyed = next((index for index in range(count) if index not in indices), None)
    if keyed is None:
        return
    counted_cache = _counted_cache(own, indices, keyed)

    def provide_cache(
        model: nn.Module, arguments: tuple[object, ...], options: dict[str, Any]
    ) -> tuple[tuple[object, ...], dict[str, Any]] | None:
        if not options.get("use_cache") or options.get("past_key_values") is not None:
            return None
        return arguments, {**options, "past_key_values": counted_cache()}

    model.register_forward_pre_hook(provide_cache, with_kwargs=True)
    for layer in layers:
        layer.forward = _in_blocks(layer, layer.forward)


def _counted_cache(own: Any, states: set[int], keyed: int) -> Any:
    """Return the class of caches with a length. Layers with states and no keys have the length of the layer `keyed`."""

    class CountedCache(own):  # type: ignore[misc]
        def get_seq_length(self, layer_idx: int = 0) -> int:
            return int(super().get_seq_length(keyed if layer_idx in states else layer_idx))

        def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
            sizes: tuple[int, int] = super().get_mask_sizes(query_length, keyed if layer_idx in states else layer_idx)
            return sizes

    return CountedCache


def _in_blocks(layer: Any, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return the layer's forward, with several tokens after a state computed in blocks."""

    @wraps(own)
    def forward(hidden_states: Tensor, *arguments: Any, past_key_values: Any = None, **options: Any) -> Any:
        state = None if past_key_values is None else past_key_values.get_linear_cache(layer.layer_idx)
        if state is None or hidden_states.shape[1] == 1:
            return own(hidden_states, *arguments, past_key_values=past_key_values, **options)
        mask = options.get("attention_mask")
        batch, tokens, _ = hidden_states.shape
        mixed = layer.act_fn(layer.qkv_proj(hidden_states))
        if mask is not None:
            mixed = (mixed * mask[:, :, None]).to(mixed.dtype)
        heads = mixed.reshape(batch, tokens, layer.num_attention_heads, 3 * layer.head_dim).transpose(1, 2)
        outs = []
        for part in heads.split(layer.block_size, 2):
            query, key, value = part.chunk(3, -1)
            size = part.shape[2]
            within = query @ key.transpose(-1, -2) * layer.diagonal_decay[:, :, :size, :size]
            outs.append(within @ value + query * layer.query_decay[:, :size] @ state)
            added = (key * layer.key_decay[:, -size:]).transpose(-1, -2) @ value
            state = state * torch.exp(-layer.slope_rate * size) + added
        past_key_values.set_linear_cache(layer.layer_idx, state)
        out = layer.norm(torch.cat(outs, 2).transpose(1, 2).reshape(batch, tokens, -1))
        return layer.out_proj(sigmoid(layer.output_gate(hidden_states)) * out), state

    return forward
