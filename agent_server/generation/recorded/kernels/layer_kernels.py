"""Triton kernels for the operations between the matrix products of a transformer's layer. `layers.py` launches them.

Everything is computed in float32, with intermediate rounding where a module has it, such as RMSNorm before the
multiplication by its weight. A rotation is rounded only once, while the module rounds three times.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_kernel(
    out: tl.tensor,  # [rows, WIDTH]
    total: tl.tensor,  # [rows, WIDTH], where ADD
    x: tl.tensor,  # [rows, WIDTH]
    residual: tl.tensor,  # [rows, WIDTH], where ADD
    weight: tl.tensor,  # [WIDTH]
    epsilon: float,
    x_row: int,  # strides
    residual_row: int,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,  # x and the residual are summed up first, and the sum is kept
    LATE: tl.constexpr,  # rounded before the weight, which is multiplied in the input's precision
    OFFSET: tl.constexpr,  # what is added to the weight
) -> None:
    """Normalise a row by its root mean square (Zhang and Sennrich 2019). Grid: `(rows,)`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    value = tl.load(x + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row * residual_row + column, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * WIDTH + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    value *= 1.0 / tl.sqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + OFFSET
    if LATE:
        value = value.to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * WIDTH + column, (value * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated_kernel(
    out: tl.tensor,  # [rows, width]
    joined: tl.tensor,  # [rows, 2 * width]: what is activated, and what it is multiplied by
    width: int,
    joined_row: int,  # stride
    GELU: tl.constexpr,  # its tanh form, else SiLU
    BLOCK: tl.constexpr,
) -> None:
    """Multiply the activation of one half of a row by the other half. Grid: `(rows, blocks)`."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(joined + row * joined_row + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(joined + row * joined_row + width + column, mask=inside, other=0.0).to(tl.float32)
    inner = gate
    if GELU:  # x (1 + tanh(y)) / 2 = x / (1 + exp(-2y))
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = (gate / (1.0 + tl.exp(-inner))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * width + column, (active * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def rotate_kernel(
    q_out: tl.tensor,  # [tokens, heads, DIM]
    k_out: tl.tensor,  # [tokens, kv_heads, DIM]
    queries: tl.tensor,  # [tokens, heads, DIM]
    keys: tl.tensor,  # [tokens, kv_heads, DIM]
    cosine: tl.tensor,  # [tokens, 1, DIM]
    sine: tl.tensor,  # [tokens, 1, DIM], its first half negative
    q_weight: tl.tensor,  # [DIM], where NORM
    k_weight: tl.tensor,
    q_epsilon: float,
    k_epsilon: float,
    heads: int,
    kv_heads: int,
    q_token: int,  # strides
    q_head: int,
    k_token: int,
    k_head: int,
    angle_token: int,
    DIM: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    LATE: tl.constexpr,
    OFFSET: tl.constexpr,
) -> None:
    """Apply rotary embeddings by halves (Su et al. 2021) to one head of one token, after its norm if it has one. Grid:
    `(tokens, heads + kv_heads)`, the queries' heads first."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < DIM
    other = (column + DIM // 2) % DIM
    if head < heads:
        at = queries + token * q_token + head * q_head
        to = q_out + (token * heads + head) * DIM
        weight, epsilon = q_weight, q_epsilon
    else:
        at = keys + token * k_token + (head - heads) * k_head
        to = k_out + (token * kv_heads + head - heads) * DIM
        weight, epsilon = k_weight, k_epsilon
    x = tl.load(at + column, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(at + other, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        factor = 1.0 / tl.sqrt(tl.sum(x * x, 0) / DIM + epsilon)
        x, y = x * factor, y * factor
        if LATE:
            x, y = x.to(q_out.dtype.element_ty).to(tl.float32), y.to(q_out.dtype.element_ty).to(tl.float32)
        x *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + OFFSET
        y *= tl.load(weight + other, mask=inside, other=0.0).to(tl.float32) + OFFSET
        x, y = x.to(q_out.dtype.element_ty).to(tl.float32), y.to(q_out.dtype.element_ty).to(tl.float32)
    cos = tl.load(cosine + token * angle_token + column, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sine + token * angle_token + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(to + column, (x * cos + y * sin).to(q_out.dtype.element_ty), mask=inside)


@triton.jit
def grouped_kernel(
    out: tl.tensor,  # [rows, width]
    x: tl.tensor,  # [rows, depth], the rows of each group together
    weights: tl.tensor,  # [groups, depth, width]
    ends: tl.tensor,  # [groups]: where each group's rows end
    groups: int,
    depth: int,
    width: int,
    x_row: int,  # strides
    weights_group: int,
    weights_depth: int,
    weights_width: int,
    GROUPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """Multiply each group's rows by its own matrix. Grid: `(tiles, column blocks)`. The number of tiles is a bound that
    the host knows without the sizes of the groups; programs beyond the last tile return."""
    group = tl.arange(0, GROUPS)
    end = tl.load(ends + group, mask=group < groups, other=0)
    begin = tl.load(ends + group - 1, mask=(group > 0) & (group < groups), other=0)
    tiles = (end - begin + ROWS - 1) // ROWS
    tiles_end = tl.cumsum(tiles, 0)
    tile = tl.program_id(0)
    own = tl.sum((tiles_end <= tile).to(tl.int32), 0)
    if own >= groups:
        return
    own_first = tl.sum(tl.where(group == own, begin + (tile - tiles_end + tiles) * ROWS, 0), 0)
    own_end = tl.sum(tl.where(group == own, end, 0), 0)
    row = (own_first + tl.arange(0, ROWS)).to(tl.int64)
    real = row < own_end
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    matrix = weights + own.to(tl.int64) * weights_group + column[None, :] * weights_width
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, depth, DEPTH):
        at = start + tl.arange(0, DEPTH)
        left = tl.load(x + row[:, None] * x_row + at[None, :], mask=real[:, None] & (at < depth)[None, :], other=0.0)
        right = tl.load(matrix + at[:, None] * weights_depth, mask=(at < depth)[:, None] & inside[None, :], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    where = out + row[:, None] * width + column[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])
