"""Launch the kernels of `layer_kernels.py`: a layer's norms, residuals, rotations, gates and products of experts."""

from __future__ import annotations

import torch
from torch import Tensor

from agent_server.generation.recorded.kernels.layer_kernels import (
    gated_kernel,
    grouped_kernel,
    norm_kernel,
    rotate_kernel,
)
from agent_server.generation.recorded.rewrites import Norm

BLOCK = 1024
LEAST_ROWS, MOST_ROWS = 16, 64
"""Rows of a tile of a grouped product: at least what `tl.dot` takes."""
COLUMNS, DEPTH_BYTES = 64, 128
"""Columns of such a tile, and how much of a row is multiplied at once."""


def rms_norm(x: Tensor, weight: Tensor, norm: Norm) -> Tensor:
    """Normalise the last dimension by its root mean square."""
    rows = _matrix(x)
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _normalise(out, out, rows, rows, weight, norm, add=False)
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """Return the sum and its norm."""
    rows, others = _matrix(x), _matrix(residual)
    total, out = torch.empty(2, *rows.shape, dtype=x.dtype, device=x.device).unbind(0)
    _normalise(out, total, rows, others, weight, norm, add=True)
    return total.view(x.shape), out.view(x.shape)


def _normalise(
    out: Tensor, total: Tensor, x: Tensor, residual: Tensor, weight: Tensor, norm: Norm, *, add: bool
) -> None:
    width = x.shape[-1]
    block = _power_of_two(width)
    norm_kernel[(len(x),)](
        out, total, x, residual, weight, norm.epsilon, x.stride(0), residual.stride(0),
        WIDTH=width, BLOCK=block, ADD=add, LATE=norm.late, OFFSET=norm.offset, num_warps=min(16, max(1, block // 512)),
    )  # fmt: skip


def gated(joined: Tensor, gelu: bool) -> Tensor:
    """Multiply SiLU, or the tanh form of GELU, of the first half of the last dimension by the second half."""
    rows = _matrix(joined)
    width = rows.shape[1] // 2
    out = torch.empty(len(rows), width, dtype=joined.dtype, device=joined.device)
    gated_kernel[(len(rows), -(-width // BLOCK))](out, rows, width, rows.stride(0), GELU=gelu, BLOCK=BLOCK, num_warps=4)
    return out.view(*joined.shape[:-1], width)


def rotate(
    queries: Tensor,
    keys: Tensor,
    cosine: Tensor,
    sine: Tensor,
    weights: tuple[Tensor, Tensor] | None = None,
    norms: tuple[Norm, Norm] | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries `[tokens, heads, dim]` and keys `[tokens, kv_heads, dim]` by cosine and sine `[tokens, 1, dim]`,
    after normalising them if weights are given. The sine's first half must be negated."""
    tokens, heads, dim = queries.shape
    q_out = torch.empty(tokens, heads, dim, dtype=queries.dtype, device=queries.device)
    k_out = torch.empty(tokens, keys.shape[1], dim, dtype=keys.dtype, device=keys.device)
    q_weight, k_weight = weights if weights is not None else (cosine, cosine)
    q_norm, k_norm = norms if norms is not None else (Norm(0.0, False, 0.0),) * 2
    rotate_kernel[(tokens, heads + keys.shape[1])](
        q_out, k_out, queries, keys, cosine, sine, q_weight, k_weight, q_norm.epsilon, k_norm.epsilon,
        heads, keys.shape[1], *queries.stride()[:2], *keys.stride()[:2], cosine.stride(0),
        DIM=dim, BLOCK=_power_of_two(dim), NORM=weights is not None, LATE=q_norm.late, OFFSET=q_norm.offset,
        num_warps=1,
    )  # fmt: skip
    return q_out, k_out


def grouped_product(x: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each group's rows of `x` `[rows, depth]` by its own matrix of `weights` `[groups, depth, width]`,
    without copying the sizes of the groups to the host. ends: int32, where each group's rows end. Rows after the last
    end are undefined."""
    rows, (groups, depth, width) = _matrix(x), weights.shape
    out = torch.empty(len(rows), width, dtype=x.dtype, device=x.device)
    tile = min(MOST_ROWS, max(LEAST_ROWS, _power_of_two(-(-len(rows) // groups))))
    tiles = len(rows) // tile + min(groups, len(rows))
    grouped_kernel[(tiles, -(-width // COLUMNS))](
        out, rows, weights, ends, groups, depth, width, rows.stride(0), *weights.stride(),
        GROUPS=_power_of_two(groups), ROWS=tile, COLUMNS=COLUMNS, DEPTH=DEPTH_BYTES // x.element_size(), num_warps=4,
    )  # fmt: skip
    return out


def _matrix(tensor: Tensor) -> Tensor:
    """Return the tensor as `[rows, width]` with contiguous rows."""
    matrix = tensor.reshape(-1, tensor.shape[-1])
    return matrix if matrix.stride(1) == 1 else matrix.contiguous()


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
