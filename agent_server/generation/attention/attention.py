"""Attention for packed batches, as one function in transformers' AttentionInterface.

A step's tokens come as one sequence `[1, heads, tokens, head_dim]`: first one token for each decoding sequence, then
chunks of prompts. The batch, which the model passes through as the keyword `kv`, knows which tokens belong together and
where their keys and values are stored. Nothing here depends on the model's family: window, soft cap and sinks are
arguments of each call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SDPA = "sdpa"
OWN_RULES = ("position_bias", "cache", "softcap", "s_aux")
"""Options of transformers' function that plain attention does not have."""


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """Attend with one query for each sequence: `[batch, heads, dim]` to `[batch, kv_heads, keys, dim]`. mask: a bias
    with one row of keys for each sequence. Query heads that share a KV head become queries of one head, so that keys
    are neither repeated nor read twice."""
    batch, heads, dim = q.shape
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], dim)
    # In 16 bits on a CPU, torch's attention is slower for one query of a head than for two.
    if grouped.shape[2] == 1 and q.dtype != torch.float32 and q.device.type == "cpu":
        grouped = grouped.expand(-1, -1, 2, -1)
        return scaled_dot_product_attention(grouped, k, v, mask, scale=scale)[:, :, 0]
    return scaled_dot_product_attention(grouped, k, v, mask, scale=scale).reshape(batch, heads, v.shape[-1])


def install_single_query_attention(model: PreTrainedModel) -> None:
    """Make transformers use `grouped_attention` for single queries, if the model is in 16 bits on the CPU."""
    attend = ALL_ATTENTION_FUNCTIONS[SDPA]
    if model.device.type == "cpu" and model.dtype != torch.float32 and not hasattr(attend, "with_single_queries"):
        ALL_ATTENTION_FUNCTIONS[SDPA] = with_single_queries(attend)


def with_single_queries(attend: Any) -> Any:
    """Wrap an attention function of transformers: plain attention with one query for each sequence, in 16 bits on the
    CPU, is computed by `grouped_attention`. All other calls are passed on."""

    @wraps(attend)
    def attention(
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        plain = query.device.type == "cpu" and query.dtype == key.dtype != torch.float32 and query.shape[2] == 1
        shared = attention_mask is None or attention_mask.shape[1] == 1
        if (
            not plain
            or not shared
            or options.get("dropout")
            or any(options.get(name) is not None for name in OWN_RULES)
        ):
            result: tuple[Tensor, None] = attend(module, query, key, value, attention_mask, **options)
            return result
        return grouped_attention(query[:, :, 0], key, value, attention_mask, options.get("scaling"))[:, None], None

    attention.with_single_queries = True  # type: ignore[attr-defined]
    return attention


NAME = "agent_server"


class Batch(Protocol):
    """The batch of a step, which every attention layer gets as `kv`."""

    def attend(self, layer: int, call: Call) -> Tensor:
        """Store the new keys and values, attend, and return `[tokens, heads, value_dim]`."""


class Call:
    """The arguments of one layer's attention: queries `[tokens, heads, dim]`, keys and values `[tokens, kv_heads,
    dim]`. window: the number of tokens that a query attends to, itself included; None for all. softcap: the bound of
    the scores. sinks: `[heads]`, a term of the softmax without a value."""

    __slots__ = ("keys", "queries", "scale", "sinks", "softcap", "values", "window")

    def __init__(
        self, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, options: dict[str, Any]
    ) -> None:
        self.queries = queries
        self.keys = keys
        self.values = values
        self.scale = queries.shape[-1] ** -0.5 if scale is None else scale
        self.window: int | None = options.get("sliding_window")
        self.softcap: float | None = options.get("softcap")
        self.sinks: Tensor | None = options.get("s_aux")

    def to(self, dtype: torch.dtype) -> Call:
        """Return a copy with queries, keys and values in another precision."""
        options = {"sliding_window": self.window, "softcap": self.softcap, "s_aux": self.sinks}
        return Call(self.queries.to(dtype), self.keys.to(dtype), self.values.to(dtype), self.scale, options)


_ATTENDING: ContextVar[Batch | None] = ContextVar("attending", default=None)


@contextmanager
def attending(batch: Batch) -> Iterator[None]:
    """Provide the batch to attention layers, also to those of models that do not pass `kv` on (StableLM, Nemotron)."""
    token = _ATTENDING.set(batch)
    try:
        yield
    finally:
        _ATTENDING.reset(token)


def forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    kv: Batch | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls in every attention layer."""
    kv = kv if kv is not None else _ATTENDING.get()
    if kv is None or options.get("position_bias") is not None:
        raise NotImplementedError("This attention layer cannot be served in packed batches.")
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    out = kv.attend(module.layer_idx, Call(queries, keys, values, scaling, options))  # type: ignore[arg-type]
    return out[None], None


AttentionInterface.register(NAME, forward)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call, *, causal: bool = False) -> Tensor:
    """Attend with `[batch, heads, queries, dim]` to `[batch, kv_heads, keys, dim]`. mask: added to the scores, with
    broadcasting. causal: use a causal mask instead; queries and keys are then the same tokens."""
    groups = q.shape[1] // k.shape[1]
    if call.softcap is None and call.sinks is None:
        return scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=call.scale, enable_gqa=groups > 1)
    return _attend_by_hand(q, k, v, mask if mask is not None or not causal else causal_mask(q, k), call)


def attend_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
    """Attend with one query for each sequence: `[batch, heads, dim]` to `[batch, kv_heads, keys, dim]`."""
    if call.softcap is None and call.sinks is None:
        return grouped_attention(q, k, v, mask, call.scale)
    return _attend_by_hand(q[:, :, None], k, v, mask, call)[:, :, 0]


def _attend_by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, call: Call) -> Tensor:
    """Attend with a soft cap on the scores (Gemma 2) or a sink term in the softmax (gpt-oss)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.matmul(q, k.transpose(-1, -2)) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores + mask
    if call.sinks is None:
        return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(q.dtype), v)
    sinks = call.sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.cat([scores, sinks], -1).softmax(-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights[..., :-1], v)


def causal_mask(q: Tensor, k: Tensor) -> Tensor:
    """Return the bias on the scores of queries that are the last tokens of the keys."""
    return window_mask(k.shape[-2] - q.shape[-2], k.shape[-2], None, q.dtype, q.device)


def window_mask(
    start: int,
    end: int,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    blocks: Iterable[tuple[int, int]] = (),
) -> Tensor:
    """Return the bias `[end - start, end]` on the scores of queries `start` to `end` with keys 0 to `end`: 0 for
    visible keys, else minus infinity. blocks: ranges of tokens with bidirectional attention, within the window
    (Gemma 3)."""
    queries = torch.arange(start, end, device=device)[:, None]
    keys = torch.arange(end, device=device)[None]
    visible = keys <= queries
    for first, last in blocks:
        visible[max(first - start, 0) : max(last - start, 0), first:last] = True
    if window is not None:
        visible &= keys > queries - window
    return additive(visible, dtype)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn a boolean mask into a bias on the scores."""
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
