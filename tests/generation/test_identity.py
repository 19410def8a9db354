"""Greedy output is transformers' own, token by token, however the batch is made up."""

import copy

import pytest

from agent_server.generation.attention.batches import bytes_per_token
from agent_server.generation.loading import runner_choice
from agent_server.generation.loading.probe import fit
from agent_server.generation.scheduling import slabs
from tests.generation.harness import Driver, assert_greedy, expected, prompts
from tests.generation.tiny_models import OWN_CACHES, PACKED, RECORDED, make_model
from tests.slow import slow

COUNT = 40


QUICK = ("llama", "qwen2", "gemma2", "gemma3", "phi3", "qwen3-moe", "gpt-oss", "lfm2")


@pytest.fixture(scope="module", params=[*QUICK, *slow(name for name in PACKED | OWN_CACHES if name not in QUICK)])
def reference(request):
    """A family and an untouched model of it."""
    return request.param, make_model(request.param)


@pytest.fixture
def family(reference):
    """A family, a model for us and an untouched one for transformers."""
    name, model = reference
    return name, copy.deepcopy(model), model


def drive(driver, asked, gap=2):
    """Requests that arrive piecemeal: some together, some while others are at work."""
    numbers = []
    for index, prompt in enumerate(asked):
        numbers.append(driver.submit(prompt, max_tokens=COUNT))
        if index % gap == gap - 1:
            driver.step()
    driver.finish()
    return numbers


def compare(driver, numbers, asked, reference):
    for number, prompt in zip(numbers, asked, strict=True):
        assert len(driver.ids(number)) == COUNT
        assert_greedy(reference, prompt, driver.ids(number))
        assert driver.end(number).reason == "length"
    driver.assert_clean()


@pytest.mark.parametrize("memory", ["slab", "paged"])
def test_a_mixed_batch_that_arrives_piecemeal(family, memory, monkeypatch):
    """Sixteen prompts, chunked prefill beside decoding, a prefix that others share, and too little memory for all."""
    monkeypatch.setattr(slabs, "HEADROOM", 4)
    monkeypatch.setattr(runner_choice, "SMALLEST_SLAB", 16)
    monkeypatch.setattr(runner_choice, "GATHERED_PAGE_SIZE", 4)
    name, model, reference = family
    asked = prompts(13, seed=1)
    asked += [asked[0] + asked[1] + [5, 6, 7], asked[0] + asked[1] + [9], (asked[2] * 40)[:150]]
    asked[3] = (asked[3] + asked[4] + asked[5])[:130]
    tokens = 512 if memory == "slab" else 320
    size = tokens * bytes_of_a_token(reference) if name in PACKED else 0
    driver = Driver(model, memory=memory, max_batch=16, step_tokens=40, kv_cache_bytes=size)
    assert driver.info.details["batching"].startswith("packed" if name in PACKED else "on its own cache")
    numbers = drive(driver, asked)
    compare(driver, numbers, asked, reference)
    if name in PACKED:
        assert driver.core.scheduler.preemptions > 0, "the memory was to be too small"


def bytes_of_a_token(model):
    return bytes_per_token(fit(copy.deepcopy(model)), model.dtype)


def test_a_second_turn_finds_the_first_one_computed(family):
    _, model, reference = family
    driver = Driver(model, max_batch=4)
    first = prompts(1, seed=3, longest=200)[0] * 2
    one = driver.submit(first, max_tokens=COUNT)
    driver.finish()
    second = first + driver.ids(one) + [11, 12, 13]
    two = driver.submit(second, max_tokens=COUNT)
    driver.finish()
    assert driver.ids(two) == expected(reference, second, COUNT)
    assert driver.end(two).usage.cached_tokens >= len(first)
    driver.assert_clean()


def test_looking_at_tokens_one_step_late_changes_nothing(family):
    _, model, reference = family
    driver = Driver(model, max_batch=6, memory="paged", overlap=True, step_tokens=30)
    asked = prompts(9, seed=5)
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in asked]
    driver.step(8)
    assert any(sequence.pending for sequence in driver.core.scheduler.running), "a step is in flight"
    driver.finish()
    compare(driver, numbers, asked, reference)


def test_a_recorded_forward_changes_nothing(family):
    """Where a family can be recorded: the same tokens, and the weights are still in memory once."""
    name, model, reference = family
    driver = Driver(model, max_batch=6, step_tokens=30, flatten=True)
    assert driver.info.details["flat"] == (name in RECORDED)
    asked = prompts(9, seed=6)
    compare(driver, drive(driver, asked), asked, reference)
    if name == "llama":
        first = model.model.layers[0].self_attn
        together = first.q_proj.weight.numel() * first.q_proj.weight.itemsize
        assert first.k_proj.weight.data_ptr() == first.q_proj.weight.data_ptr() + together
