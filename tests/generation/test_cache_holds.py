"""Places that a conversation keeps between its turns, in a core around a model; and prompts that begin alike."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import CacheHold, Constraint
from agent_server.generation.loading import runner_choice
from agent_server.generation.scheduling.messages import RequestFailed
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model

COUNT = 8
TOKEN_BYTES = 2 * 2 * 2 * 12 * 4
KINDS = {"pages": ("llama", "paged"), "slabs": ("llama", "slab"), "states": ("qwen3-next", "auto")}


@pytest.fixture(scope="module")
def models():
    return {family: make_model(family) for family, _ in KINDS.values()}


@pytest.fixture(params=KINDS)
def made(request, models, monkeypatch):
    """A driver, and an untouched model."""
    monkeypatch.setattr(runner_choice, "GATHERED_PAGE_SIZE", 4)
    family, memory = KINDS[request.param]
    return Driver(copy.deepcopy(models[family]), memory=memory, max_batch=4, step_tokens=32), models[family]


@pytest.fixture
def model_pages(models):
    return copy.deepcopy(models["llama"])


def filling(key="run", seconds=60.0):
    return CacheHold(conversation=key, prefill_only=True, ttl=seconds)


def test_what_was_filled_is_found_by_the_next_turn(made):
    driver, model = made
    [prompt] = prompts(1, seed=8)
    prompt = prompt + [7] * 60
    number = driver.submit(prompt, cache_hold=filling())
    driver.finish()
    assert driver.items[number] == [driver.end(number)] and driver.end(number).usage.completion_tokens == 0
    assert driver.core.metrics()["num_kept_places"] == 1
    longer = [*prompt, 11, 12]
    later = driver.submit(longer, max_tokens=COUNT, cache_hold=CacheHold(conversation="run"))
    driver.finish()
    assert driver.ids(later) == expected(model, longer, COUNT)
    page = getattr(driver.core.scheduler.memory, "page_size", 4)  # a kernel has its own size
    assert driver.end(later).usage.cached_tokens >= len(prompt) - page
    metrics = driver.core.metrics()
    assert metrics["kept_places_used_total"] == 1 and metrics["num_kept_places"] == 0
    assert metrics["prompt_tokens_total"] == len(longer), "what is filled is nobody's prompt"
    driver.assert_clean()


def test_a_place_that_has_all_it_needs_is_filled_at_once(made):
    driver, _ = made
    for _ in range(2):
        number = driver.submit([9] * 40, cache_hold=filling())
        driver.finish()
        assert driver.end(number).reason == "length"
    assert driver.core.metrics()["num_kept_places"] == 1
    driver.assert_clean()


def test_what_fills_a_place_takes_none_in_the_queue(model_pages):
    driver = Driver(model_pages, memory="paged", max_batch=2, max_queued=1, step_tokens=32)
    one = driver.submit([9] * 40, max_tokens=COUNT)
    fills = [driver.submit([8, number] * 20, cache_hold=filling(f"run {number}")) for number in range(3)]
    turns = [driver.submit([7, number] * 20, max_tokens=COUNT) for number in range(3)]
    driver.step()
    refused = [number for number in (one, *fills, *turns) if driver.over(number)]
    assert refused == [*fills[1:], turns[2]]
    assert {driver.end(number).kind for number in refused} == {"overloaded"}
    driver.finish()
    assert all(driver.end(number).reason == "length" for number in (one, fills[0], *turns[:2]))
    driver.assert_clean()


def test_a_place_ends_at_its_time_or_when_it_is_let_go(made):
    driver, _ = made
    now = [0.0]
    driver.core.clock = lambda: now[0]
    driver.submit([9] * 40, cache_hold=filling("one", 5.0))
    driver.submit([8] * 40, cache_hold=filling("two", 50.0))
    driver.finish()
    now[0] = 6.0
    driver.step()
    assert driver.core.metrics()["num_kept_places"] == 1
    number = driver.submit([8], cache_hold=filling("two", 0.0))
    driver.finish()
    metrics = driver.core.metrics()
    assert driver.end(number).reason == "length"
    assert metrics["num_kept_places"] == 0 and metrics["kept_places_ended_total"] == 2
    driver.assert_clean()


def test_a_filling_that_is_cancelled_or_refused_keeps_nothing(made):
    driver, _ = made
    number = driver.submit([9] * 80, cache_hold=filling())
    driver.step()
    driver.cancel(number)
    driver.finish()
    refused = driver.submit([9], cache_hold=filling(), constraint=Constraint(kind="regex", value="a"))
    driver.finish()
    assert isinstance(driver.end(refused), RequestFailed) and "grammar" in driver.end(refused).message
    assert driver.core.metrics()["num_kept_places"] == 0
    driver.assert_clean()


def test_nothing_is_kept_where_nothing_may_be(models):
    driver = Driver(copy.deepcopy(models["llama"]), kept_percent=0)
    assert not driver.info.cache_hold_seconds
    driver.submit([9] * 40, cache_hold=filling())
    driver.finish()
    assert driver.core.metrics()["num_kept_places"] == 0
    assert Driver(copy.deepcopy(models["llama"]), kept_seconds=30).info.cache_hold_seconds == 30


ACTIONS = ["fill", "ask", "ask", "cancel", "let go", "step", "pause", "resume", "preempt"]
LIVES = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2), st.integers(1, 40)),
    max_size=16,
)


def send_back(driver, choice):
    """As the scheduler does for want of memory, between two steps."""
    driver.core._deliver_in_flight()
    scheduler = driver.core.scheduler
    if scheduler.running:
        scheduler.preempt(scheduler.running[choice % len(scheduler.running)])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6, deadline=None)
@given(lives=LIVES)
def test_answers_are_the_same_with_places_and_without(kind, models, lives):
    """Whatever is filled, asked, cancelled, let go, paused and sent back in whatever order, in a memory that is too
    small for all."""
    family, memory = KINDS[kind]
    small = {} if kind == "states" else {"kv_cache_bytes": 1024 * TOKEN_BYTES}
    driver = Driver(copy.deepcopy(models[family]), memory=memory, max_batch=3, step_tokens=24, **small)
    threads = [[5 + place] * 40 for place in range(3)]
    asked = {}
    for action, place, size in lives:
        key = str(place)
        if action == "fill":
            driver.submit(threads[place], cache_hold=filling(key))
        elif action == "ask":
            threads[place] = [*threads[place], *range(20, 20 + size)]
            asked[driver.submit(threads[place], max_tokens=4, cache_hold=CacheHold(conversation=key))] = list(
                threads[place]
            )
        elif action == "cancel" and driver.number:
            number = 1 + size % driver.number
            driver.cancel(number)
            asked.pop(number, None)
        elif action == "let go":
            driver.submit([5], cache_hold=filling(key, 0.0))
        elif action in ("pause", "resume") and driver.number:
            getattr(driver, action)(1 + size % driver.number)
        elif action == "preempt":
            send_back(driver, size)
        else:
            driver.step(size % 4)
    for number in range(1, driver.number + 1):
        driver.resume(number)
    driver.finish()
    for number, prompt in asked.items():
        assert driver.ids(number) == expected_once(kind, models[family], tuple(prompt))
    driver.assert_clean()


KNOWN = {}


def expected_once(kind, model, prompt):
    if (kind, prompt) not in KNOWN:
        KNOWN[kind, prompt] = expected(model, list(prompt), 4)
    return KNOWN[kind, prompt]


@pytest.mark.parametrize("kind", KINDS)
def test_samples_of_one_prompt_compute_it_once(kind, models):
    """Four at once, as a request for four choices makes them."""
    family, memory = KINDS[kind]
    driver = Driver(copy.deepcopy(models[family]), memory=memory, max_batch=8, step_tokens=32)
    prompt = [*prompts(1, seed=8)[0], *[7] * 200]
    numbers = [driver.submit(prompt, max_tokens=COUNT) for _ in range(4)]
    driver.finish()
    wanted = expected(models[family], prompt, COUNT)
    assert [driver.ids(number) for number in numbers] == [wanted] * 4
    computed = sum(len(prompt) - driver.end(number).usage.cached_tokens for number in numbers)
    assert computed <= len(prompt) + 3 * 32, "each of the others computes less than a page and a block"
    driver.assert_clean()
