"""Triton kernels that attend to pages and write keys and values to them. `paged.py` launches them.

One program computes a tile of queries: adjacent queries of one sequence times the query heads that share a KV head, so
that keys are read once for all of them and the tile is large enough for a matrix unit even if every sequence has one
query. Its keys may be split between several programs. Each of them leaves its part of the softmax (the maximum, the
sum, and the weighted values) to `combine_kernel`: flash decoding (Dao et al. 2023) with the softmax of Milakov and
Gimelshein (2018). Scores are in units of log 2, since GPUs have an instruction for exp2 but none for exp.

Only products and exponentials are used, so nothing depends on a vendor.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def store_kernel(
    keys: tl.tensor,  # [tokens, kv_heads, DK]
    values: tl.tensor,  # [tokens, kv_heads, DV]
    places: tl.tensor,  # [tokens] int64
    key_cache: tl.tensor,  # [places, kv_heads, DK]
    value_cache: tl.tensor,  # [places, kv_heads, DV]
    kv_heads: int,
    key_token: int,  # strides of keys and values
    key_head: int,
    value_token: int,
    value_head: int,
    DK: tl.constexpr,
    DV: tl.constexpr,
    WIDTH: tl.constexpr,  # of a program, at least DK and DV
) -> None:
    """Write the keys and values of one head of one token to their slot. Grid: `(tokens, kv_heads)`."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    at = (tl.load(places + token) * kv_heads + head).to(tl.int64)
    column = tl.arange(0, WIDTH)
    key = tl.load(keys + token * key_token + head * key_head + column, mask=column < DK)
    value = tl.load(values + token * value_token + head * value_head + column, mask=column < DV)
    tl.store(key_cache + at * DK + column, key.to(key_cache.dtype.element_ty), mask=column < DK)
    tl.store(value_cache + at * DV + column, value.to(value_cache.dtype.element_ty), mask=column < DV)


