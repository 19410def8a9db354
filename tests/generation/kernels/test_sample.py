"""The sampler's kernels keep what the CPU's sampler keeps, and draw from it fairly."""

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agent_server.generation.sampling.fused_sampler import CHECKED_PARAMS, FusedSampler, agrees
from agent_server.generation.sampling.kernels import sample, sample_kernels
from agent_server.generation.sampling.kernels.sample_kernels import filtered as filtered_row
from agent_server.generation.sampling.kernels.sample_kernels import kept_weights, scale_of
from agent_server.generation.sampling.masks import Masks
from agent_server.generation.sampling.sampler import RowSampling, Sampler, filtered, inverse, uniform
from events.options import SamplingParams

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_segments(monkeypatch):
    """So that a row of a test has several."""
    monkeypatch.setattr(sample, "SEGMENTS", 8)
    monkeypatch.setattr(sample, "LANES", 4)
    monkeypatch.setattr(sample, "ADJUST_BLOCK", 16)


@triton.jit
def show_kernel(
    out, drawn, logits, numbers, top_ks, peaks, lists, vocab_size, width,
    SEGMENTS: tl.constexpr, LANES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What `pick_kernel` keeps, by its own parts: weights, and the masses of segments."""
    place = tl.program_id(0)
    at = logits + place * vocab_size
    segment = tl.arange(0, SEGMENTS)
    offset = tl.arange(0, WIDTH)
    scale = scale_of(tl.load(numbers + place * 4))
    peak = tl.load(peaks + place * SEGMENTS + segment)
    top = tl.max(peak, 0)
    low = float("inf")
    total = 0.0
    for number in range(0, SEGMENTS):
        token = number * width + offset
        x = tl.load(at + token, mask=(offset < width) & (token < vocab_size), other=float("-inf"))
        low = tl.minimum(low, tl.min(tl.where(x > float("-inf"), x, float("inf")), 0))
        total += tl.sum(tl.exp2((x - top) * scale), 0)
    least = tl.load(numbers + place * 4 + 2)
    value, limit, masses, equals = filtered_row(
        at, lists + place * SEGMENTS * width, peak, low, total, scale, vocab_size, width, tl.load(top_ks + place),
        tl.load(numbers + place * 4 + 1), least, SEGMENTS, LANES,
    )  # fmt: skip
    tl.store(drawn + place * SEGMENTS + segment, masses)
    for number in range(0, SEGMENTS):
        token = number * width + offset
        inside = (offset < width) & (token < vocab_size)
        x = tl.load(at + token, mask=inside, other=float("-inf"))
        met = tl.sum(tl.where(segment < number, equals, 0), 0)
        tl.store(out + place * vocab_size + token, kept_weights(x, top, scale, value, limit - met, least), mask=inside)


def kept_by_kernel(logits, numbers, top_k):
    places, vocab = logits.shape
    width = sample.segment_width(vocab)
    padded = torch.full((places, sample.SEGMENTS * width), -torch.inf)
    padded[:, :vocab] = logits
    peaks = padded.view(places, sample.SEGMENTS, width).amax(-1)
    out, masses = torch.empty_like(logits), torch.empty_like(peaks)
    show_kernel[(places,)](
        out, masses, logits, numbers, top_k, peaks, torch.empty_like(padded), vocab, width,
        SEGMENTS=sample.SEGMENTS, LANES=sample.LANES, WIDTH=1 << (width - 1).bit_length(),
    )  # fmt: skip
    padded.zero_()[:, :vocab] = out
    assert torch.allclose(masses, padded.view(places, sample.SEGMENTS, width).sum(-1), rtol=1e-5)
    return out


def kept_by_cpu(logits, numbers, top_k):
    """Weights in units of the largest, [rows, vocabulary], by the sampler's own filters, in float64."""
    values, ids = (logits.double() / numbers[:, :1].double()).sort(stable=True, descending=True)
    weights = filtered(values.softmax(-1), top_k, logits.shape[1], numbers.double())
    return torch.zeros_like(weights).scatter_(1, ids, weights / weights[:, :1])


rows = st.tuples(
    st.sampled_from([0.5, 1.0, 2.0]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.05]),
    st.sampled_from([0.0, 0.02, 0.5]),
    st.sampled_from([1, 3, 20, 10**6]),
)
kinds = st.sampled_from(["normal", "equal", "few values", "outliers", "forbidden", "flat"])


