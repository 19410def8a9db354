"""Triton kernels that sample tokens from logits without sorting the vocabulary. `sample.py` launches them.

top_k and top_p keep all tokens above a boundary, and the first few that equal it. The boundary is the largest logit for
which the logits at or above it suffice: k of them, or a share of the mass. It is found by narrowing an interval whose
upper end is always a logit of the row. Each pass sums up the mass above four inner points. The last point that still
suffices becomes the lower end, and the largest logit below the next point the upper end. So every pass but the last
excludes at least one distinct logit, and usually three quarters of the interval.

One program computes one row, in blocks of a fixed size, so that every sum is made in the same order regardless of the
rest of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
TEMPERATURE, TOP_P, MIN_P, NUMBERS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)
"""Columns of a row's parameters, and how many there are."""


@triton.jit
def adjust_kernel(
    out: tl.tensor,  # [places, vocabulary] float32
    logits: tl.tensor,  # [places, vocabulary] float32
    rows: tl.tensor,  # [places] int64
    factors: tl.tensor,  # [rows, 3] float32: repetition, presence, frequency
    counts: tl.tensor,  # [rows, vocabulary] int32: how often it was generated
    prompts: tl.tensor,  # [rows, vocabulary] int8: whether it is in the prompt
    masks: tl.tensor,  # [places] int32: the place's mask, below 0 for none
    bits: tl.tensor,  # [masks, words] int32
    vocab_size: int,
    words: int,
    PENALTIES: tl.constexpr,
    MASKS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Apply penalties, then a grammar's mask. Grid: `(places, blocks)`."""
    place = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < vocab_size
    x = tl.load(logits + place * vocab_size + token, mask=inside, other=0.0)
    if PENALTIES:  # rows without one have the factors 1, 0, 0, and counts that are never looked at
        row = tl.load(rows + place)
        repetition = tl.load(factors + row * 3)
        presence = tl.load(factors + row * 3 + 1)
        frequency = tl.load(factors + row * 3 + 2)
        if (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0):
            count = tl.load(counts + row * vocab_size + token, mask=inside, other=0)
            prompt = tl.load(prompts + row * vocab_size + token, mask=inside, other=0)
            seen = (count > 0) | (prompt != 0)
            x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
            x -= count.to(tl.float32) * frequency + tl.where(count > 0, presence, 0.0)
    if MASKS:
        mask = tl.load(masks + place).to(tl.int64)
        if mask >= 0:
            known = inside & (token // 32 < words)
            word = tl.load(bits + mask * words + token // 32, mask=known, other=0)
            x = tl.where((word >> (token % 32)) & 1 == 1, x, float("-inf"))
    tl.store(out + place * vocab_size + token, x, mask=inside)


@triton.jit
def mixed(state: tl.tensor) -> tl.tensor:
    """SplitMix64's (Steele, Lea, Flood 2014) finaliser, uint64."""
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    return state ^ (state >> 31)


@triton.jit
def uniform(seed: tl.tensor, position: tl.tensor) -> tl.tensor:
    """Return the random number of `sampler.uniform`."""
    golden = tl.full([], 0x9E3779B97F4A7C15, tl.uint64)
    state = mixed(seed.to(tl.uint64, bitcast=True)) + (position + 1).to(tl.uint64, bitcast=True) * golden
    return ((mixed(state) >> 40) + 1).to(tl.float32) * 5.960464477539063e-08


@triton.jit
def boundary(
    at: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    low: tl.tensor,
    target: tl.tensor,
    COUNTED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the largest logit for which there are `target` logits at or above it (COUNTED), or as much mass in units
    of the largest logit's. low: a logit that is known to suffice. top: the largest logit."""
    lane = tl.arange(0, BLOCK)
    high = top
    while low < high:
        step = (high - low) * 0.25
        one, two, three = low + step, low + 2.0 * step, low + 3.0 * step
        sum_1 = tl.full([BLOCK], 0.0, tl.float32)
        sum_2, sum_3, sum_4 = sum_1, sum_1, sum_1
        max_0 = tl.full([BLOCK], float("-inf"), tl.float32)
        max_1, max_2, max_3 = max_0, max_0, max_0
        for block in range(0, vocab_size, BLOCK):
            token = block + lane
            x = tl.load(at + token, mask=token < vocab_size, other=float("-inf")) / temperature
            weight = tl.full([BLOCK], 1.0, tl.float32)  # whole numbers are exact up to 2^24
            if not COUNTED:
                weight = tl.exp2((x - top) * LOG2E)
            sum_1 += tl.where(x >= one, weight, 0.0)
            sum_2 += tl.where(x >= two, weight, 0.0)
            sum_3 += tl.where(x >= three, weight, 0.0)
            sum_4 += tl.where(x >= high, weight, 0.0)
            max_0 = tl.maximum(max_0, tl.where(x < one, x, float("-inf")))
            max_1 = tl.maximum(max_1, tl.where(x < two, x, float("-inf")))
            max_2 = tl.maximum(max_2, tl.where(x < three, x, float("-inf")))
            max_3 = tl.maximum(max_3, tl.where(x < high, x, float("-inf")))
        enough_1, enough_2 = tl.sum(sum_1, 0) >= target, tl.sum(sum_2, 0) >= target
        enough_3, enough_4 = tl.sum(sum_3, 0) >= target, tl.sum(sum_4, 0) >= target
        below_1, below_2, below_3, below_4 = tl.max(max_0, 0), tl.max(max_1, 0), tl.max(max_2, 0), tl.max(max_3, 0)
        lower = tl.where(enough_3, three, tl.where(enough_2, two, tl.where(enough_1, one, low)))
        below = tl.where(enough_3, below_4, tl.where(enough_2, below_3, tl.where(enough_1, below_2, below_1)))
        low = tl.where(enough_4, high, lower)
        high = tl.where(enough_4, high, below)
    return high


@triton.jit
def above(
    at: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    value: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the number of logits above a value, their mass, and the number of logits that equal it."""
    lane = tl.arange(0, BLOCK)
    number = tl.full([BLOCK], 0, tl.int32)
    mass = tl.full([BLOCK], 0.0, tl.float32)
    equal = tl.full([BLOCK], 0, tl.int32)
    for block in range(0, vocab_size, BLOCK):
        token = block + lane
        x = tl.load(at + token, mask=token < vocab_size, other=float("-inf")) / temperature
        number += (x > value).to(tl.int32)
        equal += (x == value).to(tl.int32)
        mass += tl.where(x > value, tl.exp2((x - top) * LOG2E), 0.0)
    return tl.sum(number, 0), tl.sum(mass, 0), tl.sum(equal, 0)


@triton.jit
def limits(
    at: tl.tensor,
    vocab_size: tl.tensor,
    temperature: tl.tensor,
    top: tl.tensor,
    low: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    BLOCK: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the boundary of top_k and top_p, and how many of the logits that equal it are kept. The share of top_p
    refers to the tokens that top_k keeps. low, top: the smallest allowed logit and the largest."""
    value = low
    limit = vocab_size
    _, mass, equal = above(at, vocab_size, temperature, top, value, BLOCK)
    mass += equal.to(tl.float32) * tl.exp2((value - top) * LOG2E)
    if top_k < vocab_size:
        value = boundary(at, vocab_size, temperature, top, low, top_k.to(tl.float32), True, BLOCK)
        number, over, equal = above(at, vocab_size, temperature, top, value, BLOCK)
        limit = tl.minimum(top_k - number, equal).to(tl.int32)
        mass = over + limit.to(tl.float32) * tl.exp2((value - top) * LOG2E)
    if top_p < 1.0:
        share = top_p * mass
        cut = boundary(at, vocab_size, temperature, top, value, share, False, BLOCK)
        number, over, equal = above(at, vocab_size, temperature, top, cut, BLOCK)
        one = tl.exp2((cut - top) * LOG2E)
        wanted = tl.ceil((share - over) / tl.maximum(one, 1e-38)).to(tl.int32)
        limit = tl.minimum(tl.maximum(wanted, 1), tl.where(cut > value, equal, limit))
        value = cut
    return value, limit


@triton.jit
def kept_weights(
    x: tl.tensor,
    top: tl.tensor,
    value: tl.tensor,
    limit: tl.tensor,
    least: tl.tensor,
    met: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the weights of a block, and the number of logits so far that equal the boundary. Weights are 0 for logits
    below the boundary `value` or below `least`, and for all but the first `limit` that equal the boundary, of which
    earlier blocks had `met`."""
    equal = (x == value).to(tl.int32)
    rank = met + tl.cumsum(equal, 0)
    weight = tl.exp2((x - top) * LOG2E)
    keep = (x > value) | ((equal == 1) & (rank <= limit))
    return tl.where(keep & (weight >= least), weight, 0.0), met + tl.sum(equal, 0)


@triton.jit(do_not_specialize_on_alignment=["positions", "totals"])  # parts of tensors: theirs is the batch size's
def pick_kernel(
    tokens: tl.tensor,  # [places] int64
    logprobs: tl.tensor,  # [places] float32, where LOGPROBS: the picked token's
    totals: tl.tensor,  # [places] float32, where LOGPROBS: the logarithm of the sum of exponentials
    last: tl.tensor,  # [rows] int64: each row's newest token
    logits: tl.tensor,  # [places, vocabulary] float32
    raw: tl.tensor,  # the same before penalties
    rows: tl.tensor,  # [places] int64
    positions: tl.tensor,  # [places] int64
    numbers: tl.tensor,  # [rows, NUMBERS] float32; a temperature of 0 is greedy
    top_ks: tl.tensor,  # [rows] int64, the vocabulary's size for none
    seeds: tl.tensor,  # [rows] int64
    counts: tl.tensor,  # [rows, vocabulary] int32, where COUNTS
    vocab_size: int,
    LOGPROBS: tl.constexpr,
    COUNTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sample one token for each place. Grid: `(places,)`."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place)
    at = logits + place * vocab_size
    lane = tl.arange(0, BLOCK)
    temperature = tl.load(numbers + row * NUMBERS + TEMPERATURE)

    # the largest logit and the first that has it, and the smallest that is not forbidden
    maxima = tl.full([BLOCK], float("-inf"), tl.float32)
    minima = tl.full([BLOCK], float("inf"), tl.float32)
    firsts = tl.full([BLOCK], 0, tl.int32)
    for block in range(0, vocab_size, BLOCK):
        token = block + lane
        x = tl.load(at + token, mask=token < vocab_size, other=float("-inf"))
        firsts = tl.where(x > maxima, token, firsts)
        maxima = tl.maximum(maxima, x)
        minima = tl.minimum(minima, tl.where(x > float("-inf"), x, float("inf")))
    top = tl.max(maxima, 0)
    picked = tl.min(tl.where(maxima == top, firsts, vocab_size - 1), 0)

    if (temperature > 0.0) & (top > float("-inf")):
        top = top / temperature
        low = tl.min(minima, 0) / temperature
        top_k = tl.load(top_ks + row)
        top_p = tl.load(numbers + row * NUMBERS + TOP_P)
        least = tl.load(numbers + row * NUMBERS + MIN_P)
        value, limit = limits(at, vocab_size, temperature, top, low, top_k, top_p, BLOCK)
        kept = 0.0
        met = 0
        for block in range(0, vocab_size, BLOCK):
            token = block + lane
            x = tl.load(at + token, mask=token < vocab_size, other=float("-inf")) / temperature
            weights, met = kept_weights(x, top, value, limit, least, met)
            kept += tl.sum(weights, 0)
        draw = uniform(tl.load(seeds + row), tl.load(positions + place)) * kept
        passed = 0.0
        met = 0
        for block in range(0, vocab_size, BLOCK):
            token = block + lane
            x = tl.load(at + token, mask=token < vocab_size, other=float("-inf")) / temperature
            weights, met = kept_weights(x, top, value, limit, least, met)
            following = passed + tl.sum(weights, 0)
            if (passed < draw) & (following >= draw):
                reached = (passed + tl.cumsum(weights, 0) >= draw) & (weights > 0.0)
                first = tl.min(tl.where(reached, token, vocab_size), 0)
                final = tl.max(tl.where(weights > 0.0, token, 0), 0)  # where sums round otherwise than their parts
                picked = tl.where(first < vocab_size, first, final)
            passed = following

    tl.store(tokens + place, picked.to(tl.int64))
    tl.store(last + row, picked.to(tl.int64))
    if COUNTS:
        tl.store(counts + row * vocab_size + picked, tl.load(counts + row * vocab_size + picked) + 1)
    if LOGPROBS:
        maxima = tl.full([BLOCK], float("-inf"), tl.float32)
        sums = tl.full([BLOCK], 0.0, tl.float32)
        for block in range(0, vocab_size, BLOCK):
            token = block + lane
            x = tl.load(raw + place * vocab_size + token, mask=token < vocab_size, other=float("-inf"))
            higher = tl.maximum(maxima, x)
            base = tl.where(higher == float("-inf"), 0.0, higher)
            sums = sums * tl.exp2((maxima - base) * LOG2E) + tl.exp2((x - base) * LOG2E)
            maxima = higher
        highest = tl.max(maxima, 0)
        total = highest + tl.log(tl.sum(sums * tl.exp2((maxima - highest) * LOG2E), 0))
        tl.store(totals + place, total)
        tl.store(logprobs + place, tl.load(raw + place * vocab_size + picked) - total)
