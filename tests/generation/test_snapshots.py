"""Prompts that begin as an earlier one ended go on from what it left, states and all; and nothing else changes."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_server.generation.loading import runner_choice
from agent_server.generation.own_caches import snapshots as snapshots_module
from agent_server.generation.own_caches.cache_trees import learn
from agent_server.generation.own_caches.own_caches import CachesMemory
from agent_server.generation.own_caches.snapshots import TAIL, Snapshots
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence
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
    shared = prompts(1, seed=4, longest=60)[0] + [9] * 80
    ask(driver, shared)
    assert ask(driver, shared)[1] == len(shared) - TAIL, "the same prompt again"
    numbers = [driver.submit([*shared, 20 + n, 30 - n], max_tokens=COUNT) for n in range(4)]
    driver.finish()
    for n, number in enumerate(numbers):
        assert driver.ids(number) == expected(model, [*shared, 20 + n, 30 - n], COUNT)
        assert driver.end(number).usage.cached_tokens == len(shared) - TAIL
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
    driver.step(1 + driver.core.overlap)
    assert 0 < seen < COUNT and len(driver.ids(number)) == seen + 1, "its states were there"
    driver.finish()
    assert driver.ids(number) == expected(model, [*prompt, 8], COUNT)
    driver.assert_clean()


def test_models_whose_prompts_cannot_be_cut_keep_none(monkeypatch):
    monkeypatch.setattr(runner_choice, "apply_patches", lambda model: None)
    model = make_model("rwkv")
    driver = Driver(copy.deepcopy(model), max_batch=2)
    ask(driver, [5] * 50)
    assert ask(driver, [5] * 51) == (expected(model, [5] * 51, COUNT), 0)
    assert driver.core.scheduler.memory.snapshots.used_tokens == 0


# bookkeeping


def cache_of(tokens):
    """Keys of a token each, a window of three, and a state, which all depend on what came before."""
    sums = torch.tensor(tokens, dtype=torch.float32).cumsum(0)
    return {"keys": sums.repeat(2, 1)[None], "window": sums[None, -3:].clone(), "state": sums[-1:, None].repeat(1, 5)}


def pair(length):
    return {name: torch.cat([tensor, tensor]) for name, tensor in cache_of([1] * length).items()}


LAYOUT = learn(cache_of([1] * 2), pair(2), cache_of([1] * 24), (2, 24))
WINDOW_AND_STATE = 3 + 5


def sequence(tokens, tenant="", number=0, **fields):
    return Sequence(number, list(tokens), len(tokens), 10_000, tenant=tenant, **fields)


def keep(kept, tokens, room=10**9, tenant=""):
    kept.keep(sequence(tokens, tenant), len(tokens), cache_of(tokens), room)


def found(kept, tokens, tenant=""):
    """How many tokens are found, whose cache is what it should be."""
    node = kept.find(sequence(tokens, tenant))
    if node is None:
        return 0
    cache, wanted = kept.restore(node), cache_of(tokens[: node.depth])
    assert cache.keys() == wanted.keys() and all(torch.equal(cache[name], wanted[name]) for name in wanted)
    return node.depth


def snapshots(**options):
    return Snapshots(LAYOUT, state=WINDOW_AND_STATE, token_bytes=4, **options)


def test_a_layout_knows_what_grows():
    assert LAYOUT.grows == {("keys",)} and set(LAYOUT.tokens) == {("keys",), ("window",)}


def test_what_several_begin_with_is_there_once():
    kept = snapshots()
    for length in (40, 60, 80):
        keep(kept, [1] * length)
    assert kept.used_tokens == 80 + 3 * WINDOW_AND_STATE
    keep(kept, [1] * 50 + [2] * 30)
    assert kept.used_tokens == 80 + 30 + 4 * WINDOW_AND_STATE
    keep(kept, [1] * 50, tenant="other")
    assert [found(kept, [1] * n) for n in (70, 60, 39)] == [60, 40, 0], "one token stays to be computed"
    assert found(kept, [1] * 50 + [2] * 31) == 80 and found(kept, [1] * 50 + [2] * 30) == 40
    assert found(kept, [1] * 70, "other") == 50 and found(kept, [1] * 70, "third") == 0
    keep(kept, [1] * 50)
    assert found(kept, [1] * 50 + [2] * 30) == 50, "where ways part, too"


TOKENS = st.lists(st.integers(1, 2), min_size=1, max_size=9)


@given(st.lists(st.one_of(TOKENS, st.integers(0, 60)), max_size=25), TOKENS)
def test_the_longest_beginning_is_found_as_it_was(acts, asked):
    """Whatever is kept, and however much room is left now and then."""
    kept = snapshots()
    for act in acts:
        if isinstance(act, int):
            kept.shrink(act)
            assert kept.used_tokens <= act
        else:
            keep(kept, act)
    held = {tuple(tokens_of(node)) for node in kept._entries}
    assert all(kept.has(sequence(tokens), len(tokens)) for tokens in held)
    assert found(kept, asked) == max(
        (len(t) for t in held if len(t) < len(asked) and asked[: len(t)] == list(t)), default=0
    )
    beginnings = {tokens[:length] for tokens in held for length in range(1, len(tokens) + 1)}
    assert kept.used_tokens == len(beginnings) + len(held) * WINDOW_AND_STATE - sum(3 - min(3, len(t)) for t in held)
    kept.shrink(0)
    assert kept.used_tokens == len(kept) == 0 and not kept._roots


def tokens_of(node):
    return [token for each in node.way() for token in each.edge]


def test_the_least_recently_used_go_first():
    kept = snapshots()
    for start in range(3):
        keep(kept, [start] * 40, 150)
    assert found(kept, [0] * 41)
    keep(kept, [9] * 40, 150)
    assert [bool(found(kept, [start] * 60)) for start in (0, 1, 2, 9)] == [True, False, True, True]
    keep(kept, [8] * 200, 150)
    assert not found(kept, [8] * 201) and len(kept) == 3, "what never fits drives nobody out"


def test_one_that_has_more_than_was_measured_is_not_kept_beyond_the_room():
    kept = Snapshots(LAYOUT, state=0, token_bytes=4)
    keep(kept, [1] * 40, 44)
    assert kept.used_tokens == len(kept) == 0


def test_snapshots_make_room_for_who_runs():
    memory = CachesMemory(100, layout=LAYOUT, token_bytes=4)
    keep(memory.snapshots, [1] * 60, 100)
    first = sequence([2] * 30)
    assert memory.admit(first, alone=True) == 0 and memory.snapshots.used_tokens == 60 + WINDOW_AND_STATE
    assert memory.grow(first, 50) and memory.snapshots.used_tokens == 0
    assert memory.admit(sequence([3] * 60, number=1), alone=False) is None


def test_what_a_prompt_begins_with_is_not_given_up_for_the_prompt():
    memory = CachesMemory(200, layout=LAYOUT, token_bytes=4)
    for start in (1, 2):
        keep(memory.snapshots, [start] * 60, 200)
    assert memory.admit(sequence([1] * 70), alone=True) == 60
    assert not found(memory.snapshots, [2] * 70), "the other one went, though it was used later"


@pytest.mark.parametrize("call", ["take_apart", "rebuild"])
def test_without_memory_for_a_copy_all_goes_on(call, monkeypatch):
    kept = snapshots()
    keep(kept, [1] * 40)

    def fails(*arguments):
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(snapshots_module, call, fails)
    if call == "take_apart":
        keep(kept, [1] * 50)
    else:
        assert kept.restore(kept.find(sequence([1] * 41))) is None
    assert kept.used_tokens == len(kept) == 0, "its room is for those that run"


# where they are taken


def stops(kept, tokens, start=0, **fields):
    return kept.stops(sequence(tokens, **fields), start)


def test_a_prompt_is_kept_before_what_opens_its_answer_and_where_it_parts_from_others():
    kept = snapshots()
    assert stops(kept, [1] * 20) == () and stops(kept, [1] * 60) == (60,)
    assert stops(kept, [1] * 200) == (200 - TAIL,) and stops(kept, [1] * 200, start=190) == ()
    assert stops(kept, [1] * 200, terms=LeaseTerms(("", "run"), 1.0)) == (200,), (
        "all that fills a place is known to come"
    )
    keep(kept, [1] * 184)
    assert stops(kept, [1] * 100 + [2] * 100) == (100, 200 - TAIL)
    assert stops(kept, [1] * 100 + [2] * 30) == (100,), "a short question is not kept by itself"
    assert stops(kept, [1] * 100 + [2] * 100, start=90) == (200 - TAIL,)
    assert stops(kept, [1] * 200) == (200 - TAIL,)
