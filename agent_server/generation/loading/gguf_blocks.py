"""Layers whose weights stay in the blocks of a GGUF file: integers of two to eight bits with a scale for each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agent_server.generation.loading.linear_layers import ReplacementLinear
from agent_server.generation.recorded.flat import Recording, flatten, rewrite_around_products

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from agent_server.generation.loading.ggml import BlockMatrix  # of the extra gguf


class BlockLinear(ReplacementLinear):
    """A linear layer with a matrix in blocks. marker: stands for the matrix while the forward is recorded."""

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
    """An embedding whose rows are unpacked when they are looked up. marker: as of `BlockLinear`."""

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
    with _marked(model) as marked:
        recording = flatten(model, rewrite_around_products, reasons)
    if recording is None:
        return None
    recording.release()
    for module, marker in marked:
        if isinstance(module, BlockLinear):
            recording.multiply_by([marker], _prepared, _multiplying(module.matrix, model.dtype))
        else:
            recording.look_up(marker, _looking_up(module))
    recording.build()
    return recording


@contextmanager
def _marked(model: PreTrainedModel) -> Iterator[list[tuple[BlockLinear | BlockEmbedding, Tensor]]]:
    """Give each layer in blocks a weight of the right shape, without content and almost without memory, by which its
    product is found in a recording."""
    layers = [each for each in model.modules() if isinstance(each, BlockLinear | BlockEmbedding)]
    marked = [(each, torch.zeros(1, dtype=model.dtype).expand(each.matrix.shape)) for each in layers]
    for layer, marker in marked:
        layer.marker = marker
    try:
        yield marked
    finally:
        for layer in layers:
            layer.marker = None


def _prepared(inputs: Tensor) -> Tensor:
    return inputs.float().contiguous()


def _multiplying(matrix: BlockMatrix, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda inputs: matrix.multiply(inputs).to(dtype)


def _looking_up(module: BlockEmbedding) -> Callable[[Tensor], Tensor]:
    return lambda ids: module.matrix.values(ids).to(module.dtype)
