"""Triton kernels that sample tokens from logits without sorting the vocabulary. `sample.py` launches them.

A row is divided into segments of consecutive tokens. The first kernel reads every logit once, on all multiprocessors,
and leaves each segment's largest and smallest logit and its mass, the sum of its weights. From these alone the second,
one program a row, gets the largest logit, the whole mass, a lower bound of what the filters keep, and for rows without
filters the segment that the random number falls into, so that it reads the logits of this segment only.

For filters it copies the logits from that bound on, the candidates, to lists of its own: LANES for each segment, of
which each takes every LANES-th token, so that nothing is exchanged between lists. top_k and top_p keep all tokens
above a boundary, and the first few that equal it. The boundary is the largest logit for which the logits at or above it
suffice: k of them, or a share of the mass. It is found by narrowing an interval whose upper end is always a logit of
the row. Each pass sums up the mass of candidates above four inner points. The last point that still suffices becomes
the lower end, and the largest logit below the next point the upper end. So every pass but the last excludes at least
one distinct logit, and usually three quarters of the interval; candidates below it are removed.

Segments and lists depend on the vocabulary's size only, so that every sum is made in the same order regardless of the
rest of the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
TEMPERATURE, TOP_P, MIN_P, NUMBERS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(4)
"""Columns of a row's parameters, and how many there are."""
PEAK, LOWEST, MASS, RAW_PEAK, RAW_MASS, SUMMARIES = (tl.constexpr(number) for number in range(6))
"""Parts of a row's summary, and how many there are: the largest logit of a segment, the smallest that is not minus
infinity, the mass in units of the largest's; and the largest and the mass before penalties, at a temperature of 1."""


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
def peaks_and_masses(x: tl.tensor, scale: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest logit of each segment `[segments, width]`, and the segment's mass in units of that logit's."""
    peaks = tl.max(x, 1)
    base = tl.where(peaks == float("-inf"), 0.0, peaks)
    return peaks, tl.sum(tl.exp2((x - base[:, None]) * scale), 1)


@triton.jit
def summarise_kernel(
    summaries: tl.tensor,  # [places, SUMMARIES, SEGMENTS] float32
    logits: tl.tensor,  # [places, vocabulary] float32
    raw: tl.tensor,  # the same before penalties
    rows: tl.tensor,  # [places] int64
    numbers: tl.tensor,  # [rows, NUMBERS] float32
    vocab_size: int,
    width: int,
    LOGPROBS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    PART: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Store each segment's largest and smallest allowed logit and its mass. Grid: `(places, SEGMENTS // PART)`."""
    place = tl.program_id(0).to(tl.int64)
    temperature = tl.load(numbers + tl.load(rows + place) * NUMBERS + TEMPERATURE)
    segment = tl.program_id(1) * PART + tl.arange(0, PART)
    offset = tl.arange(0, WIDTH)
    token = segment[:, None] * width + offset[None, :]
    inside = (offset < width)[None, :] & (token < vocab_size)
    x = tl.load(logits + place * vocab_size + token, mask=inside, other=float("-inf"))
    peaks, masses = peaks_and_masses(x, scale_of(temperature))
    out = summaries + place * (SUMMARIES * SEGMENTS) + segment
    tl.store(out + PEAK * SEGMENTS, peaks)
    tl.store(out + LOWEST * SEGMENTS, tl.min(tl.where(x > float("-inf"), x, float("inf")), 1))
    tl.store(out + MASS * SEGMENTS, masses)
    if LOGPROBS:
        x = tl.load(raw + place * vocab_size + token, mask=inside, other=float("-inf"))
        peaks, masses = peaks_and_masses(x, LOG2E)
        tl.store(out + RAW_PEAK * SEGMENTS, peaks)
        tl.store(out + RAW_MASS * SEGMENTS, masses)


@triton.jit
def scale_of(temperature: tl.tensor) -> tl.tensor:
    """Return the factor of differences of logits in exponents of 2; that of temperature 1 for greedy rows."""
    return LOG2E / tl.where(temperature > 0.0, temperature, 1.0)


@triton.jit
def collect(
    lists: tl.tensor, source: tl.tensor, count: tl.tensor, low: tl.tensor, position: tl.tensor, LANES: tl.constexpr
) -> tl.tensor:
    """Store the candidates from `low` on of the lists in `source`, which may be `lists` itself, and return their
    number. count: the number of candidates in each list of `source`, `[SEGMENTS * LANES]`. position: where each list
    begins; it goes on at every LANES-th place."""
    kept = tl.zeros_like(count)
    for depth in tl.range(0, tl.max(count), num_stages=4):
        # Never reads what this loop has stored: a list grows no faster than it is read.
        x = tl.load(source + position + depth * LANES, mask=depth < count, other=float("-inf"))
        keep = x >= low
        tl.store(lists + position + kept * LANES, x, mask=keep)
        kept += keep.to(tl.int32)
    tl.debug_barrier()  # other threads may load what was stored
    return kept


@triton.jit
def sums_and_maxima(
    a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, e: tl.tensor, f: tl.tensor, g: tl.tensor, h: tl.tensor,
    m: tl.tensor, n: tl.tensor, o: tl.tensor, p: tl.tensor, q: tl.tensor, r: tl.tensor, s: tl.tensor, t: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor, tl.tensor]:  # fmt: skip
    """Combine four sums and four maxima of two parts."""
    return a + m, b + n, c + o, d + p, tl.maximum(e, q), tl.maximum(f, r), tl.maximum(g, s), tl.maximum(h, t)


@triton.jit
def boundary(
    lists: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    top: tl.tensor,
    low: tl.tensor,
    target: tl.tensor,
    position: tl.tensor,
    COUNTED: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Return the largest logit for which there are `target` logits at or above it (COUNTED), or as much mass in units
    of the largest logit's, and the new number of candidates, of which those below it are removed. low: a number that
    is known to suffice; returned if no logit does by the sums computed here. top: the largest logit."""
    high = top
    while low < high:
        step = (high - low) * 0.25
        one, two, three = low + step, low + 2.0 * step, low + 3.0 * step
        sum_1 = tl.zeros_like(count).to(tl.float32)
        sum_2, sum_3, sum_4 = sum_1, sum_1, sum_1
        max_0 = sum_1 + float("-inf")
        max_1, max_2, max_3 = max_0, max_0, max_0
        for depth in tl.range(0, tl.max(count), num_stages=3):
            x = tl.load(lists + position + depth * LANES, mask=depth < count, other=float("-inf"))
            weight = tl.full(x.shape, 1.0, tl.float32)  # whole numbers are exact up to 2^24
            if not COUNTED:
                weight = tl.exp2((x - top) * scale)
            sum_1 += tl.where(x >= one, weight, 0.0)
            sum_2 += tl.where(x >= two, weight, 0.0)
            sum_3 += tl.where(x >= three, weight, 0.0)
            sum_4 += tl.where(x >= high, weight, 0.0)
            max_0 = tl.maximum(max_0, tl.where(x < one, x, float("-inf")))
            max_1 = tl.maximum(max_1, tl.where(x < two, x, float("-inf")))
            max_2 = tl.maximum(max_2, tl.where(x < three, x, float("-inf")))
            max_3 = tl.maximum(max_3, tl.where(x < high, x, float("-inf")))
        # Reduced together, since threads wait for each other in each reduction.
        sum_1, sum_2, sum_3, sum_4, below_1, below_2, below_3, below_4 = tl.reduce(
            (sum_1, sum_2, sum_3, sum_4, max_0, max_1, max_2, max_3), 0, sums_and_maxima
        )
        enough_1, enough_2, enough_3, enough_4 = sum_1 >= target, sum_2 >= target, sum_3 >= target, sum_4 >= target
        lower = tl.where(enough_3, three, tl.where(enough_2, two, tl.where(enough_1, one, low)))
        below = tl.where(enough_3, below_4, tl.where(enough_2, below_3, tl.where(enough_1, below_2, below_1)))
        low = tl.where(enough_4, high, lower)
        high = tl.where(enough_4, high, below)
        count = collect(lists, lists, count, low, position, LANES)
    return tl.maximum(low, high), count


@triton.jit
def of_segments(x: tl.tensor, LANES: tl.constexpr) -> tl.tensor:
    """Sum up the lists of each segment."""
    return tl.sum(tl.reshape(x, [x.shape[0] // LANES, LANES]), 1)


@triton.jit
def above(
    lists: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    top: tl.tensor,
    value: tl.tensor,
    least: tl.tensor,
    position: tl.tensor,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return for each segment the number of candidates above a value whose weight is at least `least`, their mass, and
    the number of candidates that equal the value, `[SEGMENTS]` each."""
    number = tl.zeros_like(count)
    equal = number
    mass = number.to(tl.float32)
    for depth in tl.range(0, tl.max(count), num_stages=3):
        x = tl.load(lists + position + depth * LANES, mask=depth < count, other=float("-inf"))
        weight = tl.exp2((x - top) * scale)
        over = (x > value) & (weight >= least)
        number += over.to(tl.int32)
        mass += tl.where(over, weight, 0.0)
        equal += ((x == value) & (depth < count)).to(tl.int32)
    return of_segments(number, LANES), of_segments(mass, LANES), of_segments(equal, LANES)


@triton.jit
def lower_bound(
    peaks: tl.tensor,
    low: tl.tensor,
    total: tl.tensor,
    scale: tl.tensor,
    vocab_size: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    SEGMENTS: tl.constexpr,
) -> tl.tensor:
    """Return a number that is not above any logit that the filters keep and whose weight is not 0 in float32, from the
    segments' largest logits `peaks` and the row's mass `total`. low: the smallest allowed logit."""
    top = tl.max(peaks, 0)
    bound = low
    if top_k < vocab_size:
        if top_k <= SEGMENTS:  # the peak of rank `top_k`
            ranks = tl.sum((peaks[None, :] > peaks[:, None]).to(tl.int32), 1)
            bound = tl.min(tl.where(ranks < top_k, peaks, float("inf")), 0)
    elif top_p < 1.0:  # all logits of the vocabulary below it together have no more than the mass to exclude
        bound = top + tl.log2((1.0 - top_p) * total / vocab_size) / scale
    elif least > 0.0:
        bound = top + (tl.log2(least) - 0.01) / scale  # a little lower, for rounding
    return tl.maximum(tl.maximum(low, bound), top - 160.0 / scale)


@triton.jit
def limits(
    lists: tl.tensor,
    count: tl.tensor,
    scale: tl.tensor,
    top: tl.tensor,
    low: tl.tensor,
    mass: tl.tensor,
    vocab_size: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    position: tl.tensor,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the boundary of top_k and top_p, how many of the logits that equal it are kept, and the new number of
    candidates. The share of top_p refers to the tokens that top_k keeps. mass: that of the row, in units of the largest
    logit's. low, top: a lower bound of what is kept, and the largest logit."""
    value = low
    limit = tl.full([], 0, tl.int32) + vocab_size
    if top_k < vocab_size:
        value, count = boundary(lists, count, scale, top, low, top_k.to(tl.float32), position, True, LANES)
        numbers, over, equals = above(lists, count, scale, top, value, 0.0, position, LANES)
        limit = tl.minimum(top_k - tl.sum(numbers, 0), tl.sum(equals, 0)).to(tl.int32)
        mass = tl.sum(over, 0) + limit.to(tl.float32) * tl.exp2((value - top) * scale)
    if top_p < 1.0:
        share = top_p * mass
        cut, count = boundary(lists, count, scale, top, value, share, position, False, LANES)
        _, over, equals = above(lists, count, scale, top, cut, 0.0, position, LANES)
        one = tl.exp2((cut - top) * scale)
        wanted = tl.ceil((share - tl.sum(over, 0)) / tl.maximum(one, 1e-38)).to(tl.int32)
        limit = tl.minimum(tl.maximum(wanted, 1), tl.where(cut > value, tl.sum(equals, 0), limit))
        value = cut
    return value, limit, count


@triton.jit
def filtered(
    at: tl.tensor,
    lists: tl.tensor,
    peaks: tl.tensor,
    low: tl.tensor,
    total: tl.tensor,
    scale: tl.tensor,
    vocab_size: tl.tensor,
    width: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    least: tl.tensor,
    SEGMENTS: tl.constexpr,
    LANES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the boundary of what the filters keep of the row `at`, how many of the logits that equal it are kept, and
    for each segment the mass that is kept and the number of logits that equal the boundary. lists: scratch for the
    row's candidates. low: the smallest allowed logit. total: the row's mass."""
    top = tl.max(peaks, 0)
    low = lower_bound(peaks, low, total, scale, vocab_size, top_k, top_p, least, SEGMENTS)
    # In one dimension, since in two they are laid out in shared memory so that threads wait for each other.
    lane = tl.arange(0, SEGMENTS * LANES)
    segment, offset = lane // LANES, lane % LANES
    position = segment * width + offset
    lengths = tl.minimum(vocab_size - segment * width, width)
    active = tl.reshape(tl.broadcast_to((peaks >= low)[:, None], [SEGMENTS, LANES]), [SEGMENTS * LANES])
    count = tl.where(active, tl.maximum(lengths - offset + (LANES - 1), 0) // LANES, 0)
    count = collect(lists, at, count, low, position, LANES)
    value, limit, count = limits(lists, count, scale, top, low, total, vocab_size, top_k, top_p, position, LANES)
    _, masses, equals = above(lists, count, scale, top, value, least, position, LANES)
    one = tl.exp2((value - top) * scale)
    left = tl.maximum(limit - (tl.cumsum(equals, 0) - equals), 0)
    masses += tl.where(one >= least, tl.minimum(left, equals).to(tl.float32) * one, 0.0)
    return value, limit, masses, equals


@triton.jit
def kept_weights(
    x: tl.tensor, top: tl.tensor, scale: tl.tensor, value: tl.tensor, limit: tl.tensor, least: tl.tensor
) -> tl.tensor:
    """Return the weights of a segment's logits: 0 for those below the boundary `value` or the weight `least`, and for
    all but the first `limit` that equal the boundary."""
    equal = x == value
    weight = tl.where(x == top, 1.0, tl.exp2((x - top) * scale))
    keep = (x > value) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= limit))
    return tl.where(keep & (weight >= least), weight, 0.0)


@triton.jit
def drawn_segment(
    masses: tl.tensor, equals: tl.tensor, share: tl.tensor, SEGMENTS: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the segment in which the cumulated masses reach a share of their sum, the mass in it at which they do,
    and the number of logits before it that equal the boundary."""
    segment = tl.arange(0, SEGMENTS)
    cumulated = tl.cumsum(masses, 0)
    some = masses > 0.0
    draw = share * tl.max(tl.where(some, cumulated, 0.0), 0)
    chosen = tl.min(tl.where(some & (cumulated >= draw), segment, SEGMENTS), 0)
    chosen = tl.where(chosen < SEGMENTS, chosen, 0)  # only if there are sums that are not numbers
    before = segment < chosen
    passed = tl.max(tl.where(some & before, cumulated, 0.0), 0)
    return chosen, draw - passed, tl.sum(tl.where(before, equals, 0), 0)


# Parts of tensors are aligned as the batch's size has it. An alignment of `width` would make each thread load from four
# lists that are next to each other, one by one, since each has a mask of its own.
@triton.jit(do_not_specialize_on_alignment=["positions", "totals", "width"])
def pick_kernel(
    tokens: tl.tensor,  # [places] int64
    logprobs: tl.tensor,  # [places] float32, where LOGPROBS: the picked token's
    totals: tl.tensor,  # [places] float32, where LOGPROBS: the logarithm of the sum of exponentials
    last: tl.tensor,  # [rows] int64: each row's newest token
    summaries: tl.tensor,  # [places, SUMMARIES, SEGMENTS] float32, of `summarise_kernel`
    lists: tl.tensor,  # [places, SEGMENTS, width] float32, scratch
    logits: tl.tensor,  # [places, vocabulary] float32
    raw: tl.tensor,  # the same before penalties
    rows: tl.tensor,  # [places] int64
    positions: tl.tensor,  # [places] int64
    numbers: tl.tensor,  # [rows, NUMBERS] float32; a temperature of 0 is greedy
    top_ks: tl.tensor,  # [rows] int64, the vocabulary's size for none
    seeds: tl.tensor,  # [rows] int64
    counts: tl.tensor,  # [rows, vocabulary] int32, where COUNTS
    vocab_size: int,
    width: int,
    LOGPROBS: tl.constexpr,
    COUNTS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    LANES: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Sample one token for each place. Grid: `(places,)`."""
    place = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + place)
    at = logits + place * vocab_size
    temperature = tl.load(numbers + row * NUMBERS + TEMPERATURE)
    scale = scale_of(temperature)
    segment = tl.arange(0, SEGMENTS)
    summary = summaries + place * (SUMMARIES * SEGMENTS) + segment
    peaks = tl.load(summary + PEAK * SEGMENTS)
    top = tl.max(peaks, 0)

    # Greedily: the first of the logits that equal the largest.
    value, least = top, tl.full([], 0.0, tl.float32)
    limit = tl.full([], 1, tl.int32)
    equals = tl.full([SEGMENTS], 0, tl.int32)
    masses = tl.where(segment == tl.min(tl.where(peaks == top, segment, SEGMENTS), 0), 1.0, 0.0)
    if (temperature > 0.0) & (top > float("-inf")) & (top < float("inf")):
        top_k = tl.load(top_ks + row)
        top_p = tl.load(numbers + row * NUMBERS + TOP_P)
        least = tl.load(numbers + row * NUMBERS + MIN_P)
        masses = tl.load(summary + MASS * SEGMENTS) * tl.exp2((peaks - top) * scale)
        value = tl.full([], float("-inf"), tl.float32)
        if (top_k < vocab_size) | (top_p < 1.0) | (least > 0.0):
            value, limit, masses, equals = filtered(
                at, lists + place * (SEGMENTS * width), peaks, tl.min(tl.load(summary + LOWEST * SEGMENTS), 0),
                tl.sum(masses, 0), scale, vocab_size, width, top_k, top_p, least, SEGMENTS, LANES,
            )  # fmt: skip

    share = uniform(tl.load(seeds + row), tl.load(positions + place))
    chosen, rest, met = drawn_segment(masses, equals, share, SEGMENTS)
    offset = tl.arange(0, WIDTH)
    token = chosen * width + offset
    x = tl.load(at + token, mask=(offset < width) & (token < vocab_size), other=float("-inf"))
    weights = kept_weights(x, top, scale, value, limit - met, least)
    reached = (tl.cumsum(weights, 0) >= rest) & (weights > 0.0)
    first = tl.min(tl.where(reached, token, vocab_size), 0)
    final = tl.max(tl.where(weights > 0.0, token, 0), 0)  # where sums round otherwise than their parts
    picked = tl.where(first < vocab_size, first, final)

    tl.store(tokens + place, picked.to(tl.int64))
    tl.store(last + row, picked.to(tl.int64))
    if COUNTS:
        tl.store(counts + row * vocab_size + picked, tl.load(counts + row * vocab_size + picked) + 1)
    if LOGPROBS:
        peaks = tl.load(summary + RAW_PEAK * SEGMENTS)
        highest = tl.max(peaks, 0)
        masses = tl.load(summary + RAW_MASS * SEGMENTS) * tl.exp2((peaks - highest) * LOG2E)
        total = highest + tl.log(tl.sum(masses, 0))
        tl.store(totals + place, total)
        tl.store(logprobs + place, tl.load(raw + place * vocab_size + picked) - total)
