"""Quantise a model's weights to eight or four bits when it is loaded, for torch's packed products on a CPU.

int8: each row of a weight matrix has one scale. On an x86 CPU the inputs are rounded to eight bits too, with a scale
for each token, so that a token's result does not depend on the rest of the batch. int4: groups of 32 weights have a
scale and an offset each. Only `torch.nn.Linear` layers are quantised; embeddings, norms and the batched weights of
experts are unchanged.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.faults import first_line
from agent_server.generation.loading.linear_layers import ReplacementLinear, linears, parameter_count, replaced_weights
from agent_server.generation.multimodal.language import InnerTextModel
from agent_server.generation.recorded.flat import Recording

logger = logging.getLogger("agent_server.generation")
Rounded = tuple[Tensor, Tensor]
"""Inputs in eight bits, and each row's scale."""


class Product(NamedTuple):
    """A product: inputs `[rows, in]` → outputs `[rows, out]` without the bias, both in the model's dtype. prepare:
    converts the inputs first; products that can share the result have the same function."""

    multiply: Callable[[Any], Tensor]
    prepare: Callable[[Tensor], Any] = Tensor.contiguous

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.multiply(self.prepare(inputs))


GROUP = 32
"""Weights of a row that share a scale in four bits."""
EIGHT_BITS, FOUR_BITS = 127, 15
LEAST_SCALE = 1e-9
MAX_ERROR = {"int8": 0.05, "int4": 0.25}
"""Largest error of a product, relative to its norm, that is attributed to rounding; kernels with a larger error are not
used."""
MOST_NAMED = 4
"""The number of layers that the log names."""


class InaccurateKernel(Exception):
    """No working kernel is close enough to the weight's own product. The message has each kernel's error."""


class QuantisedLinear(ReplacementLinear):
    """A linear layer with quantised weights, multiplied by a kernel."""

    def __init__(self, linear: nn.Linear, product: Product) -> None:
        super().__init__(linear)
        self.product = product

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.product(inputs.reshape(-1, self.in_features)).reshape(*inputs.shape[:-1], self.out_features)
        return outputs if self.bias is None else outputs + self.bias


class JoinedProduct:
    """One product for layers with the same input, each of which takes its rows. It is computed for the first layer, and
    its outputs are freed after the last one has read its rows."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.layers = 0
        self._inputs: Tensor | None = None
        self._outputs: Tensor | None = None
        self._pending_layers = 0

    def rows(self, inputs: Tensor, start: int, count: int) -> Tensor:
        if self._inputs is not inputs or self._outputs is None:
            self._inputs, self._pending_layers = inputs, self.layers
            outputs = self.product(inputs.reshape(-1, inputs.shape[-1]))
            self._outputs = outputs.reshape(*inputs.shape[:-1], outputs.shape[-1])
        part = self._outputs.narrow(-1, start, count)
        self._pending_layers -= 1
        if not self._pending_layers:
            self._inputs = self._outputs = None
        return part


class QuantisedPart(QuantisedLinear):
    """A layer without a bias whose quantised weights are rows of a joined product, from `start` on."""

    def __init__(self, linear: nn.Linear, joined: JoinedProduct, start: int) -> None:
        super().__init__(linear, joined.product)
        self._joined, self._start = joined, start
        joined.layers += 1

    def forward(self, inputs: Tensor) -> Tensor:
        return self._joined.rows(inputs, self._start, self.out_features)


@torch.inference_mode()
def quantise(model: Any, kind: str, recording: Recording | None = None) -> None:
    """Replace the model's linear layers and those of its recorded forward, one by one, so that few layers are in memory
    in both forms.

    kind: "int8" or "int4". A layer whose sizes do not allow four bits gets eight, as does the output layer, whose
    errors affect the token directly. A layer that loses too much (MAX_ERROR) is unchanged. Raises EngineError if no
    kernel works on the model's device.
    """
    whole = model.whole if isinstance(model, InnerTextModel) else model
    rounding = _Rounding(kind, whole.get_output_embeddings(), recording)
    names = {id(module): name for name, module in whole.named_modules()}
    wider: dict[str, str] = {}
    for linear, places in linears(model):
        try:
            layer = rounding.layer(linear)
        except InaccurateKernel as reason:
            wider[names[id(linear)]] = str(reason)  # not the exception, whose frames hold weights
            continue
        for parent, name in places:
            setattr(parent, name, layer)
    if recording is not None:
        recording.build()
    quantised_weights = replaced_weights(model, QuantisedLinear)
    if not quantised_weights and wider:
        raise _without_kernel(kind, whole.device.type, next(iter(wider.values())))
    if not quantised_weights:
        raise EngineError("unavailable", f"--quantize {kind}: the model has no layers that it applies to.")
    logger.info("%.0f%% of the weights are %s.", 100 * quantised_weights / parameter_count(model), kind)
    if wider:
        named = [f"{name} ({reason})" for name, reason in wider.items()][:MOST_NAMED]
        more = f" and {len(wider) - MOST_NAMED} more" if len(wider) > MOST_NAMED else ""
        logger.warning(
            "--quantize %s loses too much in %d of the layers, which stay in %s: %s%s.",
            kind, len(wider), str(whole.dtype).removeprefix("torch."), "; ".join(named), more,
        )  # fmt: skip


class _Rounding:
    """Makes quantised layers one by one. Layers with the same input share a product in the recording, and only their
    weights are concatenated at a time."""

    def __init__(self, kind: str, last: nn.Module | None, recording: Recording | None) -> None:
        self._kind, self._last, self._recording = kind, last, recording
        self._parts: dict[int, tuple[JoinedProduct, int]] = {}
        """A weight's product and its first row in it, by the weight's data pointer."""
        if recording is not None:
            recording.release()

    def layer(self, linear: nn.Linear) -> QuantisedLinear:
        weight = linear.weight.detach()
        kind = "int8" if linear is self._last else self._kind
        if self._recording is None:
            return QuantisedLinear(linear, _product([weight], kind))
        if weight.data_ptr() not in self._parts:
            weights = self._recording.same_input_weights(weight)
            try:
                product = _product(weights, kind)
            except InaccurateKernel:
                if len(weights) == 1:
                    raise
                weights, product = [weight], _product([weight], kind)
            self._recording.multiply_by(weights, product.prepare, product.multiply)
            if len(weights) == 1:
                return QuantisedLinear(linear, product)
            joined, start = JoinedProduct(product), 0
            for part in weights:
                self._parts[part.data_ptr()] = joined, start
                start += len(part)
        return QuantisedPart(linear, *self._parts.pop(weight.data_ptr()))


def _product(weights: list[Tensor], kind: str) -> Product:
    """Return the product of the first kernel that works on this device and is close to that of each weight. Raises
    InaccurateKernel if no working kernel is close enough, and EngineError if none works."""
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    sizes = [len(part) for part in weights]
    reasons: list[str] = []
    works = False
    kind = kind if all(size % GROUP == 0 for size in weight.shape) else "int8"
    for kernel in KERNELS[kind]:
        try:
            product = kernel(weight)
            off = max(_errors(product, weight, sizes))
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            reasons.append(first_line(error))
            continue
        if off <= MAX_ERROR[kind]:
            return product
        works = True
        reasons.append(f"{kernel.__name__} is off by {off:.1%}")
    if works:
        raise InaccurateKernel("; ".join(reasons))
    raise _without_kernel(kind, weight.device.type, "; ".join(reasons))


def _without_kernel(kind: str, device: str, reasons: str) -> EngineError:
    return EngineError(
        "unavailable", f"--quantize {kind} has no kernel on {device} in torch {torch.__version__}: {reasons}"
    )


def _errors(product: Product, weight: Tensor, sizes: list[int]) -> list[float]:
    """Return a product's error in each part of `sizes` rows, relative to the norm of the exact result."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, weight.shape[1], generator=generator).to(weight.device, weight.dtype)
    expected = (inputs @ weight.T).float()
    parts = zip(
        (product(inputs).float() - expected).split_with_sizes(sizes, -1),
        expected.split_with_sizes(sizes, -1),
        strict=True,
    )
    return [float(difference.norm() / part.norm().clamp_min(LEAST_SCALE)) for difference, part in parts]


