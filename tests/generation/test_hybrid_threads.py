"""Conversations on models that keep states: what their threads share, and what a next turn leaves out of an earlier one,
is not computed again; and whatever is paused, sent back, cancelled or fails, ids are those of `generate`."""

import copy
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import Finished
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.own_caches.snapshots import LEAST, TAIL
from benchmarks.families import agrees
from benchmarks.family_shapes import VOCAB, make
from tests.generation.harness import Driver
from tests.generation.test_cache_holds import send_back
from tests.slow import slow

COUNT = 6
THINKS = 2
"""Tokens at the end of a prompt that open the thoughts, which later turns leave out with the thoughts themselves."""
INSTRUCTIONS = torch.randint(4, VOCAB, (100,), generator=torch.Generator().manual_seed(5)).tolist()
FAST = ["qwen3_5_text", "falcon_h1", "mamba2"]
SLOW = [
    "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm3", "nemotron_h", "granitemoehybrid", "kimi_linear", "zamba2", "bamba",
    "deepseek_v32", "deepseek_v4", "llama4_text", "inkling_text", "zaya", "xlstm", "jamba", "falcon_mamba", "minimax",
    "recurrent_gemma", "rwkv",
]  # fmt: skip


APART = ["rwkv", "xlstm", "deepseek_v4"]
"""Whose padding is not told from tokens."""


@pytest.fixture(scope="module", params=[*FAST, *slow(SLOW)])
def models(request):
    """What is served, and an untouched copy."""
    model = make(request.param)
    return model, copy.deepcopy(model)


def driver_of(models, **options):
    driver = Driver(models[0], max_batch=4, step_tokens=48, **options)
    assert not isinstance(driver.core.runner, PackedRunner) and driver.core.runner.chunked
    return driver


def said(thread, turn):
    """What a person says, with what opens the answer."""
    return [(31 * thread + 17 * turn + 7 * place) % 300 + 4 for place in range(90)]


def after(prompt, answer):
    """The conversation as its template shows it in the next turn: without the thoughts."""
    return prompt[:-THINKS] + answer[THINKS:]


def test_threads_share_their_instructions_and_turns_go_on_behind_the_last(models):
    driver = driver_of(models)
    found = []
    for thread in range(3):
        history = INSTRUCTIONS
        for turn in range(3):
            prompt = history + said(thread, turn)
            number = driver.submit(prompt, max_tokens=COUNT)
            driver.finish()
            assert agrees(models[1], prompt, driver.ids(number))
            found.append(driver.end(number).usage.cached_tokens)
            history = after(prompt, driver.ids(number))
    first = len(INSTRUCTIONS) + 90 - TAIL
    second = first + TAIL - THINKS + COUNT - THINKS + 90 - TAIL
    assert found[:3] == [0, first, second]
    assert found[3:] == [0, first, second, len(INSTRUCTIONS), first, second], "the second thread leaves what is shared"
    metrics = driver.core.metrics()
    assert metrics["prefix_cache_hits_total"] == sum(found)
    driver.assert_clean()


def test_threads_that_start_together_compute_their_instructions_once(models):
    driver = driver_of(models)
    asked = {
        driver.submit(prompt, max_tokens=COUNT): prompt for prompt in [INSTRUCTIONS + said(n, 0) for n in range(4)]
    }
    driver.finish()
    cached = sorted(driver.end(number).usage.cached_tokens for number in asked)
    assert cached[0] == 0 and all(len(INSTRUCTIONS) - LEAST <= tokens <= len(INSTRUCTIONS) for tokens in cached[1:])
    assert all(agrees(models[1], prompt, driver.ids(number)) for number, prompt in asked.items())
    driver.assert_clean()


@contextmanager
def failing(driver):
    """A step's fault behind all layers, whose states it has changed by then."""

    def fail(*given):
        raise RuntimeError("as if")

    hook = driver.core.runner.model.get_output_embeddings().register_forward_pre_hook(fail)
    yield
    hook.remove()


def test_what_a_broken_step_left_is_not_gone_on_from(models):
    driver = driver_of(models)
    prompt = INSTRUCTIONS + said(0, 0)
    driver.submit(prompt, max_tokens=COUNT)
    driver.step()
    with failing(driver):
        driver.step()
    driver.finish()
    for _ in range(2):
        number = driver.submit(prompt, max_tokens=COUNT)
        driver.finish()
        assert agrees(models[1], prompt, driver.ids(number))
    number = driver.submit(prompt, max_tokens=COUNT)
    driver.step(3)
    with failing(driver):
        driver.step()
    driver.finish()
    assert agrees(models[1], prompt, driver.ids(number)), "who decoded is computed again"
    driver.assert_clean()


ACTS = st.sampled_from(["ask", "ask", "cancel", "pause", "resume", "preempt", "fail", "step", "step"])


@settings(max_examples=5, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(0, 40)), max_size=20), st.sampled_from([None, 400]))
def test_whatever_happens_ids_are_those_of_generate(models, acts, room):
    """room: tokens of memory, of which the prompts and their snapshots need more."""
    driver = driver_of(models)
    if room is not None:
        memory = driver.core.scheduler.memory
        memory.total = memory.longest = room + 4 * memory._state
    history, asked = INSTRUCTIONS, {}
    for act, number in acts:
        if act == "ask":
            prompt = history + said(number, number)[: 20 + 2 * number]
            asked[driver.submit(prompt, max_tokens=COUNT)] = prompt
            history = prompt if number % 2 and len(prompt) < 300 else INSTRUCTIONS
        elif act == "preempt":
            send_back(driver, number)
        elif act == "fail":
            with failing(driver):
                driver.step()
        elif act == "step":
            driver.step(number % 5)
        elif driver.number:
            chosen = 1 + number % driver.number
            getattr(driver, act)(chosen)
            if act == "cancel":
                asked.pop(chosen, None)
    for number in range(1, driver.number + 1):
        driver.resume(number)
    driver.finish()
    for number, prompt in asked.items():
        if isinstance(driver.end(number), Finished):  # the others were in a step that failed
            assert agrees(models[1], prompt, driver.ids(number))
    driver.assert_clean()


@contextmanager
def forwards(driver):
    """The shape of the ids in every forward of the model."""
    shapes = []
    hook = driver.core.runner.model.register_forward_pre_hook(
        lambda model, given, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


def test_prompts_of_about_one_length_share_a_forward(models):
    apart = models[0].config.model_type in APART
    driver = Driver(models[0], max_batch=8, step_tokens=200)
    asked = {}
    with forwards(driver) as shapes:
        for thread, length in enumerate((30, 33, 29, 5, 36)):
            prompt = said(thread, 0)[:length]
            asked[driver.submit(prompt, max_tokens=COUNT)] = prompt
        driver.step()
    driver.finish()
    assert sorted(shapes) == ([(1, 5), (1, 29), (1, 30), (1, 33), (1, 36)] if apart else [(1, 5), (4, 36)])
    assert all(agrees(models[1], prompt, driver.ids(number)) for number, prompt in asked.items())
    driver.assert_clean()
