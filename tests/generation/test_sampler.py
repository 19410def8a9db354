"""The sampler: transformers' own distributions, each row by itself, and what is reported."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from agent_server.generation.sampling import sampler as module
from agent_server.generation.sampling.masks import Masks, classify
from agent_server.generation.sampling.sampler import MASK, RowSampling, Sampler, uniform
from events.options import SamplingParams

CPU = torch.device("cpu")
VOCAB = 40


def reference(logits, params):
    """The probabilities that transformers' warpers give, [vocabulary]."""
    warpers = LogitsProcessorList()
    warpers.append(TemperatureLogitsWarper(params.temperature or 1.0))
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    if params.typical_p:
        warpers.append(TypicalLogitsWarper(params.typical_p))
    return warpers(torch.tensor([[0]]), logits[None].clone())[0].softmax(-1)


def draw(logits, params, count, rows=8):
    """How often each token is picked, in `count` draws at consecutive positions, in batches of `rows`."""
    sampler = Sampler(rows, logits.shape[-1], CPU)
    for row in range(rows):
        sampler.set(row, row, RowSampling(params, seed=1234), [], [])
    counts = torch.zeros(logits.shape[-1])
    for start in range(0, count, rows):
        batch = logits.repeat(rows, 1)
        picked = sampler.sample(batch, list(range(rows)), list(range(start, start + rows))).tokens
        counts += torch.bincount(picked, minlength=logits.shape[-1])
    return counts


def test_more_candidates_than_tokens_are_all_of_them():
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    all_of_them = draw(logits, SamplingParams(temperature=1.0, top_k=2**63), 400)
    assert torch.equal(all_of_them, draw(logits, SamplingParams(temperature=1.0, top_k=VOCAB), 400))


PARAMETERS = {
    "plain": SamplingParams(temperature=0.8),
    "top_k": SamplingParams(temperature=1.3, top_k=7),
    "top_p": SamplingParams(temperature=1.0, top_p=0.7),
    "min_p": SamplingParams(temperature=1.0, min_p=0.1),
    "typical": SamplingParams(temperature=1.0, typical_p=0.6),
    "all": SamplingParams(temperature=1.2, top_k=20, top_p=0.9, min_p=0.02, typical_p=0.9),
    "top_k and top_p": SamplingParams(temperature=1.0, top_k=10, top_p=0.8),
}


