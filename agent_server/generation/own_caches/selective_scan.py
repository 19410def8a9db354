"""The selective scan of Mamba 1 (Gu and Dao 2023) from an initial state, so that a prompt can be computed in chunks.

transformers' scan, like the kernel that it replaces, always starts from zeros, so a chunk would depend on earlier ones
only through the convolution. With the state S before the chunk, and the product P_t of its tokens' decays up to t, the
scan from S exceeds the one from zeros by C_t (P_t S) at each token, and its final state by P_T S. These terms are added
here (Jamba, Mamba, FalconMamba, Zamba); the check at load time verifies the result.
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
    """Make the model's scans start from the states in the cache."""
    for module in model.modules():
        code = sys.modules.get(type(module).__module__)
        scan: Any = getattr(code, NAME, None)
        if scan is None or not hasattr(module, "A_log") or not hasattr(module, "layer_idx"):
            continue
        if not hasattr(scan, "initial_states"):
            scan = with_initial_state(scan)
            setattr(code, NAME, scan)
        module.register_forward_pre_hook(_set_initial_states(scan.initial_states), with_kwargs=True)
        # A single token is not scanned, so its state would be left over for another model's scan.
        module.register_forward_hook(lambda *_, scan=scan: scan.initial_states.clear(), always_call=True)


def _set_initial_states(
    initial_states: list[Tensor],
) -> Callable[[nn.Module, tuple[object, ...], dict[str, Any]], None]:
    def hook(module: nn.Module, arguments: tuple[object, ...], options: dict[str, Any]) -> None:
        cache = options.get("cache_params")
        state = None if cache is None else cache.get_recurrent_state(module.layer_idx, state_idx=0)
        heads = [] if state is None else [state] if state.dim() == 3 else list(state.unbind(1))
        initial_states[:] = reversed(heads)

    return hook


def with_initial_state(scan: Scan) -> Scan:
    """Wrap a scan to start from the last of its `initial_states`, each `[batch, inner, states]`, if there is one. Each
    is used once, since a layer may scan its heads one after the other (Zamba)."""
    initial_states: list[Tensor] = []

    @wraps(scan)
    def scanned(inputs: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, **options: Any) -> Any:
        outputs = scan(inputs, dt, A, B, C, **options)
        if not initial_states:
            return outputs
        state = initial_states.pop()
        if (bias := options.get("delta_bias")) is not None:
            dt = dt + bias.to(dt.dtype)[..., None]
        steps = softplus(dt) if options.get("delta_softplus") else dt
        # The initial state after its decay at each token: [batch, inner, tokens, states].
        decayed = torch.exp(A[None, :, None] * steps.float().cumsum(-1)[..., None]) * state[:, :, None].float()
        added = torch.einsum("bitn,bnt->bit", decayed, C.float())
        if (gate := options.get("z")) is not None:
            added = added * silu(gate)
        if not options.get("return_last_state"):
            return outputs + added
        return outputs[0] + added, outputs[1] + decayed[:, :, -1]

    scanned.initial_states = initial_states  # type: ignore[attr-defined]
    return scanned
