"""The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), with fewer passes over the states for one token.

Decoding a hybrid of linear attention (Qwen3.5, Qwen3-Next, OLMo Hybrid) on a CPU is bound by its states: a megabyte for
each layer and sequence, which transformers' own function reads or writes a dozen times for a token. With S the state,
a the decay, b the rate, k, q and v the token's:

    S' = a S + k (b (v - a kS))      and      qS' = a qS + (qk) b (v - a kS)

so that one product reads S for both kS and qS, and S is scaled and added to where it lies, a few heads at a time, whose
states stay in the CPU's cache in between.

Prompts are computed in pieces of 64 tokens, of which transformers fills the last with padding: 80 tokens cost as much
as 128. Here pieces are as long as each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "torch_recurrent_gated_delta_rule"
PIECES = "torch_chunk_gated_delta_rule"
PIECE = 64
"""Tokens of the longest piece."""
BLOCK_BYTES = 2 << 20
"""States that are read, scaled and added to before the next are: about what a core's own cache has."""
EPSILON = 1e-6
"""Of transformers' own normalisation of keys and queries."""
Rule = Callable[..., tuple[Tensor, Tensor | None]]


def install_fast_delta_rule(model: PreTrainedModel) -> None:
    """Put the rules below in place of transformers' own, wherever the model's code uses those, on the CPU."""
    if model.device.type != "cpu":
        return
    for name in {type(module).__module__ for module in model.modules()}:
        code = sys.modules.get(name)
        for own, change in ((NAME, in_fewer_passes), (PIECES, evenly)):
            rule = getattr(code, own, None)
            if rule is not None and not hasattr(rule, "in_fewer_passes"):
                setattr(code, own, change(rule))


def in_fewer_passes(rule: Rule) -> Rule:
    """The rule, computed as above for one token and a float32 state `[batch, heads, key_dim, value_dim]`, which it
    changes in place, as the cache that it comes from is about to be; as before for more tokens, or without a state."""

    @wraps(rule)
    def recurrent(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
        state = options.get("initial_state")
        single = key.shape[1] == 1 and options.get("output_final_state") and not torch.is_grad_enabled()
        if state is None or state.dtype != torch.float32 or not state.is_contiguous() or not single:
            return rule(query, key, value, g=g, beta=beta, **options)
        return _step(query, key, value, g, beta, state, bool(options.get("use_qk_l2norm_in_kernel"))), state

    recurrent.in_fewer_passes = True  # type: ignore[attr-defined]
    return recurrent


def evenly(rule: Rule) -> Rule:
    """The rule for a prompt in pieces of one length."""

    @wraps(rule)
    def pieces(query: Tensor, key: Tensor, *arguments: Any, **options: Any) -> Any:
        tokens = key.shape[1]
        options.setdefault("chunk_size", -(-tokens // -(-tokens // PIECE)))
        return rule(query, key, *arguments, **options)

    pieces.in_fewer_passes = True  # type: ignore[attr-defined]
    return pieces


def _step(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor, normal: bool) -> Tensor:
    """`[batch, 1, heads, value_dim]` for one token; several heads of values may share one of keys."""
    batch, heads, width, depth = state.shape
    both = torch.stack([key[:, 0], query[:, 0]], 2).float()  # [batch, key heads, 2, key_dim]
    if normal:
        both = both * torch.rsqrt(both.square().sum(-1, keepdim=True) + EPSILON)
    both = both.repeat_interleave(heads // both.shape[1], 1).reshape(batch * heads, 2, width)
    both[:, 1] /= width**0.5
    decay = g[:, 0].float().exp().reshape(-1, 1, 1)
    rate = beta[:, 0].float().reshape(-1, 1)
    inputs = (state.view(batch * heads, width, depth), both, value[:, 0].float().reshape(-1, depth), decay, rate)
    block = max(1, BLOCK_BYTES // (4 * width * depth))
    out = torch.cat([_advance(*part) for part in zip(*(torch.split(tensor, block) for tensor in inputs), strict=True)])
    return out.view(batch, 1, heads, depth).to(query.dtype)


def _advance(state: Tensor, both: Tensor, value: Tensor, decay: Tensor, rate: Tensor) -> Tensor:
    """`[heads, value_dim]` of some heads, whose states `[heads, key_dim, value_dim]` are changed in place."""
    retrieved = torch.bmm(both, state) * decay
    delta = (value - retrieved[:, 0]) * rate
    state.mul_(decay).baddbmm_(both[:, 0, :, None], delta[:, None])
    return retrieved[:, 1] + (both[:, 0] * both[:, 1]).sum(-1, keepdim=True) * delta