def logits_of(kind, vocab, seed):
    torch.manual_seed(seed)
    logits = torch.randn(vocab) * 3
    if kind == "equal":
        logits = torch.zeros(vocab)
    elif kind == "few values":
        logits = logits.round()
    elif kind == "outliers":
        logits[:: max(2, vocab // 3)] = -1e9
        logits[vocab // 2] = 80.0
    elif kind == "forbidden":
        logits[torch.rand(vocab) < 0.7] = -torch.inf
        logits[int(torch.randint(vocab, ()))] = 1.0
    elif kind == "flat":
        logits *= 1e-3
    return logits


def at_the_edge(numbers, logits, top_k):
    """Whether rounding may decide about a token: a sum or a share that lies on the limit to six digits."""
    values = (logits.double() / numbers[0].double()).sort(descending=True).values
    weights = values.softmax(-1)
    weights[int(top_k) :] = 0
    sums = weights.cumsum(0) / weights.sum()
    shares = weights / weights[0]
    near_p = float((sums - numbers[1].double()).abs().min()) < 1e-6 and float(numbers[1]) < 1
    return near_p or float((shares - numbers[2].double()).abs().min()) < 1e-6 < float(numbers[2])


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(rows, kinds, st.sampled_from([1, 7, 40, 64, 90]), st.integers(0, 2**20))
def test_what_is_kept_is_what_the_cpu_keeps(row, kind, vocab, seed):
    *numbers, top_k = row
    logits = logits_of(kind, vocab, seed)[None]
    numbers = torch.tensor([[*numbers, 1.0]])
    top_k = torch.tensor([min(top_k, vocab)])
    found, wanted = kept_by_kernel(logits, numbers, top_k), kept_by_cpu(logits, numbers, top_k)
    if not at_the_edge(numbers[0], logits[0], top_k):
        assert torch.equal(found > 0, wanted > 1e-38)
        assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize(("top_p", "min_p", "top_k"), [(1.0, 0.5, 60), (1.0, 0.02, 90), (0.7, 0.3, 50), (0.9, 0.0, 17)])
def test_filters_cut_between_neighbours(top_p, min_p, top_k):
    """Logits in steps of a twentieth, so that a limit that is a little off keeps another token."""
    torch.manual_seed(5)
    logits = (-0.05 * torch.arange(90))[torch.randperm(90)][None]
    numbers, top_k = torch.tensor([[1.0, top_p, min_p, 1.0]]), torch.tensor([top_k])
    assert not at_the_edge(numbers[0], logits[0], top_k)
    assert torch.equal(kept_by_kernel(logits, numbers, top_k) > 0, kept_by_cpu(logits, numbers, top_k) > 0)


def several_segments():
    """Rows of 90 logits, of which each segment has 12, with their numbers and top_k."""
    torch.manual_seed(6)
    spread, one, border = torch.randn(90) * 0.3, torch.full((90,), -20.0), torch.full((90,), -3.0)
    one[26:33] = torch.randn(7)
    border[[0, 10, 11, 12, 13, 35, 36, 37, 89]] = 1.0
    border[[20, 60]] = 2.0
    apart = spread.clone()
    apart[::2] = -1e30
    return {
        "a nucleus over all segments": (spread, [0.9, 0.9, 0.0], 90),
        "top_k over all segments": (spread, [0.9, 1.0, 0.0], 41),
        "more than the segments, then a nucleus": (spread, [0.9, 0.7, 0.0], 41),
        "as many as the segments": (spread, [0.9, 1.0, 0.0], 8),
        "min_p alone": (spread, [0.9, 1.0, 0.6], 90),
        "one segment": (one, [0.7, 0.95, 0.1], 5),
        "one segment's nucleus": (one, [0.7, 0.95, 0.0], 90),
        "more than there are in one segment": (one, [1.0, 1.0, 0.0], 11),
        "equals over borders, top_k": (border, [1.0, 1.0, 0.0], 6),
        "equals over borders, top_p": (border, [1.0, 0.61, 0.0], 90),
        "equals over borders, both": (border, [1.0, 0.8, 0.0], 7),
        "far apart": (apart, [0.5, 0.9, 0.0], 60),
        "equals from one segment's end on": (border.clamp_max(1.0), [1.0, 1.0, 0.0], 3),
    }


@pytest.mark.parametrize("case", several_segments())
def test_filters_over_several_segments(case):
    """What is kept, and that draws are those of the cumulated weights in the order of ids."""
    logits, numbers, top_k = several_segments()[case]
    params = SamplingParams(temperature=numbers[0], top_p=numbers[1], min_p=numbers[2], top_k=top_k)
    logits, numbers, top_k = logits[None], torch.tensor([[*numbers, 1.0]]), torch.tensor([top_k])
    assert not at_the_edge(numbers[0], logits[0], top_k)
    wanted = kept_by_cpu(logits, numbers, top_k)
    assert torch.equal(kept_by_kernel(logits, numbers, top_k) > 0, wanted > 0)
    check_draws(params, logits[0], wanted[0])


def check_draws(params, logits, weights, count=6):
    sampler = sampler_of([params] * count, len(logits))
    draws = uniform(torch.arange(50, 50 + count), torch.full((count,), 3))
    picked = sampler.sample(logits.expand(count, -1).clone(), list(range(count)), [3] * count).tokens
    assert torch.equal(picked, inverse(weights.float().expand(count, -1), draws))


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_draws_without_filters(spread):
    torch.manual_seed(9)
    logits = torch.randn(90) * spread
    logits[60:80] = -torch.inf
    check_draws(SamplingParams(temperature=0.8), logits, (logits.double() / 0.8).softmax(-1), 12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, about what is not a number
@pytest.mark.parametrize("params", CHECKED_PARAMS)
def test_any_logits_give_a_token(params):
    """No matter whether they are numbers; the first of those that are largest, if infinite."""
    strange = torch.randn(6, 90)
    strange[0] = -torch.inf
    strange[1] = torch.nan
    strange[2, 40] = torch.nan
    strange[3, [33, 70]] = torch.inf
    strange[4] = torch.tensor([torch.inf, -torch.inf, torch.nan]).repeat(30)
    strange[5, 1:] = -torch.inf
    sampler = sampler_of([params] * 6, 90)
    tokens = sampler.sample(strange, list(range(6)), [2] * 6).tokens
    assert ((tokens >= 0) & (tokens < 90)).all()
    assert tokens[[0, 3, 5]].tolist() == [0, 33, 0]


def test_the_first_of_equals_is_the_most_likely():
    logits = torch.zeros(1, 40)
    logits[0, [7, 23, 24, 39]] = 4.0
    sampler = sampler_of([SamplingParams(temperature=0.0, logprobs=0)], 40)
    assert int(sampler.sample(logits, [0], [0]).tokens) == 7


def sampler_of(params, vocab):
    sampler = FusedSampler(len(params), vocab, CPU)
    for row, some in enumerate(params):
        sampler.set(row, row, RowSampling(some, seed=50 + row, ends=(2,)), [1, 2, 3], [3, 3, 8])
    return sampler


def test_a_million_draws_are_fair():
    """The draw is one random number through the inverse of the cumulated weights: the million by torch on the kernel's
    weights, the first of them by the kernel as well."""
    torch.manual_seed(3)
    params = [SamplingParams(temperature=0.9, top_p=0.9), SamplingParams(temperature=1.1, top_k=9, min_p=0.02)]
    logits = torch.randn(2, 16) * 1.5
    numbers = torch.tensor([[p.temperature, p.top_p or 1.0, p.min_p or 0.0, 1.0] for p in params])
    top_k = torch.tensor([p.top_k or 16 for p in params])
    weights = kept_by_kernel(logits, numbers, top_k)
    count, sampler = 10**6, sampler_of(params, 16)
    for row in range(2):
        draws = uniform(torch.full((count,), 50 + row), torch.arange(count))
        tokens = torch.searchsorted(weights[row].cumsum(0), draws * weights[row].sum())
        assert torch.equal(tokens[:200], inverse(weights[row].expand(200, -1), draws[:200]))
        for position in range(10):
            picked = sampler.sample(logits.clone(), [0, 1], [position] * 2).tokens
            assert int(picked[row]) == int(tokens[position])
        shares = kept_by_cpu(logits, numbers, top_k)[row]
        wanted = count * shares / shares.sum()
        found = torch.bincount(tokens, minlength=16)
        assert not found[wanted == 0].any()
        some = wanted > 0
        statistic = float(((found - wanted)[some] ** 2 / wanted[some]).sum())
        freedom = int(some.sum()) - 1
        assert freedom > 3 and statistic < freedom + 5 * (2 * freedom) ** 0.5, "far beyond one in a million"


def test_random_numbers_are_those_of_the_cpu():
    @triton.jit
    def draw_kernel(out, seeds, positions):
        at = tl.program_id(0)
        tl.store(out + at, draw(tl.load(seeds + at), tl.load(positions + at)))

    seeds = torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 987654321])
    positions = torch.tensor([0, 5, 2**31, 77, 3, 10**6])
    out = torch.empty(6)
    draw_kernel[(6,)](out, seeds, positions)
    assert torch.equal(out, uniform(seeds, positions))


draw = sample_kernels.uniform
GREEDILY = [
    SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
    SamplingParams(temperature=0.0, logit_bias={5: 3.0, 11: 4.0}),
    SamplingParams(temperature=0.0, min_tokens=9),
    SamplingParams(temperature=0.0, frequency_penalty=2.0, logprobs=3),
]


@pytest.mark.parametrize("masked", [False, True])
def test_what_changes_logits_is_the_cpus(masked):
    """Greedy rows with penalties, biases, minimum lengths, masks and log probabilities, over steps in which penalties
    count what was picked."""
    torch.manual_seed(8)
    fused, plain = sampler_of(GREEDILY, 40), Sampler(4, 40, CPU)
    for row, some in enumerate(GREEDILY):
        plain.set(row, row, RowSampling(some, seed=50 + row, ends=(2,)), [1, 2, 3], [3, 3, 8])
    masks = Masks(torch.tensor([[0x5555_5555, 0x55], [0x3333_3333, 0x0]], dtype=torch.int32), [3, 1])
    logits = torch.randn(4, 40)
    logits[:, 2] = 3.0
    for position in range(4):
        given = masks if masked else None
        found, wanted = (
            sampler.sample(logits.clone(), [0, 1, 2, 3], [position] * 4, given) for sampler in (fused, plain)
        )
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert torch.allclose(found.logprobs, wanted.logprobs, atol=1e-5)
        assert torch.equal(found.top[0], wanted.top[0]) and torch.allclose(found.top[1], wanted.top[1], atol=1e-5)
    assert torch.equal(fused.last, plain.last)


def test_a_row_does_not_depend_on_its_company_nor_on_who_was_there_before():
    torch.manual_seed(4)
    params = [
        SamplingParams(temperature=1.0, top_p=0.8),
        SamplingParams(temperature=1.0, frequency_penalty=1.0),
        CHECKED_PARAMS[2],
    ]
    logits = torch.randn(3, 50)
    together = sampler_of(params, 50)
    together.set(0, 9, RowSampling(SamplingParams(temperature=1.0, presence_penalty=9.0), 1), list(range(50)), [1])
    together.clear(0)
    together.set(0, 0, RowSampling(params[0], seed=50), [1, 2, 3], [3, 3, 8])
    for position in range(3):
        both = together.sample(logits.clone(), [0, 1, 2], [position] * 3).tokens.tolist()
        for row in range(3):
            alone = sampler_of(params, 50)
            if row == 1 and position:
                continue  # its penalties have counted
            assert alone.sample(logits[row : row + 1].clone(), [row], [position]).tokens.tolist() == [both[row]]


def test_the_check_at_load(monkeypatch):
    agrees(FusedSampler(len(CHECKED_PARAMS), 64, CPU))
    filters = sample.pick
    wrong = lambda logits, *rest, **more: filters(-logits, *rest, **more)  # noqa: E731
    monkeypatch.setattr(sample, "pick", wrong)
    with pytest.raises(RuntimeError, match="filters exclude"):
        agrees(FusedSampler(len(CHECKED_PARAMS), 64, CPU))
