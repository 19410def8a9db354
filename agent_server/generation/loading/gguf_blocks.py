"""Layers whose weights stay in the blocks of a GGUF file: integers of two to eight bits with a scale for each group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from agent_server.generation.loading.linear_layers import ReplacementLinear
from agent_server.generation.recorded.flat import Recording, flatten, rewrite_around_products

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_server.generation.loading.ggml import BlockMatrix, ExpertMatrices  # of the extra gguf


class BlockLinear(ReplacementLinear):
    """A linear layer with a matrix in blocks.

    marker: a placeholder for the weight that identifies the layer in a recording; set only while recording.
    exact: whether products are computed in float32, see `exact_products`.
    """

    marker: Tensor | None

    def __init__(self, linear: nn.Linear, matrix: BlockMatrix) -> None:
        super().__init__(linear)
        self.matrix = matrix
        self.exact = False
        self.register_buffer("marker", None, persistent=False)

    @property
    def weight(self) -> Tensor:
        """`[out, in]` in float32, unpacked for model code that reads it."""
        return self.matrix.values()

    def forward(self, inputs: Tensor) -> Tensor:
        if self.marker is not None:
            return nn.functional.linear(inputs, self.marker, self.bias)
        if self.exact:
            return nn.functional.linear(inputs.float(), self.weight, self.bias).to(inputs.dtype)
        outputs = self.matrix.multiply(inputs.reshape(-1, self.in_features)).to(inputs.dtype)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)


class BlockEmbedding(nn.Module):
    """An embedding whose rows are unpacked when they are looked up. marker: see `BlockLinear`."""

    marker: Tensor | None

    def __init__(self, embedding: nn.Embedding, matrix: BlockMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = embedding  # some model families scale the looked-up rows
        embedding.padding_idx = None
        embedding.weight = nn.Parameter(torch.empty(0, embedding.embedding_dim, dtype=dtype), requires_grad=False)
        self.num_embeddings, self.embedding_dim = matrix.shape
        self.matrix, self.dtype = matrix, dtype
        self.weights_in_blocks = self.num_embeddings * self.embedding_dim
        self.register_buffer("marker", None, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        if self.marker is not None:
            marked: Tensor = torch.func.functional_call(self.embedding, {"weight": self.marker}, (ids,))
            return marked
        weight = self.matrix.values(ids.flatten()).to(self.dtype)
        places = torch.arange(len(weight)).view(ids.shape)
        outputs: Tensor = torch.func.functional_call(self.embedding, {"weight": weight}, (places,))
        return outputs


class BlockExperts(nn.Module):
    """Experts with matrices in blocks. experts: the layer without its matrices, for its activation."""

    def __init__(self, experts: Any, gate: ExpertMatrices, up: ExpertMatrices, down: ExpertMatrices) -> None:
        super().__init__()
        self.experts: Any = experts
        self.gate, self.up, self.down = gate, up, down
        experts.gate_up_proj = experts.down_proj = None
        self.weights_in_blocks = sum(math.prod(matrices.shape) for matrices in (gate, up, down))
        _LAYERS[id(self)] = self

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        outputs: Tensor = torch.ops.agent_server.block_experts(hidden_states, top_k_index, top_k_weights, id(self))
        return outputs

    def compute(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """`[tokens, size]`, the chosen experts `[tokens, chosen]` and their weights → `[tokens, size]`."""
        experts, inputs = self.experts, hidden_states[:, None]
        both = [part.multiply(inputs, top_k_index) for part in (self.gate, self.up)]
        gate_and_up = torch.cat(both, -1) if experts.is_concatenated else torch.stack(both, -1).flatten(-2)
        if experts.has_bias:
            gate_and_up = gate_and_up + experts.gate_up_proj_bias[top_k_index]
        outputs: Tensor = self.down.multiply(experts._apply_gate(gate_and_up), top_k_index)
        if experts.has_bias:
            outputs = outputs + experts.down_proj_bias[top_k_index]
        return (outputs * top_k_weights[..., None]).sum(1).to(hidden_states.dtype)


_LAYERS: WeakValueDictionary[int, BlockExperts] = WeakValueDictionary()


@torch.library.custom_op("agent_server::block_experts", mutates_args=())
def _block_experts(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, layer: int) -> Tensor:
    """Compute a layer of experts by its id. As an operation of its own it can be part of a recording."""
    return _LAYERS[layer].compute(hidden_states, top_k_index, top_k_weights)


@_block_experts.register_fake
def _(hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor, layer: int) -> Tensor:
    return torch.empty_like(hidden_states)


def takes_blocks(experts: Any, part: str, shape: tuple[int, ...]) -> bool:
    """Return whether a layer of experts computes what `BlockExperts` does (transformers/integrations/moe.py), with a
    matrix of this shape, `[experts, out, in]`. part: gate, up or down."""
    if not getattr(experts, "has_gate", False) or experts.has_post_expert_norm:
        return False
    own = experts.down_proj if part == "down" else experts.gate_up_proj
    count, rows, columns = (own.mT if experts.is_transposed else own).shape
    return shape == (count, rows if part == "down" else rows // 2, columns)


def has_blocks(model: PreTrainedModel) -> bool:
    return any(isinstance(module, BlockLinear) for module in model.modules())


@contextmanager
def exact_products(model: nn.Module) -> Iterator[None]:
    """Unpack the weights of linear layers for each product (slow) instead of rounding the inputs to integers."""
    layers = [module for module in model.modules() if isinstance(module, BlockLinear)]
    for layer in layers:
        layer.exact = True
    try:
        yield
    finally:
        for layer in layers:
            layer.exact = False


def flatten_blocks(model: PreTrainedModel, reasons: list[str] | None = None) -> Recording | None:
    """Record the model's forward as `flatten` does, with its products and look-ups in blocks."""
    dtype = model.dtype
    layers = [each for each in model.modules() if isinstance(each, BlockLinear | BlockEmbedding)]
    # Placeholders of the right shape that take almost no memory, by which the layers are found in the recording.
    markers = [torch.zeros(1, dtype=dtype).expand(each.matrix.shape) for each in layers]
    for layer, marker in zip(layers, markers, strict=True):
        layer.marker = marker
    try:
        recording = flatten(model, rewrite_around_products, reasons)
    finally:
        for layer in layers:
            layer.marker = None
    if recording is None:
        return None

    def product(matrix: BlockMatrix) -> Callable[[Tensor], Tensor]:
        return lambda inputs: matrix.multiply(inputs).to(dtype)

    def rows(matrix: BlockMatrix) -> Callable[[Tensor], Tensor]:
        return lambda ids: matrix.values(ids).to(dtype)

    recording.release()
    for layer, marker in zip(layers, markers, strict=True):
        if isinstance(layer, BlockLinear):
            recording.multiply_by([marker], Tensor.float, product(layer.matrix))
        else:
            recording.look_up(marker, rows(layer.matrix))
    recording.build()
    return recording
