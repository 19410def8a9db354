"""Keys and values in eight bits: FP8 (e4m3: four bits of exponent, three of mantissa), over a scale for each KV head.

A cache of half the size holds twice the tokens, and decoding many long sequences reads half as much. Every number keeps
its relative precision of 1/16 over fifteen powers of two, so that a scale need not be exact: it is set from what a
head's keys and values are for some tokens, when the model is loaded, with room above and below.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.faults import first_line, raise_if_lost

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
"""What e4m3 holds (OFP8 specification, Open Compute Project, 2023); more is cut off, since it knows no infinity."""


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
