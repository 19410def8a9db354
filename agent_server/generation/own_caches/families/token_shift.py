"""RWKV's token shift (Peng et al. 2023, "RWKV", section 3.1) for several sequences.

transformers adds the last input of a layer, `[batch, width]`, to the next token's `[batch, 1, width]`, which broadcasts
every row's to all others. Here it is prepended to the tokens of its row, of which there may be several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ATTENTION, FEED_FORWARD = 1, 0
"""The indices, in a model's state, of the last inputs of each kind of layer, `[batch, width, layers]`."""
State = list[Tensor] | None


def shift_by_rows(model: PreTrainedModel) -> None:
    """Make the model's layers use each row's own last token."""
    modules: Any = (module for module in model.modules() if hasattr(module, "time_mix_receptance"))
    for module in modules:
        if hasattr(module, "extract_key_value"):
            module.extract_key_value = _keys_and_values(module)
        else:
            module.forward = _feed_forward(module)


def _keys_and_values(layer: Any) -> Callable[..., tuple[Tensor, Tensor, Tensor, State]]:
    def extract(hidden: Tensor, state: State = None) -> tuple[Tensor, Tensor, Tensor, State]:
        before = _before(hidden, state, ATTENTION, layer.layer_id)
        key, value, receptance = (
            torch.lerp(before, hidden, mix)
            for mix in (layer.time_mix_key, layer.time_mix_value, layer.time_mix_receptance)
        )
        return torch.sigmoid(layer.receptance(receptance)), layer.key(key), layer.value(value), state

    return extract


def _feed_forward(layer: Any) -> Callable[..., tuple[Tensor, State]]:
    def forward(hidden: Tensor, state: State = None) -> tuple[Tensor, State]:
        before = _before(hidden, state, FEED_FORWARD, layer.layer_id)
        key = torch.lerp(before, hidden, layer.time_mix_key)
        receptance = torch.sigmoid(layer.receptance(torch.lerp(before, hidden, layer.time_mix_receptance)))
        return receptance * layer.value(torch.square(torch.relu(layer.key(key)))), state

    return forward


def _before(hidden: Tensor, state: State, kind: int, layer: int) -> Tensor:
    """Return the token before each, `[batch, tokens, width]`, and store the last one in the state."""
    before = torch.nn.functional.pad(hidden[:, :-1], (0, 0, 1, 0))
    if state is not None:
        before[:, 0] = state[kind][:, :, layer]
        state[kind][:, :, layer] = hidden[:, -1]
    return before
