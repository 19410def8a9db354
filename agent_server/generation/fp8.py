"""Keys and values in eight bits: FP8 (e4m3: four bits of exponent, three of mantissa), over a scale for each KV head.

A cache of half the size holds twice the tokens, and decoding many long sequences reads half as much. Every number keeps
its relative precision of 1/16 over fifteen powers of two, so that a scale need not be exact: it is set from what a
head's keys and values are for some tokens, when the model is loaded, with room above and below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.engine.protocol import EngineError
from agent_server.generation.attention import Call, attend, attending, window_mask
from agent_server.generation.faults import first_line, raise_if_lost

if TYPE_CHECKING:
    from agent_server.generation.kv_cache import LayerShape

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""What e4m3 holds (OFP8 specification, Open Compute Project, 2023); more is cut off, since it knows no infinity."""
HEADROOM = 8.0
"""How much larger than those that a scale is set from numbers may become before they are cut off."""
CALIBRATED_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Scales:
    """What FP8 keys and values are multiplied by, `[kv_heads]` float32 each."""

    keys: Tensor
    values: Tensor


def pack(tensor: Tensor, scales: Tensor) -> Tensor:
    """`[..., kv_heads, dim]` over its scales as the bits of FP8 in uint8: to the nearest, ties to even, cut off."""
    scaled = (tensor.float() / scales[:, None]).clamp(-LARGEST, LARGEST)
    return scaled.to(FP8).view(torch.uint8)


def unpack(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers behind the bits."""
    return (codes.view(FP8).float() * scales[:, None]).to(dtype)


def check_device(device: torch.device) -> None:
    """Raise EngineError if torch cannot convert to FP8 and back there."""
    try:
        given = torch.ones(1, 2, device=device)
        unpack(pack(given, given[0, :1]), given[0, :1], torch.float32)
    except Exception as error:  # whatever a backend brings
        raise_if_lost(error, device)
        raise EngineError(
            "unavailable",
            f"Keys and values cannot be kept in FP8: torch {torch.__version__} does not convert to it on {device} "
            f"({first_line(error)}); leave --kv-cache-dtype at auto.",
        ) from error


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
