"""Layers whose weights stay in the blocks of a GGUF file: integers of two to eight bits with a scale for each group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from agent_server.generation.loading.linear_layers import ReplacementLinear

if TYPE_CHECKING:
    from agent_server.generation.loading.ggml import BlockMatrix  # of the extra gguf


class BlockLinear(ReplacementLinear):
    """A linear layer with a matrix in blocks."""

    def __init__(self, linear: nn.Linear, matrix: BlockMatrix) -> None:
        super().__init__(linear)
        self.matrix = matrix

    @property
    def weight(self) -> Tensor:
        """`[out, in]` in float32, unpacked for model code that reads it."""
        return self.matrix.values()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = self.matrix.multiply(inputs.reshape(-1, self.in_features)).to(inputs.dtype)
        if self.bias is not None:
            outputs = outputs + self.bias
        return outputs.reshape(*inputs.shape[:-1], self.out_features)


class BlockEmbedding(nn.Module):
    """An embedding whose rows are unpacked when they are looked up."""

    def __init__(self, embedding: nn.Embedding, matrix: BlockMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding = embedding  # some model families scale the looked-up rows
        embedding.padding_idx = None
        embedding.weight = nn.Parameter(torch.empty(0, embedding.embedding_dim, dtype=dtype), requires_grad=False)
        self.num_embeddings, self.embedding_dim = matrix.shape
        self.matrix, self.dtype = matrix, dtype
        self.rows_in_blocks = self.num_embeddings * self.embedding_dim

    def forward(self, ids: Tensor) -> Tensor:
        weight = self.matrix.values(ids.flatten()).to(self.dtype)
        places = torch.arange(len(weight)).view(ids.shape)
        outputs: Tensor = torch.func.functional_call(self.embedding, {"weight": weight}, (places,))
        return outputs
