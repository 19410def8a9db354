"""What transformers' code of single families lacks is put in its place: prompts come in pieces, rows do not mix, later
turns go on from what was computed; and a model that was not given to the core stays as it is."""

import copy
from itertools import pairwise

import pytest
import torch

from agent_server.generation.own_caches.families.family_patches import apply_patches
from benchmarks.families import agrees
from benchmarks.family_shapes import VOCAB, make
from tests.generation.harness import Driver

FAMILIES = ("deepseek_v4", "llama4_text", "minimax", "recurrent_gemma", "rwkv")
PROMPT = torch.randint(4, VOCAB, (2, 300), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=FAMILIES)
def models(request):
    """What is served, and an untouched copy."""
    model = make(request.param)
    own, model.cache_name = copy.deepcopy(model), "state" if request.param == "rwkv" else "past_key_values"
    apply_patches(model)
    apply_patches(model)  # it may be served again
    return model, own


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def last_logits(model, rows, cuts):
    """Behind `rows` of the prompt that comes in pieces."""
    cache = None
    named = {} if model.cache_name == "state" else {"position_ids": torch.arange(300)[None].expand(len(rows), -1)}
    for start, end in pairwise(cuts):
        given = {name: value[:, start:end] for name, value in named.items()}
        output = model(input_ids=rows[:, start:end], use_cache=True, **given, **{model.cache_name: cache})
        cache = output[model.cache_name]
    return output.logits[:, -1]


@torch.inference_mode()
def test_pieces_give_the_logits_of_the_whole(models):
    model, own = models
    wanted = own(input_ids=PROMPT[:1], use_cache=False).logits[:, -1]
    for cuts in ([0, 300], [0, 3, 300], [0, 48, 96, 297, 298, 299, 300]):
        torch.testing.assert_close(last_logits(model, PROMPT[:1], cuts), wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_rows_do_not_mix(models):
    model, _ = models
    cuts = [0, 40, 41, 42]
    apart = torch.cat([last_logits(model, PROMPT[row : row + 1], cuts) for row in range(2)])
    torch.testing.assert_close(last_logits(model, PROMPT, cuts), apart, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_another_model_stays_as_it_is(models):
    model, own = models
    wanted = own(input_ids=PROMPT, use_cache=False).logits
    last_logits(model, PROMPT[:1], [0, 119, 120])
    assert torch.equal(own(input_ids=PROMPT, use_cache=False).logits, wanted)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_later_turn_goes_on_from_the_one_before(family):
    model = make(family)
    own = copy.deepcopy(model)
    driver = Driver(model, max_batch=2, step_tokens=48)
    first = PROMPT[0, :120].tolist()
    number = driver.submit(first, max_tokens=4)
    driver.finish()
    later = first + driver.ids(number) + first[:40]
    further = driver.submit(later, max_tokens=4)
    driver.finish()
    assert driver.core.runner.chunked and driver.end(further).usage.cached_tokens == 123
    assert agrees(own, first, driver.ids(number)) and agrees(own, later, driver.ids(further))
