"""Models that do not fit the usual ways: right all the same, or refused when they are loaded, in one sentence."""

import copy

import pytest

from agent_server.engine.protocol import EngineError
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import ODD, UNSERVABLE, make_model

COUNT = 24


def asked(family):
    """Prompts on both sides of what makes the family odd, one that crosses it while it decodes."""
    lengths = {"phi3-long": (5, 30, 40, 47, 48, 49, 90), "phimoe-window": (5, 100, 119, 130, 160)}.get(
        family, (5, 33, 70)
    )
    return [(prompts(1, seed=length)[0] * 60)[:length] for length in lengths]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("family", ODD)
def test_odd_families_give_transformers_own_tokens(family, overlap):
    model = make_model(family)
    driver = Driver(copy.deepcopy(model), max_batch=4, overlap=overlap)
    numbers = []
    for prompt in asked(family):
        numbers.append(driver.submit(prompt, max_tokens=COUNT))
        driver.step(2)
    driver.finish()
    for number, prompt in zip(numbers, asked(family), strict=True):
        assert driver.ids(number) == expected(model, prompt, COUNT), f"prompt of {len(prompt)} tokens"
    driver.assert_clean()


@pytest.mark.parametrize("family", UNSERVABLE)
def test_what_cannot_be_told_apart_is_refused_when_it_is_loaded(family):
    with pytest.raises(EngineError, match=r"^tiny cannot be served: .*\.$"):
        Driver(make_model(family))


def test_a_model_that_is_run_one_by_one_says_so_and_why(caplog):
    Driver(make_model("bloom"))
    line = next(line for line in caplog.messages if "one sequence at a time" in line)
    assert line.startswith("tiny is decoded one sequence at a time, which is slow: ")
