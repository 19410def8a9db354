"""Attention over pages by libraries that others keep, behind the same door as the project's own kernel.

Which of them is used is found out by trying (`attention_kernels.py`): that one is installed says neither that it is
right for a model on a device, nor that it is the fastest. Calls are those of each library's documentation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from agent_server.generation.attention.attention import Call
from agent_server.generation.attention.fp8 import Scales
from agent_server.generation.attention.kv_cache import LayerShape
from agent_server.generation.attention.paged_batch import Kernel, Paging

HALVES = (torch.float16, torch.bfloat16)
WORKSPACE = 128 * 2**20
"""What FlashInfer's documentation recommends, in bytes."""


def _left(call: Call) -> int:
    """How many keys before its own a query sees, in the way of flash attention: -1 is all."""
    return -1 if call.window is None else call.window - 1


def _unlike_flash(layer: LayerShape, dtype: torch.dtype, kept: torch.dtype | None) -> str | None:
    """Why kernels of the kind of flash attention 2 do not serve a layer; None where they do."""
    if dtype not in HALVES:
        return f"it does not compute in {dtype}"
    if kept is not None:
        return f"it does not read keys and values in {kept}"
    fits = layer.key_dim == layer.value_dim <= 256 and layer.key_dim % 8 == 0
    return None if fits else f"it does not take heads of {layer.key_dim} and {layer.value_dim}"


class VarlenKernel:
    """torch's `varlen_attn` with a block table, from torch 2.13 on: flash attention, which wants pages of 256."""

    name = "varlen_attn"
    page_size = 256

    def __init__(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> None:
        missing = {"block_table", "num_splits", "enable_gqa"} - set(signature(function).parameters)
        if missing:
            raise NotImplementedError(f"varlen_attn of torch {torch.__version__} has no {min(missing)}")
        self._function = function

    def refuses(self, layer: LayerShape, dtype: torch.dtype, kept: torch.dtype | None = None) -> str | None:
        if layer.softcap is not None or layer.sinks:
            return "it has neither soft caps nor sinks"
        return _unlike_flash(layer, dtype, kept)

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor, scales: Scales | None = None) -> None:
        keys.index_copy_(0, places, call.keys)
        values.index_copy_(0, places, call.values)

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call, scales: Scales | None = None) -> Tensor:
        """A window of w tokens is w - 1 to the left. With a causal window and splits of its own choice it gives wrong
        results for several sequences (pytorch issue 194167); so there is one split, except where every sequence has
        one query and sees everything: the window may then be open, with which splits are right."""
        open_window = paging.most_queries == 1 and call.window is None
        out = self._function(
            call.queries.contiguous(),
            keys,
            values,
            paging.starts,
            paging.key_starts,
            paging.most_queries,
            paging.most_keys,
            scale=call.scale,
            window_size=(-1, -1) if open_window else (_left(call), 0),
            enable_gqa=call.queries.shape[1] != keys.shape[2],
            seqused_k=paging.lengths,
            block_table=paging.tables,
            **({} if open_window else {"num_splits": 1}),
        )
        assert isinstance(out, Tensor)  # a tuple only where more is asked for
        return out


class FlashAttention:
    """The package flash-attn, version 2: `flash_attn_with_kvcache` for sequences of one query, which splits their keys,
    and `flash_attn_varlen_func` for chunks, which takes lengths of keys from their running sums. Pages of 256."""

    name = "flash_attn"
    page_size = 256

    def __init__(self) -> None:
        module = import_module("flash_attn")
        self._decode: Callable[..., Tensor] = module.flash_attn_with_kvcache
        self._several: Callable[..., Tensor] = module.flash_attn_varlen_func

    def refuses(self, layer: LayerShape, dtype: torch.dtype, kept: torch.dtype | None = None) -> str | None:
        return "it has no sinks" if layer.sinks else _unlike_flash(layer, dtype, kept)

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor, scales: Scales | None = None) -> None:
        keys.index_copy_(0, places, call.keys)
        values.index_copy_(0, places, call.values)

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call, scales: Scales | None = None) -> Tensor:
        count, parts = paging.single, []
        how: dict[str, Any] = {
            "softmax_scale": call.scale,
            "causal": True,
            "window_size": (_left(call), 0 if call.window is not None else -1),
            "softcap": call.softcap or 0.0,
        }
        queries = call.queries.contiguous()
        if count:
            tables, lengths = paging.tables[:count], paging.lengths[:count]
            out = self._decode(queries[:count, None], keys, values, cache_seqlens=lengths, block_table=tables, **how)
            parts.append(out[:, 0])
        if count < len(paging.lengths):
            rest = paging.behind(count)
            given = queries[count:], keys, values, rest.starts, rest.key_starts, rest.most_queries, rest.most_keys
            parts.append(self._several(*given, block_table=rest.tables, **how))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class FlashInfer:
    """The package flashinfer: `trtllm_batch_decode_with_kv_cache` for sequences of one query, which needs no plan from
    the host and so can be captured; chunks by another kernel over the same pages."""

    name = "flashinfer"

    def __init__(self, chunks: Kernel, device: torch.device) -> None:
        self._decode: Callable[..., Tensor] = import_module("flashinfer.decode").trtllm_batch_decode_with_kv_cache
        self._chunks = chunks
        self.page_size = chunks.page_size
        self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=device)

    def refuses(self, layer: LayerShape, dtype: torch.dtype, kept: torch.dtype | None = None) -> str | None:
        if layer.softcap is not None or layer.sinks:
            return "it has neither soft caps nor sinks"
        return _unlike_flash(layer, dtype, kept) or self._chunks.refuses(layer, dtype, kept)

    def write(self, call: Call, places: Tensor, keys: Tensor, values: Tensor, scales: Scales | None = None) -> None:
        self._chunks.write(call, places, keys, values, scales)

    def attend(self, paging: Paging, keys: Tensor, values: Tensor, call: Call, scales: Scales | None = None) -> Tensor:
        count = paging.single
        if not count:
            return self._chunks.attend(paging, keys, values, call, scales)
        decoded = self._decode(
            call.queries[:count].contiguous(),
            (keys, values),
            self._workspace,
            paging.tables[:count],
            paging.lengths[:count],
            paging.most_keys,
            bmm1_scale=call.scale,
            bmm2_scale=1.0,
            window_left=_left(call),
            kv_layout="NHD",
        )
        if count == len(paging.lengths):
            return decoded
        out = self._chunks.attend(paging.behind(count), keys, values, call.behind(count), scales)
        return torch.cat([decoded, out])
