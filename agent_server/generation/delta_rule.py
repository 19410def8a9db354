"""The gated delta rule for one token (Yang et al. 2024, "Gated Delta Networks"), with fewer passes over the states.

Decoding a hybrid of linear attention (Qwen3.5, Qwen3-Next, OLMo Hybrid) on a CPU is bound by its states: a megabyte for
each layer and sequence, which transformers' own function reads or writes a dozen times for a token. With S the state,
a the decay, b the rate, k, q and v the token's:

    S' = a S + k (b (v - a kS))      and      qS' = a qS + (qk) b (v - a kS)

so that one product reads S for both kS and qS, and S is scaled and added to where it lies.
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
EPSILON = 1e-6
"""Of transformers' own normalisation of keys and queries."""
Rule = Callable[..., tuple[Tensor, Tensor | None]]


def quicken(model: PreTrainedModel) -> None:
    """Put the rule below in place of transformers' own, wherever the model's code uses that, on the CPU. Where it is
    called with more than a token, or without a state, it calls the one that it replaced."""
    if model.device.type != "cpu":
        return
    for name in {type(module).__module__ for module in model.modules()}:
        code = sys.modules.get(name)
        rule = getattr(code, NAME, None)
        if rule is not None and not hasattr(rule, "quickened"):
            setattr(code, NAME, quickened(rule))


def quickened(rule: Rule) -> Rule:
    """The rule, computed as above for one token and a float32 state `[batch, heads, key_dim, value_dim]`, which it
    changes in place, as the cache that it comes from is about to be."""

    @wraps(rule)
    def recurrent(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
        state = options.get("initial_state")
        single = key.shape[1] == 1 and options.get("output_final_state") and not torch.is_grad_enabled()
        if state is None or state.dtype != torch.float32 or not state.is_contiguous() or not single:
            return rule(query, key, value, g=g, beta=beta, **options)
        return _step(query, key, value, g, beta, state, bool(options.get("use_qk_l2norm_in_kernel"))), state

    recurrent.quickened = True  # type: ignore[attr-defined]
    return recurrent


def _step(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor, normal: bool) -> Tensor:
    """`[batch, 1, heads, value_dim]` for one token; several heads of values may share one of keys."""
    batch, heads, width, depth = state.shape
    both = torch.stack([key[:, 0], query[:, 0]], 2).float()  # [batch, key heads, 2, key_dim]
    if normal:
        both = both * torch.rsqrt(both.square().sum(-1, keepdim=True) + EPSILON)
    both = both.repeat_interleave(heads // both.shape[1], 1).reshape(batch * heads, 2, width)
    both[:, 1] /= width**0.5
    flat = state.view(batch * heads, width, depth)
    decay = g[:, 0].float().exp().reshape(-1, 1, 1)
    seen = torch.bmm(both, flat) * decay
    rate = beta[:, 0].float().reshape(-1, 1)
    delta = (value[:, 0].float().reshape(-1, depth) - seen[:, 0]) * rate
    flat.mul_(decay).baddbmm_(both[:, 0, :, None], delta[:, None])
    out = seen[:, 1] + (both[:, 0] * both[:, 1]).sum(-1, keepdim=True) * delta
    return out.view(batch, 1, heads, depth).to(query.dtype)
