"""The scales of FP8 keys and values, from what each head writes for some tokens when the model is loaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call, attend, attending, window_mask
from agent_server.generation.attention.fp8 import LARGEST, Scales
from agent_server.generation.attention.kv_cache import LayerShape

HEADROOM = 8.0
"""How much larger than those that a scale is set from numbers may become before they are cut off."""
CALIBRATED_TOKENS = 128


class _Largest:
    """A batch that attends over one sequence and remembers the largest key and value of each head."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, layer: int, call: Call) -> Tensor:
        for found, new in ((self.keys, call.keys), (self.values, call.values)):
            found[layer] = new.float().abs().amax((0, 2))
        mask = window_mask(0, len(call.queries), call.window, call.queries.dtype, call.queries.device)
        queries, keys, values = (t.transpose(0, 1)[None] for t in (call.queries, call.keys, call.values))
        return attend(queries, keys, values, mask, call)[0].transpose(0, 1)


@torch.inference_mode()
def calibrate(model: Any, layers: list[LayerShape]) -> list[Scales]:
    """A scale for each head of each layer of a model that fits packed batches."""
    device, vocabulary = model.device, model.config.get_text_config().vocab_size
    count = min(CALIBRATED_TOKENS, vocabulary)
    ids = torch.arange(count, device=device) * (vocabulary // count)
    largest = _Largest()
    with attending(largest):
        model(
            input_ids=ids[None],
            position_ids=torch.arange(count, device=device)[None],
            attention_mask=torch.zeros(1, 1, 1, 1, device=device),
            use_cache=False,
            kv=largest,
        )
    return [Scales(_scale(largest.keys[layer]), _scale(largest.values[layer])) for layer in range(len(layers))]


def _scale(largest: Tensor) -> Tensor:
    """Such that numbers HEADROOM times as large still fit; a head that gave nothing but zeros has 1."""
    scale = largest * (HEADROOM / LARGEST)
    return torch.where(scale > 0, scale, torch.ones_like(scale))