# eight bits


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round `[out, in]` to int8 of the same shape and a float32 scale for each row."""
    scales = (weight.float().abs().amax(1) / EIGHT_BITS).clamp_min(LEAST_SCALE)
    return (weight.float() / scales[:, None]).round().to(torch.int8), scales


def packed_x86(weight: Tensor) -> Product:
    """Return oneDNN's product of eight-bit integers. Without VNNI, two products are added in 16 bits, which eight-bit
    inputs overflow; seven bits do not."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        raise NotImplementedError("products of eight-bit integers are only supported on x86")
    whole, scales = rounded(weight)
    packed, zeros = torch.ops.onednn.qlinear_prepack(whole, None), torch.zeros(len(scales), dtype=torch.int32)
    multiply, dtype = torch.ops.onednn.qlinear_pointwise.default, weight.dtype
    largest = 127 if multiplies_int8() else 63
    zero = largest + 1

    def product(rounded_inputs: Rounded) -> Tensor:
        codes, steps = rounded_inputs
        outputs: Tensor = multiply(codes, 1.0, zero, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")
        return outputs.mul_(steps).to(dtype)

    return Product(product, input_rounding(largest))


@cache
def input_rounding(largest: int) -> Callable[[Tensor], Rounded]:
    """Return a function that rounds inputs with a scale for each token; the codes are centred at largest + 1."""

    def round_inputs(inputs: Tensor) -> Rounded:
        steps = (inputs.abs().amax(-1, keepdim=True).float() / largest).clamp_min_(LEAST_SCALE)
        return (inputs / steps).round_().add_(largest + 1).to(torch.uint8), steps

    return round_inputs


def multiplies_int8() -> bool:
    """Return whether this CPU adds products of eight-bit integers in 32 bits (VNNI)."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


def packed_int8(weight: Tensor) -> Product:
    """Return torch's product of unrounded inputs with eight-bit weights."""
    whole, scales = rounded(weight)
    multiply, scales = torch.ops.aten._weight_int8pack_mm, scales.to(weight.dtype)
    return Product(lambda inputs: multiply(inputs, whole, scales))


# four bits


def grouped(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round `[out, in]` to int32 from 0 to 15 of the same shape, and `[in / GROUP, out, 2]`: each group's scale, and
    the value of the code 8."""
    groups = weight.float().reshape(len(weight), -1, GROUP)
    low, high = groups.aminmax(dim=-1)
    scales = ((high - low) / FOUR_BITS).clamp_min(LEAST_SCALE)
    whole = ((groups - low[..., None]) / scales[..., None]).round().clamp(0, FOUR_BITS).to(torch.int32)
    return whole.flatten(1), torch.stack([scales, low + 8 * scales], -1).transpose(0, 1).contiguous()


def packed_int4_cpu(weight: Tensor) -> Product:
    whole, scales = grouped(weight)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, 1)
    multiply, scales = torch.ops.aten._weight_int4pack_mm_for_cpu, scales.to(weight.dtype)
    return Product(lambda inputs: multiply(inputs, packed, GROUP, scales))


KERNELS: dict[str, list[Callable[[Tensor], Product]]] = {
    "int8": [packed_x86, packed_int8],
    "int4": [packed_int4_cpu],
}
"""The kernels to try for each kind, the fastest first."""
