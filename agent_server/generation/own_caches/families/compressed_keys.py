"""DeepSeek V4's compressed keys for sequences of different lengths in one batch.

A compressor computes one entry from every `rate` tokens, and from the `rate` before them if its windows overlap.
transformers counts tokens for the batch as a whole, so rows whose windows end at different tokens cannot share a
forward. Here each row's windows follow its own positions. The cache has the last tokens of each row that an entry may
still need, and its entries, which are aligned to the right like keys. Entries that a row does not have, or not yet, are
masked.
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

ATTRIBUTES = ("kv_proj", "gate_proj", "position_bias", "kv_norm", "rotary_emb", "compress_rate", "head_dim")
"""The attributes of a compressor, and of the one within an indexer."""
KEYS, INDEX = "compressor", "indexer"
"""The names of a layer's lists of entries in its cache."""
Apply = Callable[[Tensor, Tensor, Tensor], Tensor]


def compress_by_rows(model: PreTrainedModel) -> None:
    """Make the model's compressors follow each row's positions, in forwards with a cache."""
    for module in model.modules():
        if all(hasattr(module, name) for name in ATTRIBUTES):
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
    """Return all entries `[batch, 1, entries, head_dim]` and the bias on their scores `[batch, 1, tokens, entries]`."""
    entries = _entries(module, rotate, KEYS, hidden, positions, cache.layers[index])
    masked = ~_visible(positions, entries.shape[1], module.compress_rate)
    bias = entries.new_zeros(masked.shape).masked_fill_(masked, float("-inf"))
    return entries[:, None], bias[:, None]


def _sparse(
    module: Any, rotate: Apply, hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int
) -> tuple[Tensor, Tensor]:
    """Return the same for a layer whose indexer selects the entries that each token attends to."""
    entries = _entries(module, rotate, KEYS, hidden, positions, cache.layers[index])
    count = entries.shape[1]
    selected = module.indexer(hidden, residual, positions, cache, index)
    bias = entries.new_full((*positions.shape, count + 1), float("-inf"))
    bias.scatter_(-1, torch.where(selected < 0, count, selected), 0.0)
    return entries[:, None], bias[:, None, :, :count]


def _indexer(
    module: Any, rotate: Apply, hidden: Tensor, residual: Tensor, positions: Tensor, cache: Any, index: int
) -> Tensor:
    """Return the indices of the entries that each token attends to, `[batch, tokens, index_topk or fewer]`; -1 for
    none."""
    entries = _entries(module, rotate, INDEX, hidden, positions, cache.layers[index])
    cos, sin = module.rotary_emb(hidden, position_ids=positions, layer_type=module.rope_layer_type)
    queries = module.q_b_proj(residual).view(*positions.shape, -1, module.head_dim).transpose(1, 2)
    scores = module.scorer(rotate(queries, cos, sin).transpose(1, 2), entries, hidden)
    visible = _visible(positions, entries.shape[1], module.compress_rate)
    indices = scores.masked_fill(~visible, float("-inf")).topk(min(module.index_topk, entries.shape[1]), -1).indices
    selected: Tensor = indices.masked_fill(~visible.gather(-1, indices), -1)
    return selected


def _visible(positions: Tensor, count: int, rate: int) -> Tensor:
    """Return which entries belong to the row and end no later than the token: bool `[batch, tokens, entries]`."""
    ready = (positions + 1) // rate
    numbers = torch.arange(count, device=positions.device) - count + ready[:, -1:]
    return (numbers[:, None] >= 0) & (numbers[:, None] < ready[..., None])


def _entries(module: Any, rotate: Apply, name: str, hidden: Tensor, positions: Tensor, layer: Any) -> Tensor:
    """Add the entries of these tokens to a list of entries in the cache, and return all of it: `[batch, entries,
    head_dim]`. Several tokens at once are computed only for rows of equal length."""
    rate, width = module.compress_rate, module.head_dim
    kv, gate = module.kv_proj(hidden), module.gate_proj(hidden)
    overlaps = kv.shape[-1] == 2 * width
    span = 2 * rate if overlaps else rate
    kv = _with_history(layer.buffer_kv, name, kv, span - 1, 0.0)
    # Nothing precedes the first token: a gate of minus infinity gives it no weight.
    gate = _with_history(layer.buffer_gate, name, gate, span - 1, float("-inf"))
    entries: Tensor | None = layer.compressed_kv[name]
    if entries is None:
        entries = kv.new_zeros(len(kv), 0, width)
    ends = (positions[:, -1] + 1) // rate
    added = ends - positions[:, 0] // rate
    if bool(added.any()):
        kv, gate = _windows(kv, positions, span, rate), _windows(gate, positions, span, rate)
        # An entry for each window: `[batch, windows, tokens, features]` → `[batch, windows, width]`. If windows
        # overlap, the first features of the earlier tokens and the last features of the later tokens are used.
        bias: Tensor = module.position_bias
        count = len(bias)
        if kv.shape[2] > count:
            kv = torch.cat([kv[:, :, :count, :width], kv[:, :, count:, width:]], 2)
            gate = torch.cat([gate[:, :, :count, :width], gate[:, :, count:, width:]], 2)
            bias = torch.cat([bias[:, :width], bias[:, width:]])
        pooled = (kv * (gate + bias).softmax(2, dtype=torch.float32).to(kv.dtype)).sum(2)
        new = module.kv_norm(pooled)
        places = (positions[:, :1] // rate + torch.arange(new.shape[1], device=new.device)) * rate
        cos, sin = module.rotary_emb(new, position_ids=places, layer_type=module.rope_layer_type)
        joined = torch.cat([entries, rotate(new[:, None], cos, sin)[:, 0]], 1)
        complete = added > 0
        if not bool(complete.all()):
            # Rows in which no window ends keep their entries, aligned to the right.
            joined = torch.where(complete[:, None, None], joined, pad(entries, (0, 0, 1, 0)))
        entries = joined[:, max(0, joined.shape[1] - int(ends.max())) :]
    layer.compressed_kv[name] = entries
    return entries


def _windows(tokens: Tensor, positions: Tensor, span: int, rate: int) -> Tensor:
    """Return the tokens of every window that may end at a new token, `[batch, windows, span, features]`. tokens: from
    `span - 1` before the first new one on."""
    if positions.shape[1] == 1:
        return tokens[:, None]
    start = rate - 1 - int(positions[0, 0]) % rate
    return tokens[:, start:].unfold(1, span, rate).transpose(2, 3)


def _with_history(history: dict[str, Tensor | None], name: str, new: Tensor, count: int, fill: float) -> Tensor:
    """Return the last `count` tokens and the new ones, and update the history. fill: used for missing tokens."""
    before = history[name]
    if before is None:
        before = new.new_full((len(new), count, new.shape[-1]), fill)
    whole = torch.cat([before, new], 1)
    history[name] = whole[:, whole.shape[1] - count :]
    return whole
