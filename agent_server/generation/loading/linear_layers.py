"""Replacements of a model's linear layers, and weights in the layout of a CPU's bfloat16 products.

oneDNN multiplies bfloat16 with blocks of weights in a layout of its own. Weights in rows are converted to it in every
product, which takes longer than the product itself for few tokens. Here they are converted once, when the model is
loaded; the values and the products stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from agent_server.generation.device import free_bytes, multiplies_bfloat16
from agent_server.generation.faults import first_line
from agent_server.generation.multimodal.language import InnerTextModel

logger = logging.getLogger("agent_server.generation")
FEW_TOKENS = 8
"""The number of tokens for which oneDNN chooses the layout; it works for other numbers as well."""
SPARE = 4
"""Packing copies weights that the embedding shares, so this multiple of their size must be free."""


class ReplacementLinear(nn.Module):
    """A replacement of a `torch.nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias


class PackedLinear(ReplacementLinear):
    """Weights in oneDNN's layout. read: whether the model's code has read them as rows, which costs more than packing
    saves."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), FEW_TOKENS)
        self.read = False

    @property
    def weight(self) -> Tensor:
        """`[out, in]`, converted back to rows."""
        self.read = True
        return self._packed.to_dense()

    def forward(self, inputs: Tensor) -> Tensor:
        multiply = torch.ops.mkldnn._linear_pointwise
        outputs: Tensor = multiply(inputs, self._packed, self.bias, "none", [], "")
        return outputs

    def whole(self) -> nn.Linear:
        linear = nn.Linear(self.in_features, self.out_features, bias=False, device="meta")
        linear.weight = nn.Parameter(self.weight, requires_grad=False)
        linear.bias = self.bias
        return linear


@torch.inference_mode()
def pack(model: Any) -> None:
    """Pack the model's linear layers one by one, if it is in bfloat16 on a CPU with bfloat16 products."""
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not multiplies_bfloat16():
        return
    whole = _whole(model)
    last, embedding = whole.get_output_embeddings(), whole.get_input_embeddings()
    for linear, places in linears(model):
        if linear.weight.dtype != torch.bfloat16:
            continue
        shared = linear is last and getattr(embedding, "weight", None) is linear.weight
        if shared and free_bytes(linear.weight.device) <= SPARE * linear.weight.nbytes:
            continue
        try:
            packed = PackedLinear(linear)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            logger.debug("A layer's weights are not packed: %s.", first_line(error))
            return
        _install(packed, places)


@torch.inference_mode()
def unpack_read(model: Any) -> None:
    """Restore the layers whose weights the model's code has read since they were packed."""
    for packed, places in linears(model, PackedLinear):
        if isinstance(packed, PackedLinear) and packed.read:
            _install(packed.whole(), places)


def linears(model: Any, kind: type[nn.Module] = nn.Linear) -> Iterator[tuple[Any, list[tuple[nn.Module, str]]]]:
    """Yield the linear layers of the text decoder and the output layer, each with its parents and its names there.

    Encoders of pictures are excluded, since they run once per picture. No references are kept, so that a replaced layer
    is freed before the next one.
    """
    whole = _whole(model)
    within, last = set(whole.get_decoder().modules()), whole.get_output_embeddings()
    places_of: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is kind and (child in within or child is last):
                places_of.setdefault(child, []).append((parent, name))
    del within, last, child
    while places_of:
        yield places_of.popitem()


def parameter_count(model: Any) -> int:
    """Return the number of a model's weights, including packed ones. An output layer that shares the embedding's
    weights counts once, although its packed form is a copy."""
    count: int = sum(parameter.numel() for parameter in model.parameters())
    last: Any = getattr(model, "get_output_embeddings", lambda: None)()  # an inner text model has none
    copied = isinstance(last, ReplacementLinear) and model.config.get_text_config().tie_word_embeddings
    in_blocks = sum(getattr(module, "weights_in_blocks", 0) for module in model.modules())
    return count + in_blocks + replaced_weights(model) - (last.in_features * last.out_features if copied else 0)


def replaced_weights(model: Any, kind: type[ReplacementLinear] = ReplacementLinear) -> int:
    """Return the number of weights in layers of that kind."""
    layers: list[ReplacementLinear] = [layer for layer in model.modules() if isinstance(layer, kind)]
    return sum(layer.in_features * layer.out_features for layer in layers)


def _whole(model: Any) -> Any:
    return model.whole if isinstance(model, InnerTextModel) else model


def _install(layer: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
    for parent, name in places:
        setattr(parent, name, layer)
