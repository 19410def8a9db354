"""Tokens that a grammar leaves no choice about: the same output with and without running ahead, in fewer steps."""

from random import Random

import numpy as np
import pytest
import torch

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.execution import graphs
from events.formats import registry
from events.grammar import plan
from events.options import ToolChoice
from tests.generation.harness import DEVICE, Driver, prompts
from tests.generation.test_grammars import JSON, run
from tests.generation.test_graphs import replays  # noqa: F401
from tests.generation.tiny_models import make_model, make_tokenizer
from tests.grammar.toolsets import tool_set
from tests.grammar.walks import walker

END = make_tokenizer().token_to_id("<|im_end|>")


def calls(seed):
    made = plan(
        registry.named("hermes"), functions=tool_set(Random(seed)), choice=ToolChoice("required"), parallel=False,
        response_format=None, stage="content", marker_ids={},
    )  # fmt: skip
    return Constraint(kind="structural_tag", value=made.tag)


def outputs(compiler, wanted, *, run_ahead, rows=3, model="llama", way=None, **sampling):
    """Each row's ids, text and end, beside free neighbours; and how many steps it took. way: options of the engine."""
    driver = Driver(make_model(model), compiler=compiler, run_ahead=run_ahead, **(way or {"overlap": False}))
    numbers = []
    for row, prompt in enumerate(prompts(rows, seed=3, longest=40)):
        numbers.append(driver.submit(prompt, max_tokens=120, constraint=wanted(row), **{"seed": row, **sampling}))
        numbers.append(driver.submit(prompt, max_tokens=30, **{"seed": row, **sampling}))
    run(driver)
    driver.assert_clean()
    said = [(driver.ids(n), driver.text(n), driver.end(n).reason, driver.end(n).usage) for n in numbers]
    return said, driver.core.counters.iterations_total, driver.core.counters.forced_tokens_total


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_p": 0.9, "stop": ("a", '", "')},
        {"temperature": 1.0, "min_tokens": 40},
    ],
    ids=["greedy", "sampled", "stop strings", "min_tokens"],
)
def test_the_output_is_the_same_in_fewer_steps(compiler, sampling, seed):
    with_it, steps, forced = outputs(compiler, lambda row: calls(seed * 10 + row), run_ahead=True, **sampling)
    without, more, none = outputs(compiler, lambda row: calls(seed * 10 + row), run_ahead=False, **sampling)
    assert with_it == without
    assert forced and not none
    assert steps <= more


@pytest.mark.parametrize(
    "sampling", [{"logprobs": 2}, {"repetition_penalty": 1.3}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.5}]
)
def test_what_asks_about_every_token_gets_every_step(compiler, sampling):
    with_it, _, forced = outputs(compiler, calls, run_ahead=True, rows=2, temperature=1.0, **sampling)
    without, _, _ = outputs(compiler, calls, run_ahead=False, rows=2, temperature=1.0, **sampling)
    assert with_it == without and not forced


def test_the_limit_of_tokens_ends_a_forced_run(compiler):
    wanted = Constraint(kind="choice", value=["abcdefghijklmnopqrstuvwxyz" * 3])
    for limit in range(1, 12):
        driver = Driver(make_model("llama"), compiler=compiler, run_ahead=True)
        number = driver.submit([9, 10, 11], max_tokens=limit, constraint=wanted)
        run(driver)
        assert len(driver.ids(number)) == limit and driver.end(number).reason == "length"
        driver.assert_clean()