@triton.jit(do_not_specialize=["first", "window", "splits", "least", "table_row"])  # these change from step to step
def attend_kernel(
    out: tl.tensor,  # [tokens, heads, DV]
    weighed: tl.tensor,  # [sequences, heads, splits, DV] float32, where SPLIT
    shares: tl.tensor,  # [sequences, heads, splits, 2] float32: maximum and sum, where SPLIT
    queries: tl.tensor,  # [tokens, heads, DK]
    key_cache: tl.tensor,  # [places, kv_heads, DK], a page is PAGE places
    value_cache: tl.tensor,  # [places, kv_heads, DV]
    tables: tl.tensor,  # [sequences, pages] int32
    lengths: tl.tensor,  # [sequences] int32: keys, the newest queries' own included
    starts: tl.tensor,  # [sequences + 1] int32: where queries begin
    sinks: tl.tensor,  # [heads], where SINKS
    first: int,  # the sequence that the first program has
    scale: float,
    softcap: float,
    window: int,
    group: int,  # query heads that share a KV head
    splits: int,
    least: int,  # the least number of keys of a split
    query_token: int,  # strides
    query_head: int,
    table_row: int,
    DK: tl.constexpr,
    DV: tl.constexpr,
    DK_MAIN: tl.constexpr,  # powers of two that cover DK together; DK_REST may be 0
    DK_REST: tl.constexpr,
    DV_BLOCK: tl.constexpr,
    HEADS: tl.constexpr,  # a tile's query heads and queries
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,  # keys that are looked at together
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr,
    SPLIT: tl.constexpr,
) -> None:
    """Attend with one tile's queries to one split's keys. Grid: `(sequences * splits, kv_heads * head tiles, query
    tiles)`."""
    number = tl.program_id(0) // splits
    split = tl.program_id(0) % splits
    sequence = first + number
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    length = tl.load(lengths + sequence)
    tile = tl.program_id(2) * QUERIES
    if tile >= count:
        return

    # the tile's rows: query by query, and for each the heads of a group
    head_tiles = (group + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // head_tiles
    row = tl.arange(0, QUERIES * HEADS)
    query = tile + row // HEADS
    member = (tl.program_id(1) % head_tiles) * HEADS + row % HEADS
    real = (query < count) & (member < group)
    head = kv_head * group + member
    position = length - count + query
    token = (start + query).to(tl.int64)

    at = queries + token * query_token + head * query_head
    main = tl.arange(0, DK_MAIN)
    q = tl.load(at[:, None] + main[None, :], mask=real[:, None] & (main < DK)[None, :], other=0.0)
    kv_heads = tl.num_programs(1) // head_tiles
    keys = key_cache + kv_head * DK
    values = value_cache + kv_head * DV
    if DK_REST > 0:
        rest = DK_MAIN + tl.arange(0, DK_REST)
        q_rest = tl.load(at[:, None] + rest[None, :], mask=real[:, None] & (rest < DK)[None, :], other=0.0)

    column = tl.arange(0, DV_BLOCK)
    # the keys that any of the tile's queries sees, and of these the split's share
    end = tl.minimum(length, length - count + tile + QUERIES)
    begin = 0
    if WINDOW:
        begin = tl.maximum(length - count + tile - window + 1, 0) // KEYS * KEYS
    share = tl.maximum(end - begin + splits - 1, splits * least) // splits
    share = (share + KEYS - 1) // KEYS * KEYS
    begin += split * share
    end = tl.minimum(end, begin + share)
    kept = real[:, None] & (column < DV)[None, :]
    heads = kv_heads * group
    part = ((number * heads + head) * splits + split).to(tl.int64)
    if SPLIT and begin >= end:  # a sequence that is too short for so many splits
        tl.store(shares + part * 2 + 1, tl.zeros([QUERIES * HEADS], tl.float32), mask=real)
        return

    highest = tl.full([QUERIES * HEADS], float("-inf"), tl.float32)
    total = tl.full([QUERIES * HEADS], 0.0, tl.float32)
    acc = tl.full([QUERIES * HEADS, DV_BLOCK], 0.0, tl.float32)
    if SINKS:  # a key without a value, which the first split has
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * LOG2E
        highest = tl.where(real & (split == 0), sink, highest)
        total = tl.where(real & (split == 0), 1.0, 0.0)

    for block in range(begin, end, KEYS):
        key = block + tl.arange(0, KEYS)
        inside = key < end
        page = tl.load(tables + sequence.to(tl.int64) * table_row + key // PAGE, mask=inside, other=0)
        place = (page.to(tl.int64) * PAGE + key % PAGE) * kv_heads  # beyond int32 in a large cache

        k = tl.load(keys + place[None, :] * DK + main[:, None], mask=inside[None, :] & (main < DK)[:, None], other=0)
        scores = tl.dot(q, k, input_precision="ieee")
        if DK_REST > 0:
            k_rest = tl.load(
                keys + place[None, :] * DK + rest[:, None], mask=inside[None, :] & (rest < DK)[:, None], other=0
            )
            scores = tl.dot(q_rest, k_rest, scores, input_precision="ieee")
        scores *= scale
        if SOFTCAP:  # tanh(x) = 2 / (1 + exp(-2x)) - 1
            scores = softcap * (2.0 / (1.0 + tl.exp2(scores * (-2.0 * LOG2E / softcap))) - 1.0)
        scores *= LOG2E

        seen = inside[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen &= key[None, :] > position[:, None] - window
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # a row that has seen no key yet: 0, not infinity less it
        weights = tl.exp2(scores - base[:, None])
        faded = tl.exp2(highest - base)
        total = total * faded + tl.sum(weights, 1)
        highest = higher

        v = tl.load(
            values + place[:, None] * DV + column[None, :], mask=inside[:, None] & (column < DV)[None, :], other=0
        )
        acc = tl.dot(weights.to(v.dtype), v, acc * faded[:, None], input_precision="ieee")

    if SPLIT:
        tl.store(weighed + part[:, None] * DV + column[None, :], acc, mask=kept)
        tl.store(shares + part * 2, highest, mask=real)
        tl.store(shares + part * 2 + 1, total, mask=real)
    else:
        result = acc / tl.where(total > 0.0, total, 1.0)[:, None]  # rows that are not real may have seen nothing
        at_out = out + (token * heads + head)[:, None] * DV + column[None, :]
        tl.store(at_out, result.to(out.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["first", "splits"])
def combine_kernel(
    out: tl.tensor,  # [tokens, heads, DV]
    weighed: tl.tensor,  # [sequences, heads, splits, DV] float32
    shares: tl.tensor,  # [sequences, heads, splits, 2] float32
    starts: tl.tensor,  # [sequences + 1] int32
    first: int,
    splits: int,
    DV: tl.constexpr,
    DV_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,  # a power of two, at least splits
) -> None:
    """Combine the splits of one head of one query. Grid: `(sequences, heads)`."""
    number = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    split = tl.arange(0, SPLITS)
    column = tl.arange(0, DV_BLOCK)
    part = ((number * heads + head) * splits + split).to(tl.int64)
    sums = tl.load(shares + part * 2 + 1, mask=split < splits, other=0.0)
    there = sums > 0.0  # a split without keys has written nothing else
    maxima = tl.load(shares + part * 2, mask=there, other=float("-inf"))
    factors = tl.exp2(maxima - tl.max(maxima, 0))  # every query sees itself, so that one of them is finite
    mask = there[:, None] & (column < DV)[None, :]
    parts = tl.load(weighed + part[:, None] * DV + column[None, :], mask=mask, other=0.0)
    result = tl.sum(parts * factors[:, None], 0) / tl.sum(sums * factors, 0)
    token = tl.load(starts + first + number).to(tl.int64)
    at = out + (token * heads + head) * DV + column
    tl.store(at, result.to(out.dtype.element_ty), mask=column < DV)
