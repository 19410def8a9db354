"""The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), with fewer passes over the states for one token.

Decoding a hybrid of linear attention (Qwen3.5, Qwen3-Next, OLMo Hybrid) on a CPU is bound by its states: a megabyte for
each layer and sequence, which transformers' own function reads or writes a dozen times per token. With the state S, the
decay a, the rate b, and the token's k, q and v:

    S' = a S + k (b (v - a kS))      and      qS' = a qS + (qk) b (v - a kS)

One product reads S for both kS and qS, and S is updated in place, a few heads at a time, so that their states stay in
the CPU's cache.

transformers computes prompts in pieces of 64 tokens and pads the last one: 80 tokens cost as much as 128. Here all
pieces of a prompt are equally long.
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
"""The maximum length of a piece in tokens."""
BLOCK_BYTES = 2 << 20
"""The size of the states that are updated together: about that of a core's own cache."""
EPSILON = 1e-6
"""The epsilon of transformers' normalisation of keys and queries."""
Rule = Callable[..., tuple[Tensor, Tensor | None]]


def install_fast_delta_rule(model: PreTrainedModel) -> None:
    """Replace transformers' rules in the model's modules by those below, if the model is on the CPU."""
    if model.device.type != "cpu":
        return
    for name in {type(module).__module__ for module in model.modules()}:
        code = sys.modules.get(name)
        for own, change in ((NAME, in_fewer_passes), (PIECES, in_equal_pieces)):
            rule = getattr(code, own, None)
            if rule is not None and not hasattr(rule, "in_fewer_passes"):
                setattr(code, own, change(rule))


def in_fewer_passes(rule: Rule) -> Rule:
    """Wrap a recurrent rule. One token with a contiguous float32 state `[batch, heads, key_dim, value_dim]` is computed
    as described above, and the state is updated in place, which is what its cache expects. All other calls are passed
    on."""

    @wraps(rule)
    def recurrent(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
        state = options.get("initial_state")
        single = key.shape[1] == 1 and options.get("output_final_state") and not torch.is_grad_enabled()
        if state is None or state.dtype != torch.float32 or not state.is_contiguous() or not single:
            return rule(query, key, value, g=g, beta=beta, **options)
        return _step(query, key, value, g, beta, state, bool(options.get("use_qk_l2norm_in_kernel"))), state

    recurrent.in_fewer_passes = True  # type: ignore[attr-defined]
    return recurrent


def in_equal_pieces(rule: Rule) -> Rule:
    """Wrap a chunked rule so that a prompt is divided into pieces of equal length."""

    @wraps(rule)
    def pieces(query: Tensor, key: Tensor, *arguments: Any, **options: Any) -> Any:
        tokens = key.shape[1]
        options.setdefault("chunk_size", -(-tokens // -(-tokens // PIECE)))
        return rule(query, key, *arguments, **options)

    pieces.in_fewer_passes = True  # type: ignore[attr-defined]
    return pieces


def _step(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, state: Tensor, normal: bool) -> Tensor:
    """Compute the rule for one token. Return `[batch, 1, heads, value_dim]`. Several value heads may share a key
    head."""
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
    outs = []
    for states, pairs, values, decays, rates in zip(*(torch.split(tensor, block) for tensor in inputs), strict=True):
        retrieved = torch.bmm(pairs, states) * decays
        delta = (values - retrieved[:, 0]) * rates
        states.mul_(decays).baddbmm_(pairs[:, 0, :, None], delta[:, None])
        outs.append(retrieved[:, 1] + (pairs[:, 0] * pairs[:, 1]).sum(-1, keepdim=True) * delta)
    return torch.cat(outs).view(batch, 1, heads, depth).to(query.dtype)
