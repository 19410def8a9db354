"""Keys and values kept in another precision than the model computes in."""

import copy

import pytest
import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation import device as devices
from agent_server.generation.device import choose_cache_dtype
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model, save
from tests.slow import slow

CPU = torch.device("cpu")
MOST_OFF = {"llama": 0.02, "mistral-window": 0.02, "gemma2": 0.02, "gpt-oss": 0.5}
"""How far a log probability may be off; more where a token may go to another expert for it."""


def scored(model, dtype):
    """The log probabilities of some prompts, computed in chunks beside each other, and the driver."""
    driver = Driver(copy.deepcopy(model), max_batch=4, step_tokens=24, kv_cache_dtype=dtype, flatten=True)
    asked = prompts(4, seed=5, longest=90)
    numbers = [driver.submit(prompt, max_tokens=12, prompt_logprobs=0) for prompt in asked]
    driver.finish()
    driver.assert_clean()
    ends = [driver.end(number).prompt_logprobs[1:] for number in numbers]
    return torch.tensor([token.logprob for end in ends for token in end]), driver


@pytest.mark.parametrize("family", ["gemma2", *slow(["llama", "mistral-window", "gpt-oss"])])
def test_bfloat16_is_close_to_float32_and_takes_half_the_memory(family):
    model = make_model(family)
    exact, _ = scored(model, "float32")
    halved, driver = scored(model, "bfloat16")
    assert {arena.dtype for arena in driver.core.runner.cache.keys} == {torch.bfloat16}
    off = (exact - halved).abs()
    assert 0 < off.mean() < MOST_OFF[family] / 10 and off.max() < MOST_OFF[family]
    small = Driver(copy.deepcopy(model), kv_cache_dtype="bfloat16", kv_cache_bytes=2**20)
    large = Driver(copy.deepcopy(model), kv_cache_dtype="float32", kv_cache_bytes=2**20)
    assert small.info.details["kv_cache_tokens"] == 2 * large.info.details["kv_cache_tokens"]


def test_neighbours_growth_and_what_is_known_change_no_token():
    model = make_model("llama")
    sampling = {"temperature": 1.0, "seed": 3, "max_tokens": 200}
    asked = prompts(9, seed=8, longest=120)

    def driver():
        return Driver(copy.deepcopy(model), max_batch=16, step_tokens=32, kv_cache_dtype="bfloat16")

    alone = driver()
    first = alone.submit(asked[0], **sampling)
    alone.finish()
    warm = alone.submit(asked[0], **sampling)
    alone.finish()
    crowd = driver()
    numbers = [crowd.submit(prompt, **sampling) for prompt in asked]
    crowd.finish()
    assert len(alone.ids(first)) == 200
    assert alone.ids(first) == alone.ids(warm) == crowd.ids(numbers[0])


@pytest.mark.parametrize(
    ("name", "stored", "computed", "able", "chosen"),
    [
        ("auto", torch.bfloat16, torch.float32, True, torch.bfloat16),
        ("auto", torch.bfloat16, torch.float32, False, torch.float32),
        ("auto", torch.float32, torch.float32, True, torch.float32),
        ("auto", None, torch.float32, True, torch.float32),
        ("auto", torch.bfloat16, torch.bfloat16, False, torch.bfloat16),
        ("float32", torch.bfloat16, torch.float32, True, torch.float32),
        ("float16", torch.float32, torch.float32, True, torch.float16),
    ],
)
def test_the_choice(monkeypatch, name, stored, computed, able, chosen):
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: able)
    assert choose_cache_dtype(name, computed=computed, stored=stored, device=CPU) == chosen


@pytest.mark.parametrize(("asked", "kept"), [({}, "bfloat16"), ({"dtype": "float32"}, "float32")])
def test_a_checkpoint_in_bfloat16_keeps_them_so_unless_float32_is_asked_for(monkeypatch, tmp_path, asked, kept):
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda: True)
    folder = save(make_model("llama").to(torch.bfloat16), tmp_path)
    _, info = load(EngineConfig(model=str(folder), threads=1, kv_cache_bytes=2**20, **asked), lambda status: None)
    assert (info.details["dtype"], info.details["kv_cache_dtype"]) == ("float32", kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kv_cache_dtype": "int3"}, "Unknown dtype 'int3'"), ({"memory": "paged"}, "for the CPU alone")],
)
def test_what_cannot_be_is_refused_in_a_sentence(tmp_path, options, message):
    folder = save(make_model("llama"), tmp_path)
    with pytest.raises(EngineError, match=message):
        load(EngineConfig(model=str(folder), **{"kv_cache_dtype": "bfloat16", **options}), lambda status: None)


@pytest.mark.parametrize(("asked", "found"), [({}, 512), ({"step_tokens": 700}, 700), ({"step_tokens": 96}, 96)])
def test_the_budget_of_a_step_is_the_one_that_was_set(tmp_path, asked, found):
    folder = save(make_model("llama"), tmp_path)
    _, info = load(EngineConfig(model=str(folder), threads=1, kv_cache_bytes=2**20, **asked), lambda status: None)
    assert info.details["step_tokens"] == found
