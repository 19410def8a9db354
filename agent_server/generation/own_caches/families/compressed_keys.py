"""DeepSeek V4's compressed keys for sequences of different lengths in one batch.

A compressor makes an entry of every `rate` tokens, and of the `rate` before them where its windows overlap.
transformers counts tokens for the batch as a whole, so that rows whose windows end at different tokens cannot share a
forward. Here each row's windows follow its own positions: the cache keeps the last tokens of each row, as many as an
entry may still need, and its entries, which end at the right edge as keys do. Entries that a row has not, or not yet,
are hidden.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READ = ("kv_proj", "gate_proj", "position_bias", "kv_norm", "rotary_emb", "compress_rate", "head_dim")
"""What a compressor, and an indexer's own, has."""
KEYS, INDEX = "compressor", "indexer"
"""The names of a layer's series of entries in its cache."""
Apply = Callable[[Tensor, Tensor, Tensor], Tensor]


def compress_by_rows(model: PreTrainedModel) -> None:
    """Have the model's compressors follow each row's positions where there is a cache."""
    for module in model.modules():
        if all(hasattr(module, name) for name in READ):
            function: Any = _indexer if hasattr(module, "scorer") else _sparse if hasattr(module, INDEX) else _heavy
            rotate = module.forward.__globals__["apply_rotary_pos_emb"]
            module.forward = _with_cache(function, module, rotate, module.forward)


def _with_cache(function: Any, module: Any, rotate: Apply, own: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(own)
    def forward(hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int) -> Any:
        if cache is None:
            return own(hidden, residual, positions, cache, index)
        return function(module, rotate, hidden, residual, positions, cache, index)

    return forward


def _heavy(
    module: Any, rotate: Apply, hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int
) -> tuple[Tensor, Tensor]:
    """All entries `[batch, 1, entries, head_dim]`, and what is added to their scores `[batch, 1, tokens, entries]`."""
    entries = _entries(module, rotate, KEYS, hidden, positions, cache.layers[index])
    hidden_ones = ~_seen(positions, entries.shape[1], module.compress_rate)
    bias = entries.new_zeros(hidden_ones.shape).masked_fill_(hidden_ones, float("-inf"))
    return entries[:, None], bias[:, None]


def _sparse(
    module: Any, rotate: Apply, hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int
) -> tuple[Tensor, Tensor]:
    """The same where an indexer chooses the entries that each token sees."""
    entries = _entries(module, rotate, KEYS, hidden, positions, cache.layers[index])
    count = entries.shape[1]
    selected = module.indexer(hidden, residual, positions, cache, index)
    bias = entries.new_full((*positions.shape, count + 1), float("-inf"))
    bias.scatter_(-1, torch.where(selected < 0, count, selected), 0.0)
    return entries[:, None], bias[:, None, :, :count]


def _indexer(
    module: Any, rotate: Apply, hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int
) -> Tensor:
    """The places of the entries that each token sees, -1 for none: `[batch, tokens, index_topk or fewer]`."""
    entries = _entries(module, rotate, INDEX, hidden, positions, cache.layers[index])
    cos, sin = module.rotary_emb(hidden, position_ids=positions, layer_type=module.rope_layer_type)
    queries = module.q_b_proj(residual).view(*positions.shape, -1, module.head_dim).transpose(1, 2)
    scores = module.scorer(rotate(queries, cos, sin).transpose(1, 2), entries, hidden)
    visible = _seen(positions, entries.shape[1], module.compress_rate)
    indices = scores.masked_fill(~visible, float("-inf")).topk(min(module.index_topk, entries.shape[1]), -1).indices
    selected: Tensor = indices.masked_fill(~visible.gather(-1, indices), -1)
    return selected


def _seen(positions: Tensor, count: int, rate: int) -> Tensor:
    """Which entries are a row's own and behind no token: `[batch, tokens, entries]`."""
    ready = (positions + 1) // rate
    numbers = torch.arange(count, device=positions.device) - count + ready[:, -1:]
    return (numbers[:, None] >= 0) & (numbers[:, None] < ready[..., None])


def _entries(module: Any, rotate: Apply, name: str, hidden: Tensor, positions: Tensor, layer: Any) -> Tensor:
    """A series' entries `[batch, entries, head_dim]` behind these tokens; several come for rows of one length."""
    rate, width = module.compress_rate, module.head_dim
    kv, gate = module.kv_proj(hidden), module.gate_proj(hidden)
    overlaps = kv.shape[-1] == 2 * width
    span = 2 * rate if overlaps else rate
    kv = _behind(layer.buffer_kv, name, kv, span - 1, 0.0)
    gate = _behind(layer.buffer_gate, name, gate, span - 1, float("-inf"))  # what is before the first token has no part
    entries: Tensor | None = layer.compressed_kv[name]
    if entries is None:
        entries = kv.new_zeros(len(kv), 0, width)
    ends = (positions[:, -1] + 1) // rate
    added = ends - positions[:, 0] // rate
    if bool(added.any()):
        kv, gate = _windows(kv, positions, span, rate), _windows(gate, positions, span, rate)
        new = module.kv_norm(_pooled(kv, gate, module.position_bias, width))
        places = (positions[:, :1] // rate + torch.arange(new.shape[1], device=new.device)) * rate
        cos, sin = module.rotary_emb(new, position_ids=places, layer_type=module.rope_layer_type)
        entries = _joined(entries, rotate(new[:, None], cos, sin)[:, 0], added > 0, int(ends.max()))
    layer.compressed_kv[name] = entries
    return entries


def _windows(tokens: Tensor, positions: Tensor, span: int, rate: int) -> Tensor:
    """Of the tokens from `span - 1` before the first new one on, those of every window that may end at a new one:
    `[batch, windows, span, features]`."""
    if positions.shape[1] == 1:
        return tokens[:, None]
    start = rate - 1 - int(positions[0, 0]) % rate
    return tokens[:, start:].unfold(1, span, rate).transpose(2, 3)


def _behind(history: dict[str, Tensor | None], name: str, new: Tensor, count: int, nothing: float) -> Tensor:
    """The new tokens behind the last `count`, and the last of all kept."""
    before = history[name]
    if before is None:
        before = new.new_full((len(new), count, new.shape[-1]), nothing)
    whole = torch.cat([before, new], 1)
    history[name] = whole[:, whole.shape[1] - count :]
    return whole


def _pooled(kv: Tensor, gate: Tensor, bias: Tensor, width: int) -> Tensor:
    """An entry of each window: `[batch, windows, tokens, features]` → `[batch, windows, width]`. Where windows overlap,
    the earlier tokens' first features and the later tokens' last count."""
    rate = len(bias)
    if kv.shape[2] > rate:
        kv = torch.cat([kv[:, :, :rate, :width], kv[:, :, rate:, width:]], 2)
        gate = torch.cat([gate[:, :, :rate, :width], gate[:, :, rate:, width:]], 2)
        bias = torch.cat([bias[:, :width], bias[:, width:]])
    return (kv * (gate + bias).softmax(2, dtype=torch.float32).to(kv.dtype)).sum(2)


def _joined(old: Tensor, new: Tensor, ends: Tensor, count: int) -> Tensor:
    """The new entries behind the old, in the rows where a window `ends`; `count` in the longest."""
    joined = torch.cat([old, new], 1)
    if not bool(ends.all()):
        joined = torch.where(ends[:, None, None], joined, pad(old, (0, 0, 1, 0)))
    return joined[:, max(0, joined.shape[1] - count) :]
