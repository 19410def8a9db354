"""Prompts that begin as an earlier one ended go on from what it left, states and all; and nothing else changes."""

import copy

import pytest

from agent_server.generation.fallback import CachesMemory
from agent_server.generation.sequence import Sequence
from agent_server.generation.snapshots import LEAST, MOST, Snapshot, Snapshots
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model

COUNT = 12


@pytest.fixture(scope="module", params=["qwen3-next", "lfm2", "bamba"])
def model(request):
    return make_model(request.param)


def ask(driver, prompt, **options):
    number = driver.submit(prompt, max_tokens=COUNT, **options)
    driver.finish()
    return driver.ids(number), driver.end(number).usage.cached_tokens


def test_a_conversation_goes_on_from_its_states(model):
    driver = Driver(copy.deepcopy(model), max_batch=4, step_tokens=24)
    history = prompts(1, seed=3, longest=60)[0] + [7] * 40
    cached = 0
    for turn in range(3):
        answer, found = ask(driver, history)
        assert answer == expected(model, history, COUNT) and found == cached, turn
        cached = len(history) + COUNT - 1
        history = history + answer + [11, 12, 13 + turn]
    driver.assert_clean()


def test_what_one_goes_on_from_stays_as_it_was_for_the_next(model):
    driver = Driver(copy.deepcopy(model), max_batch=4)
    shared = prompts(1, seed=4, longest=60)[0] + [9] * 40
    ask(driver, shared)
    numbers = [driver.submit([*shared, 20 + n, 30 - n], max_tokens=COUNT) for n in range(4)]
    driver.finish()
    for n, number in enumerate(numbers):
        assert driver.ids(number) == expected(model, [*shared, 20 + n, 30 - n], COUNT)
        assert driver.end(number).usage.cached_tokens == len(shared)
    driver.assert_clean()


def test_another_tenant_finds_nothing_and_a_paused_generation_finds_its_own(model):
    driver = Driver(copy.deepcopy(model), max_batch=4)
    prompt = [5] * 50
    ask(driver, prompt, tenant="a")
    assert ask(driver, [*prompt, 6], tenant="b") == (expected(model, [*prompt, 6], COUNT), 0)
    number = driver.submit([*prompt, 8], max_tokens=COUNT, tenant="c")
    driver.step(5)
    driver.pause(number)
    driver.step()
    seen = len(driver.ids(number))
    driver.resume(number)
    driver.step()
    assert 0 < seen < COUNT and len(driver.ids(number)) == seen + 1, "its states were there"
    driver.finish()
    assert driver.ids(number) == expected(model, [*prompt, 8], COUNT)
    driver.assert_clean()


def test_models_whose_prompts_cannot_be_cut_keep_none():
    model = make_model("rwkv")
    driver = Driver(copy.deepcopy(model), max_batch=2)
    ask(driver, [5] * 50)
    assert ask(driver, [5] * 51) == (expected(model, [5] * 51, COUNT), 0)
    assert driver.core.scheduler.memory.snapshots.taken == 0


# bookkeeping


def sequence(tokens, tenant="", number=0):
    return Sequence(number, list(tokens), len(tokens), 10_000, tenant=tenant)


def test_the_longest_that_fits_whole_is_found():
    kept = Snapshots(state=5)
    for length in (40, 60, 80):
        kept.keep(Snapshot("", [1] * length, length), 1000)
    kept.keep(Snapshot("other", [1] * 50, "other's"), 1000)
    assert kept.taken == 40 + 60 + 80 + 50 + 4 * 5
    assert kept.find(sequence([1] * 70)).cache == 60
    assert kept.find(sequence([1] * 60)).cache == 40, "one token stays to be computed"
    assert kept.find(sequence([1] * 39 + [2] * 9)) is None
    assert kept.find(sequence([1] * 70, "other")).cache == "other's"


def test_the_least_recently_used_go_first():
    kept = Snapshots(state=0)
    for start in range(3):
        kept.keep(Snapshot("", [start] * 40, start), 120)
    assert kept.find(sequence([0] * 41)).cache == 0
    kept.keep(Snapshot("", [9] * 50, 9), 130)
    assert [kept.find(sequence([start] * 60)) is not None for start in (0, 1, 2, 9)] == [True, False, True, True]
    kept.keep(Snapshot("", [8] * 200, 8), 130)
    assert kept.find(sequence([8] * 201)) is None and kept.taken > 0, "what never fits drives nobody out"
    kept.shrink(0)
    assert kept.taken == 0
    for start in range(MOST + 3):
        kept.keep(Snapshot("", [start] * LEAST, start), 10**9)
    assert kept.taken == MOST * LEAST


def test_snapshots_make_room_for_who_runs():
    memory = CachesMemory(100)
    memory.snapshots.keep(Snapshot("", [1] * 60, None), 100)
    first = sequence([2] * 30)
    assert memory.admit(first, alone=True) == 0 and memory.snapshots.taken == 60
    assert memory.grow(first, 50) and memory.snapshots.taken == 0
    assert memory.admit(sequence([3] * 60, number=1), alone=False) is None