def test_pausing_and_sending_back_in_the_middle(compiler):
    plain = Driver(make_model("llama"), compiler=compiler, run_ahead=False)
    asked = plain.submit([9, 10, 11], max_tokens=90, temperature=1.0, seed=5, constraint=calls(4))
    run(plain)
    driver = Driver(make_model("llama"), compiler=compiler, run_ahead=True)
    number = driver.submit([9, 10, 11], max_tokens=90, temperature=1.0, seed=5, constraint=calls(4))
    other = driver.submit([9, 10, 12], max_tokens=60, temperature=1.0, seed=6)
    for turn in range(200):
        if driver.over(number):
            break
        driver.step()
        running = driver.core.generations.get(number)
        if running is None:
            continue
        if turn % 3 == 0 and running.sequence.state == "running":
            driver.core.scheduler.preempt(running.sequence)
        elif turn % 3 == 1:
            driver.pause(number)
            driver.step(2)
            driver.resume(number)
    run(driver)
    assert driver.ids(number) == plain.ids(asked)
    assert len(driver.ids(other)) == 60
    driver.assert_clean()


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "lfm2"])
@pytest.mark.parametrize("fallback", [False, True])
def test_what_is_forced_is_all_that_its_mask_allows(name, fallback):
    walking = walker(name, fallback=fallback)
    size, forced = walking.nudge.shape[0], 0
    ids = walking.ids
    for seed in range(6):
        made = plan(
            walking.output_format, functions=tool_set(Random(seed)), choice=ToolChoice("required"), parallel=True,
            response_format=None, stage="content", marker_ids=ids,
        )  # fmt: skip
        matcher = walking.backend.compile(Constraint(kind="structural_tag", value=made.tag)).matcher()
        random = np.random.default_rng(seed)
        for _ in range(150):
            bits = torch.zeros(1, -(-size // 32), dtype=torch.int32)
            walking.backend.fill([matcher], bits)
            allowed = np.flatnonzero(np.unpackbits(bits.numpy().view(np.uint8), bitorder="little"))
            if matcher.forced:
                assert allowed.tolist() == [matcher.forced[0]]
                forced += 1
            token = int(random.choice(allowed))
            if token in walking.backend.ends or not matcher.accept(token) or matcher.finished:
                break
    assert forced > 20


def test_json_is_complete_at_once(compiler):
    with_it, steps, _ = outputs(compiler, lambda row: JSON, run_ahead=True, rows=1, temperature=1.0)
    without, more, _ = outputs(compiler, lambda row: JSON, run_ahead=False, rows=1, temperature=1.0)
    assert with_it == without and steps < more


LATE = {"memory": "paged", "overlap": True, "chunk_tokens": 16}


@pytest.mark.skipif(DEVICE.type != "cpu", reason="it emulates a GPU's graphs")
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0}], ids=["greedy", "sampled"])
def test_steps_that_are_launched_before_the_last_token_is_known_run_ahead(compiler, sampling, replays):  # noqa: F811
    """The token of such a step is discarded where a run is forced, and the run is a chunk of a graph."""
    with_it, steps, forced = outputs(compiler, lambda row: calls(row), run_ahead=True, rows=2, way=LATE, **sampling)
    without, more, none = outputs(compiler, lambda row: calls(row), run_ahead=False, rows=2, way=LATE, **sampling)
    assert with_it == without
    assert forced > 40 and not none
    assert steps < more - 10
    assert 4 + graphs.MAX_CHUNKS in replays.replayed


@pytest.mark.parametrize("failing", [3, 6, 9, 12, 15, 18])
def test_a_step_whose_token_was_discarded_may_fail(compiler, failing, monkeypatch):
    """Its sampling fails: what it would have computed is computed again, forced tokens included."""
    driver = Driver(make_model("llama"), compiler=compiler, **LATE)
    sample, count = driver.core.sampler.sample, 0

    def failing_sample(*args):
        nonlocal count
        count += 1
        if count == failing:
            raise torch.OutOfMemoryError("as if")
        return sample(*args)

    monkeypatch.setattr(driver.core.sampler, "sample", failing_sample)
    numbers = [driver.submit([9, 10, 11 + row], max_tokens=90, constraint=calls(4)) for row in range(2)]
    run(driver)
    plain = Driver(make_model("llama"), compiler=compiler, run_ahead=False)
    asked = [plain.submit([9, 10, 11 + row], max_tokens=90, constraint=calls(4)) for row in range(2)]
    run(plain)
    assert [driver.ids(n) for n in numbers] == [plain.ids(n) for n in asked]
    driver.assert_clean()
