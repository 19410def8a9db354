"""What stands in the place of a model's linear layers, and weights laid out for a CPU's products in bfloat16.

oneDNN multiplies bfloat16 by blocks of weights in an order of its own. Weights that lie row by row are brought into it
in every product, which takes longer than the product itself where few tokens are computed. So they are brought into it
once, when the model is loaded; the numbers, and the products, stay the same.
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
"""For so many tokens oneDNN chooses the order; it serves more and fewer as well."""
SPARE = 4
"""Weights that the embedding shares are there twice once they are packed: so many times their size must be free."""


class StandIn(nn.Module):
    """In the place of a `torch.nn.Linear`."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias


class PackedLinear(StandIn):
    """Weights in oneDNN's order. read: the model's code has asked for them as they were, which costs more than this
    saves."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), FEW_TOKENS)
        self.read = False

    @property
    def weight(self) -> Tensor:
        """`[out, in]`, put back into rows."""
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
    """Pack the model's linear layers one after the other, if it is in bfloat16 on a CPU that multiplies that."""
    if model.device.type != "cpu" or model.dtype != torch.bfloat16 or not multiplies_bfloat16():
        return
    last = _whole(model).get_output_embeddings()
    for linear, places in linears(model):
        if linear.weight.dtype != torch.bfloat16 or (linear is last and not _spare(model, linear)):
            continue
        try:
            packed = PackedLinear(linear)
        except (RuntimeError, NotImplementedError, AttributeError) as error:
            logger.debug("A layer's weights are not packed: %s.", first_line(error))
            return
        _place(packed, places)


@torch.inference_mode()
def unpack_read(model: Any) -> None:
    """Put back those layers whose weights the model's code has read since they were packed."""
    for packed, places in linears(model, PackedLinear):
        if isinstance(packed, PackedLinear) and packed.read:
            _place(packed.whole(), places)


def linears(model: Any, kind: type[nn.Module] = nn.Linear) -> Iterator[tuple[Any, list[tuple[nn.Module, str]]]]:
    """The linear layers of the text's decoder, and the last one, each with its parents and its names there. What
    encodes pictures stays as it is: it runs once for each. None is held any longer than the caller holds it, so that
    one that is replaced is gone before the next comes."""
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
    """How many weights a model has, those in packed form included. A last layer that shares the embedding's weights
    counts once, though its packed form is a copy."""
    count: int = sum(parameter.numel() for parameter in model.parameters())
    last: Any = getattr(model, "get_output_embeddings", lambda: None)()  # a text model inside of another has none
    copied = isinstance(last, StandIn) and model.config.get_text_config().tie_word_embeddings
    rows = sum(getattr(module, "rows_in_blocks", 0) for module in model.modules())
    return count + rows + replaced(model) - (last.in_features * last.out_features if copied else 0)


def replaced(model: Any, kind: type[StandIn] = StandIn) -> int:
    """How many weights layers of that kind have in packed form."""
    layers: list[StandIn] = [layer for layer in model.modules() if isinstance(layer, kind)]
    return sum(layer.in_features * layer.out_features for layer in layers)


def _whole(model: Any) -> Any:
    return model.whole if isinstance(model, InnerTextModel) else model


def _place(layer: nn.Module, places: list[tuple[nn.Module, str]]) -> None:
    for parent, name in places:
        setattr(parent, name, layer)


def _spare(model: Any, last: nn.Linear) -> bool:
    embedding = _whole(model).get_input_embeddings()
    shared = getattr(embedding, "weight", None) is last.weight
    return not shared or free_bytes(last.weight.device) > SPARE * last.weight.nbytes
