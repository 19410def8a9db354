"""Layers whose weights stay in the blocks of a GGUF file: integers of two to eight bits with a scale for each group."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agent_server.generation.loading.linear_layers import ReplacementLinear
from agent_server.generation.recorded.flat import Recording, flatten, rewrite_around_products

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_server.generation.loading.ggml import BlockMatrix  # of the extra gguf


class BlockLinear(ReplacementLinear):
    """A linear layer with a matrix in blocks.

    marker: a placeholder for the weight that identifies the layer in a recording; set only while recording.
    """

    marker: Tensor | None

    def __init__(self, linear: nn.Linear, matrix: BlockMatrix) -> None:
        super().__init__(linear)
        self.matrix = matrix
        self.register_buffer("marker", None, persistent=False)

    @property
    def weight(self) -> Tensor:
        """`[out, in]` in float32, unpacked for model code that reads it."""
        return self.matrix.values()

    def forward(self, inputs: Tensor) -> Tensor:
        if self.marker is not None:
            return nn.functional.linear(inputs, self.marker, self.bias)
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
        self.rows_in_blocks = self.num_embeddings * self.embedding_dim
        self.register_buffer("marker", None, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        if self.marker is not None:
            marked: Tensor = torch.func.functional_call(self.embedding, {"weight": self.marker}, (ids,))
            return marked
        weight = self.matrix.values(ids.flatten()).to(self.dtype)
        places = torch.arange(len(weight)).view(ids.shape)
        outputs: Tensor = torch.func.functional_call(self.embedding, {"weight": weight}, (places,))
        return outputs


def has_blocks(model: PreTrainedModel) -> bool:
    return any(isinstance(module, BlockLinear) for module in model.modules())


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
