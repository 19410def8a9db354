"""Models that do not fit the usual ways: right all the same, or refused when they are loaded, in one sentence."""

import copy

import pytest

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.loading import runner_choice
from agent_server.generation.scheduling.sequence import Sequence
from benchmarks.families import agrees
from benchmarks.family_shapes import OWN, make
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import ODD, make_model

COUNT = 24


def asked(family):
    """Prompts on both sides of what makes the family odd, one that crosses it while it decodes."""
    lengths = {
        "phi3-long": (5, 30, 40, 47, 48, 49, 90),
        "phimoe-window": (5, 100, 119, 130, 160),
        "llama4": (5, 20, 31, 70),
    }.get(family, (5, 33, 70))
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


def test_what_cannot_be_told_apart_is_refused_when_it_is_loaded():
    """A model whose logits depend on what it was asked before."""
    model, asked = make_model("bloom"), iter(range(10**6))
    model.transformer.ln_f.register_forward_hook(lambda module, given, out: out + next(asked) % 7)
    with pytest.raises(EngineError, match=r"^tiny cannot be served: .*\.$"):
        Driver(model)


def test_a_model_that_shares_no_forward_says_so_and_why(caplog, monkeypatch):
    """RWKV as transformers has it, which mixes its rows up."""
    monkeypatch.setattr(runner_choice, "apply_patches", lambda model: None)
    Driver(make_model("rwkv"))
    line = next(line for line in caplog.messages if "is decoded" in line)
    assert line.startswith("tiny is decoded one by one, which is slow: not every layer attends ")
    assert "with others of its length beside it, a sequence gives other logits" in line


def test_where_padding_is_wrong_those_of_one_length_share_a_forward(monkeypatch):
    """DeepSeek V4's heavily compressed attention as transformers has it, which counts padding as tokens."""
    monkeypatch.setattr(runner_choice, "apply_patches", lambda model: None)
    monkeypatch.delitem(OWN, "deepseek_v4")
    model = make("deepseek_v4")
    driver = Driver(copy.deepcopy(model), max_batch=4)
    assert driver.info.details["batching"].startswith("with others of its length alone, which is slow: ")
    assert driver.info.details["slow"] == [f"tiny is decoded {driver.info.details['batching']}."]
    asked = [prompt[:40] for prompt in prompts(4, seed=2, longest=400)] + [[7, 8, 9]]
    numbers = [driver.submit(prompt, max_tokens=COUNT) for prompt in asked]
    driver.finish()
    assert all(agrees(model, prompt, driver.ids(number)) for number, prompt in zip(numbers, asked, strict=True))


def test_a_model_that_keeps_nothing_is_computed_anew_in_every_step(caplog):
    Driver(make("openai-gpt"))
    line = next(line for line in caplog.messages if "is decoded" in line)
    assert line.endswith("it hands out nothing that it has computed, so that every step computes all tokens again.")


def test_dynamic_rotary_embeddings_pack_up_to_what_the_model_was_trained_for():
    """transformers makes them grow beyond `max_position_embeddings` alone, which is the longest that is served."""
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    model = make_model("llama", rope_parameters=rope, max_position_embeddings=128)
    driver = Driver(copy.deepcopy(model), max_batch=4)
    assert driver.info.details["slow"] == []
    assert driver.info.details["batching"] == "packed" and driver.info.context_length == 128
    asked = [(prompts(1, seed=length)[0] * 60)[:length] for length in (5, 100, 31, 60)]
    numbers = [driver.submit(prompt, max_tokens=24) for prompt in asked]
    driver.finish()
    for number, prompt in zip(numbers, asked, strict=True):
        assert driver.ids(number) == expected(model, prompt, 24)


def test_llama4_shares_a_forward_across_temperatures():
    driver = Driver(make_model("llama4"), max_batch=8)
    runner = driver.core.runner
    lengths = (30, 31, 33, 40, 70)
    decodes = [Sequence(number, [1] * length, 1, 99, computed=length) for number, length in enumerate(lengths)]
    assert (runner.together, runner._decoding_groups(decodes)) == ("padded", [decodes])
