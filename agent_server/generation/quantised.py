"""Weights in eight or four bits, made of a model's own when it is loaded, and multiplied by torch's packed kernels.

int8: each row of a weight matrix has one scale. On an x86 CPU the inputs are rounded to eight bits too, each token by a
scale of its own, so that a token's result does not depend on what else is in the batch. int4: groups of 32 weights have
a scale and an offset each. What is multiplied is the layers' `torch.nn.Linear`; embeddings, norms and the batched
weights of experts stay as they are.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from agent_server.engine.protocol import EngineError
from agent_server.generation.faults import first_line
from agent_server.generation.linear_layers import StandIn, linears, parameter_count, replaced
from agent_server.generation.multimodal.language import InnerTextModel

logger = logging.getLogger("agent_server.generation")
Product = Callable[[Tensor], Tensor]
"""Inputs `[rows, in]` → outputs `[rows, out]` without the bias, both in the model's dtype."""
GROUP = 32
"""Weights of a row that share a scale in four bits."""
EIGHT_BITS, FOUR_BITS = 127, 15
INNER_TILES = 8
"""Tiles of the inner dimension that CUDA's four-bit kernel takes at once: aten's inner_k_tiles."""
LEAST_SCALE = 1e-9
FAR_OFF = {"int8": 0.05, "int4": 0.25}
"""Largest error of a product, relative to its length, that rounding explains; a kernel that is further off is not
used."""


class QuantisedLinear(StandIn):
    """Rounded weights, multiplied by a kernel."""

    def __init__(self, linear: nn.Linear, product: Product) -> None:
        super().__init__(linear)
        self._product = product

    def forward(self, inputs: Tensor) -> Tensor:
        found = self._product(inputs.reshape(-1, self.in_features)).reshape(*inputs.shape[:-1], self.out_features)
        return found if self.bias is None else found + self.bias


@torch.inference_mode()
def quantise(model: Any, kind: str) -> None:
    """Replace the model's linear layers one after the other, so that memory holds both forms of one of them alone.
    kind: "int8" or "int4"; a layer whose sizes four bits do not allow gets eight, and so does the last one, whose
    errors reach the token directly. Raises EngineError where no kernel works on the model's device."""
    whole = model.whole if isinstance(model, InnerTextModel) else model
    last = whole.get_output_embeddings()
    for linear, places in linears(model):
        own = "int8" if linear is last or not _grouped(linear) else kind
        made = QuantisedLinear(linear, _product(linear, own))
        for parent, name in places:
            setattr(parent, name, made)
    rounded_ = replaced(model, QuantisedLinear)
    if not rounded_:
        raise EngineError("unavailable", f"--quantize {kind}: the model has no layers that it applies to.")
    logger.info("%.0f%% of the weights are %s.", 100 * rounded_ / parameter_count(model), kind)


def _grouped(linear: nn.Linear) -> bool:
    return linear.in_features % GROUP == 0 and linear.out_features % GROUP == 0


def _product(linear: nn.Linear, kind: str) -> Product:
    """The first kernel that works on this device and comes close to the product with the weights themselves."""
    weight = linear.weight.detach()
    reasons = []
    for kernel in KERNELS[kind, weight.device.type == "cpu"]:
        try:
            product = kernel(weight)
            off = _error(product, weight)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            reasons.append(first_line(error))
            continue
        if off <= FAR_OFF[kind]:
            return product
        reasons.append(f"{kernel.__name__} is off by {off:.0%}")
    raise EngineError(
        "unavailable",
        f"--quantize {kind} has no kernel on {weight.device.type} in torch {torch.__version__}: {'; '.join(reasons)}",
    )


def _error(product: Product, weight: Tensor) -> float:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    wanted = (inputs @ weight.T).float()
    return float((product(inputs).float() - wanted).norm() / wanted.norm().clamp_min(LEAST_SCALE))


# eight bits


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[out, in]` → int8 of the same shape and a float32 scale for each row."""
    scales = (weight.float().abs().amax(1) / EIGHT_BITS).clamp_min(LEAST_SCALE)
    return (weight.float() / scales[:, None]).round().to(torch.int8), scales


def packed_x86(weight: Tensor) -> Product:
    """oneDNN's products of eight-bit integers. Without VNNI two products are added up in 16 bits, where inputs of eight
    bits overflow; seven do not."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise NotImplementedError("products of eight-bit integers are made for x86 here")
    whole, scales = rounded(weight)
    packed, zeros = torch.ops.onednn.qlinear_prepack(whole, None), torch.zeros(len(scales), dtype=torch.int32)
    multiply, dtype = torch.ops.onednn.qlinear_pointwise.default, weight.dtype
    largest, zero = (127, 128) if multiplies_int8() else (63, 64)

    def product(inputs: Tensor) -> Tensor:
        steps = (inputs.abs().amax(-1, keepdim=True).float() / largest).clamp_min(LEAST_SCALE)
        codes = (inputs / steps).round_().add_(zero).to(torch.uint8)
        found: Tensor = multiply(codes, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return found.mul_(steps).to(dtype)

    return product


def multiplies_int8() -> bool:
    """Whether this CPU adds up products of eight-bit integers in 32 bits (VNNI)."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


def packed_int8(weight: Tensor) -> Product:
    """torch's product of inputs as they are with weights in eight bits."""
    whole, scales = rounded(weight)
    multiply, scales = torch.ops.aten._weight_int8pack_mm, scales.to(weight.dtype)
    return lambda inputs: multiply(inputs.contiguous(), whole, scales)


# four bits


def grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """`[out, in]` → int32 from 0 to 15 of the same shape, and `[in / GROUP, out, 2]`: each group's scale, and the value
    that 8 stands for."""
    groups = weight.float().reshape(len(weight), -1, GROUP)
    low, high = groups.aminmax(dim=-1)
    scales = ((high - low) / FOUR_BITS).clamp_min(LEAST_SCALE)
    whole = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, FOUR_BITS).to(torch.int32)
    return whole.flatten(1), torch.stack([scales, low + 8 * scales], -1).transpose(0, 1).contiguous()


def packed_int4_cpu(weight: Tensor) -> Product:
    whole, scales = grouped(weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    multiply, scales = torch.ops.aten._weight_int4pack_mm_for_cpu, scales.to(weight.dtype)
    return lambda inputs: multiply(inputs.contiguous(), packed, GROUP, scales)


def packed_int4_cuda(weight: Tensor) -> Product:
    """torch's kernel for compute capability 8.0 and later; two weights to a byte, the first in the upper half."""
    whole, scales = grouped(weight)
    pairs = (whole[:, ::2] << 4 | whole[:, 1::2]).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(pairs, INNER_TILES)
    multiply, scales = torch.ops.aten._weight_int4pack_mm, scales.to(torch.bfloat16)
    return lambda inputs: multiply(inputs.bfloat16().contiguous(), packed, GROUP, scales).to(inputs.dtype)


KERNELS: dict[tuple[str, bool], list[Callable[[Tensor], Product]]] = {
    ("int8", True): [packed_x86, packed_int8],
    ("int8", False): [packed_int8],
    ("int4", True): [packed_int4_cpu],
    ("int4", False): [packed_int4_cuda],
}
"""By kind and whether it is the CPU: what is tried, the fastest first."""