@pytest.mark.parametrize("candidates", [8, 256], ids=["few candidates", "all candidates"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_distribution_is_transformers_own(name, candidates, monkeypatch):
    """With few candidates the rows that may keep more must notice it and be sorted whole."""
    monkeypatch.setattr(module, "CANDIDATES", candidates)
    monkeypatch.setattr(module, "FEW", candidates // 2)
    torch.manual_seed(5)
    logits = torch.randn(VOCAB) * 2
    params = PARAMETERS[name]
    wanted = reference(logits, params)
    count = 8000
    found = draw(logits, params, count) / count
    assert not found[wanted == 0].any(), "what is filtered out never comes"
    assert float((found - wanted).abs().max()) < 4 * math.sqrt(0.25 / count)


def test_many_positions_make_fair_numbers():
    numbers = uniform(torch.full((20000,), 7), torch.arange(20000))
    assert float(numbers.min()) > 0 and float(numbers.max()) <= 1
    histogram = torch.histc(numbers, 20, 0, 1)
    assert float((histogram - 1000).abs().max()) < 5 * math.sqrt(1000)
    lagged = (numbers[1:] - 0.5) * (numbers[:-1] - 0.5)
    assert abs(float(lagged.mean())) < 0.003


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31))
def test_the_numbers_are_those_of_splitmix(seed, position):
    def mix(z):
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    state = (mix(seed & MASK) + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    expected = (((mix(state) >> 40) & 0xFFFFFF) + 1) * 2.0**-24
    assert float(uniform(torch.tensor([seed]), torch.tensor([position]))[0]) == expected


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([None, 1, 5, 300]),
    top_p=st.sampled_from([None, 0.3, 0.95, 1.0]),
    min_p=st.sampled_from([None, 0.05]),
    typical_p=st.sampled_from([None, 0.5]),
    repetition_penalty=st.sampled_from([None, 1.3]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([{}, {3: 5.0, 9: -100.0}]),
    min_tokens=st.sampled_from([0, 3]),
    logprobs=st.sampled_from([None, 0, 4]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(params_strategy, min_size=2, max_size=6), st.integers(0, 1000), st.sampled_from([40, 3000]))
def test_a_row_does_not_depend_on_its_company(everybody, seed, vocab):
    """Every row alone gives what it gives in the batch: token, log probability and alternatives."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(everybody), vocab, generator=generator) * 3
    logits[:, 10:20] = logits[:, :1]
    prompts = [torch.randint(0, 40, (5,), generator=generator).tolist() for _ in everybody]
    together, alone = Sampler(8, vocab, CPU), Sampler(8, vocab, CPU)
    for row, params in enumerate(everybody):
        for sampler in (together, alone):
            sampler.set(row, row, RowSampling(params, seed=row, ends=(2,)), prompts[row], [7, 7])
    for position in (2, 3):
        rows = list(range(len(everybody)))
        batch = together.sample(logits.clone(), rows, [position] * len(rows))
        for row, params in enumerate(everybody):
            one = alone.sample(logits[row : row + 1].clone(), [row], [position])
            assert int(one.tokens[0]) == int(batch.tokens[row])
            if params.logprobs is not None:
                assert float(one.logprobs[0]) == pytest.approx(float(batch.logprobs[row]), abs=1e-5)
            if params.logprobs:
                assert one.top[0][0, : params.logprobs].tolist() == batch.top[0][row, : params.logprobs].tolist()


def pick(params, logits, prompt=(), output=(), ends=(), position=0, masks=None):
    sampler = Sampler(2, logits.shape[-1], CPU)
    sampler.set(1, 1, RowSampling(params, 3, ends), list(prompt), list(output))
    return sampler.sample(logits[None].clone(), [1], [position], masks)


def test_penalties_are_subtracted_by_their_definitions():
    logits = torch.tensor([2.0, 1.9, -1.0, 0.0])
    greedy = {"temperature": 0.0}
    assert int(pick(SamplingParams(**greedy), logits).tokens) == 0
    presence = SamplingParams(presence_penalty=0.2, **greedy)
    assert int(pick(presence, logits, output=[0]).tokens) == 1
    assert int(pick(presence, logits, prompt=[0]).tokens) == 0, "the prompt does not count"
    frequency = SamplingParams(frequency_penalty=0.06, **greedy)
    assert int(pick(frequency, logits, output=[0]).tokens) == 0
    assert int(pick(frequency, logits, output=[0, 0]).tokens) == 1
    repetition = SamplingParams(repetition_penalty=1.2, **greedy)
    assert int(pick(repetition, logits, prompt=[0]).tokens) == 1, "the prompt counts"


def test_penalties_count_what_is_picked():
    sampler = Sampler(1, 4, CPU)
    params = SamplingParams(temperature=0.0, frequency_penalty=0.5)
    sampler.set(0, 0, RowSampling(params, 3), [], [])
    logits = torch.tensor([[2.0, 1.8, 0.0, 0.0]])
    picked = [int(sampler.sample(logits.clone(), [0], [position]).tokens) for position in range(4)]
    assert picked == [0, 1, 0, 1]


def test_bias_and_minimum_length():
    logits = torch.tensor([2.0, 1.0, 0.0])
    assert int(pick(SamplingParams(temperature=0.0, logit_bias={2: 5.0}), logits).tokens) == 2
    least = SamplingParams(temperature=0.0, min_tokens=3)
    assert int(pick(least, logits, ends=(0,), position=2).tokens) == 1
    assert int(pick(least, logits, ends=(0,), position=3).tokens) == 0


def test_log_probabilities_are_those_of_the_model_whatever_is_filtered():
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    params = SamplingParams(temperature=0.2, top_k=1, logit_bias={3: 50.0}, logprobs=2)
    sampled = pick(params, logits)
    expected = logits.log_softmax(-1)
    assert int(sampled.tokens) == 3
    assert float(sampled.logprobs[0]) == pytest.approx(float(expected[3]))
    assert sampled.top[0][0].tolist() == [0, 1]
    assert sampled.top[1][0].tolist() == pytest.approx(expected[:2].tolist())


def test_a_mask_allows_only_what_its_bits_say():
    torch.manual_seed(0)
    logits = torch.randn(70)
    allowed = [5, 37, 69]
    bits = torch.zeros(1, 3, dtype=torch.int32)
    for token in allowed:
        word = int(bits[0, token // 32]) | (1 << (token % 32))
        bits[0, token // 32] = word - (1 << 32) if word >> 31 else word
    params = SamplingParams(temperature=1.5)
    sampler = Sampler(2, 70, CPU)
    for row in range(2):
        sampler.set(row, row, RowSampling(params, 3), [], [])
    seen, free = set(), set()
    for position in range(200):
        tokens = sampler.sample(logits.repeat(2, 1), [0, 1], [position] * 2, Masks(bits, [1])).tokens.tolist()
        free.add(tokens[0])
        seen.add(tokens[1])
    assert seen == set(allowed)
    assert len(free) > 10


KINDS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.2, top_k=100),
    SamplingParams(temperature=1.0, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.05, top_p=0.95),
    SamplingParams(temperature=1.0, typical_p=0.8),
    SamplingParams(temperature=1.0, frequency_penalty=1.0, repetition_penalty=1.3, logit_bias={3: 5.0, 900: -2.0}),
]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_masks_that_are_sorted_out_pick_what_they_pick_unpacked(data):
    """One choice, few, some, most, all but few: beside each other and beside rows without a mask, in any order."""
    size, rows = 1000, 8
    numpy = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    places = data.draw(st.permutations(range(rows)))[: data.draw(st.integers(1, rows))]
    allowed = np.zeros((len(places), 32 * 32), dtype=np.bool_)
    for number in range(len(places)):
        count = data.draw(st.sampled_from([1, 2, 40, 255, 256, 257, 600, 990, 993, 999, 1000]))
        allowed[number, numpy.choice(size, count, replace=False)] = True
    allowed[:, size:] = data.draw(st.booleans())
    bits = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    params = [data.draw(st.sampled_from(KINDS)) for _ in range(rows)]
    logits = torch.from_numpy(numpy.normal(size=(rows, size)).astype(np.float32))
    picked = []
    for masks in (Masks(bits.clone(), places), replace(classify(bits.clone(), [], size), rows=places)):
        sampler = Sampler(rows, size, CPU)
        for row in range(rows):
            sampler.set(row, row, RowSampling(params[row], row), [1, 2, 3], [3, 3])
        picked.append([sampler.sample(logits.clone(), list(range(rows)), [p] * rows, masks).tokens for p in range(3)])
    assert torch.equal(torch.stack(picked[0]), torch.stack(picked[1]))
    for number, place in enumerate(places):
        assert all(allowed[number, int(tokens[place])] for tokens in picked[1])


@pytest.mark.parametrize("beside", [1, 2, 7])
def test_a_row_with_few_choices_draws_the_same_whoever_is_beside_it(beside):
    torch.manual_seed(2)
    logits = torch.randn(8, 5000)
    bits = torch.zeros(8, 157, dtype=torch.int32)
    for row in range(8):
        bits[row, row * 5 : row * 5 + row + 1] = 0x0F0F0F0F
    alone, together = [], []
    for rows, drawn in (([0], alone), (list(range(beside + 1)), together)):
        sampler = Sampler(8, 5000, CPU)
        for row in range(8):
            sampler.set(row, row, RowSampling(SamplingParams(temperature=2.0), seed=row), [], [])
        masks = classify(bits[rows].clone(), list(range(len(rows))), 5000)
        assert masks.few is not None and masks.few.numbers == rows
        drawn += [int(sampler.sample(logits[rows], rows, [p] * len(rows), masks).tokens[0]) for p in range(100)]
    assert alone == together and len(set(alone)) > 3


def test_a_mask_narrower_than_the_logits_forbids_the_rest():
    logits = torch.tensor([0.0] * 40)
    logits[39] = 9.0
    full = torch.full((1, 1), -1, dtype=torch.int32)
    assert int(pick(SamplingParams(temperature=0.0), logits, masks=Masks(full, [0])).tokens) < 32
