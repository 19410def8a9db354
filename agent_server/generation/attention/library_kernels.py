"""Attention over pages by torch's own flash attention, for devices where the project's Triton kernel does not run."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call
from agent_server.generation.attention.batches import LayerShape, Paging

HALVES = (torch.float16, torch.bfloat16)


class VarlenKernel:
    """torch's `varlen_attn` with a block table, from torch 2.13 on. It is flash attention 2, which needs pages of 256
    tokens."""

    name = "varlen_attn"
    page_size = 256

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        missing = {"block_table", "num_splits", "enable_gqa"} - set(signature(function).parameters)
        if missing:
            raise NotImplementedError(f"varlen_attn of torch {torch.__version__} has no {min(missing)}")
        self._function = function

    def refuses(self, layer: LayerShape, dtype: torch.dtype) -> str | None:
        if layer.softcap is not None or layer.sinks:
            return "it has neither soft caps nor sinks"
        if dtype not in HALVES:
            return f"it does not compute in {dtype}"
        fits = layer.key_dim == layer.value_dim <= 256 and layer.key_dim % 8 == 0
        return None if fits else f"it does not take heads of {layer.key_dim} and {layer.value_dim}"

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor) -> None:
        keys.index_copy_(0, places, call.keys)
        values.index_copy_(0, places, call.values)

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call) -> Tensor:
        """With a causal window and the number of splits that it chooses itself, the function gives wrong results for
        several sequences (pytorch issue 194167). So it gets one split, unless every sequence has one query that
        attends to everything: the window may then be open, and splits are correct."""
        open_window = paging.most_queries == 1 and call.window is None
        left = -1 if call.window is None else call.window - 1  # keys before the query's own; -1 for all
        out = self._function(
            call.queries.contiguous(),
            keys,
            values,
            paging.starts,
            paging.key_starts,
            paging.most_queries,
            paging.most_keys,
            scale=call.scale,
            window_size=(-1, -1) if open_window else (left, 0),
            enable_gqa=call.queries.shape[1] != keys.shape[2],
            seqused_k=paging.lengths,
            block_table=paging.tables,
            **({} if open_window else {"num_splits": 1}),
        )
        assert isinstance(out, Tensor)  # a tuple only if further outputs are requested
        return out
