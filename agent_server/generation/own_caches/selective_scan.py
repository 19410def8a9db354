"""The selective scan of Mamba 1 (Gu and Dao 2023) from a state, so that a prompt may come in pieces.

transformers' scan, like the kernel that it stands for, begins from zeros: of what came before a piece only the
convolution knows. With S the state in front of the piece, and P_t the product of its tokens' decays up to t, the scan
from S gives at each token C_t (P_t S) more than the one from zeros, and leaves P_T S more as its state. That is added
here (Jamba, Mamba, FalconMamba, Zamba); the check at load says whether it is right.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "mamba_selective_scan"
Scan = Callable[..., Any]


def continue_scans(model: PreTrainedModel) -> None:
    """Have the model's scans begin from the states that its layers have."""
    for module in model.modules():
        code = sys.modules.get(type(module).__module__)
        scan: Any = getattr(code, NAME, None)
        if scan is None or not hasattr(module, "A_log") or not hasattr(module, "layer_idx"):
            continue
        if not hasattr(scan, "begins"):
            scan = continuing(scan)
            setattr(code, NAME, scan)
        begins: list[Tensor] = scan.begins
        module.register_forward_pre_hook(_hand_over(begins), with_kwargs=True)
        # A single token is not scanned: its state must not be where another model's scan begins.
        module.register_forward_hook(_forget(begins), always_call=True)


def _hand_over(begins: list[Tensor]) -> Callable[[nn.Module, tuple[object, ...], dict[str, Any]], None]:
    def hand_over(module: nn.Module, arguments: tuple[object, ...], options: dict[str, Any]) -> None:
        cache = options.get("cache_params")
        state = None if cache is None else cache.get_recurrent_state(module.layer_idx, state_idx=0)
        heads = [] if state is None else [state] if state.dim() == 3 else list(state.unbind(1))
        begins[:] = reversed(heads)

    return hand_over


def _forget(begins: list[Tensor]) -> Callable[..., None]:
    return lambda *arguments: begins.clear()


def continuing(scan: Scan) -> Scan:
    """The scan from the last state `[batch, inner, states]` in `begins`, if there is one, which is used up: a layer may
    scan its heads one after the other (Zamba)."""
    begins: list[Tensor] = []

    @wraps(scan)
    def scanned(inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **options: Any) -> Any:
        outputs = scan(inputs, dt, A, B, C, **options)
        if not begins:
            return outputs
        reached = _reached(begins.pop(), dt, A, options)
        more = torch.einsum("bitn,bnt->bit", reached, C.float())
        if (gate := options.get("z")) is not None:
            more = more * silu(gate)
        if not options.get("return_last_state"):
            return outputs + more
        return outputs[0] + more, outputs[1] + reached[:, :, -1]

    scanned.begins = begins  # type: ignore[attr-defined]
    return scanned


def _reached(state: Tensor, dt: Tensor, A: Tensor, options: dict[str, Any]) -> Tensor:
    """What is left of a state at each token: `[batch, inner, tokens, states]`."""
    if (bias := options.get("delta_bias")) is not None:
        dt = dt + bias.to(dt.dtype)[..., None]
    steps = softplus(dt) if options.get("delta_softplus") else dt
    return torch.exp(A[None, :, None] * steps.float().cumsum(-1)[..., None]) * state[:, :, None].float()
