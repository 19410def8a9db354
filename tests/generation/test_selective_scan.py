"""Prompts of Mamba 1's models come in pieces, and go on from what earlier ones left."""

import copy
from itertools import pairwise

import pytest
import torch

from agent_server.generation.own_caches.selective_scan import continue_scans
from benchmarks.families import agrees
from benchmarks.family_shapes import VOCAB, make
from tests.generation.harness import Driver

FAMILIES = {
    "mamba": "cache_params",
    "falcon_mamba": "cache_params",
    "jamba": "past_key_values",
    "zamba": "past_key_values",
}
PROMPT = torch.randint(4, VOCAB, (1, 120), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=FAMILIES)
def models(request):
    model = make(request.param)
    own, model.cache_name = copy.deepcopy(model), FAMILIES[request.param]
    continue_scans(model)
    return model, own


def last_logits(model, cuts):
    cache = None
    for start, end in pairwise(cuts):
        output = model(input_ids=PROMPT[:, start:end], use_cache=True, **{model.cache_name: cache})
        cache = output[model.cache_name]
    return output.logits[0, -1]


@torch.inference_mode()
def test_pieces_give_the_logits_of_the_whole(models):
    model, own = models
    wanted = own(input_ids=PROMPT).logits[0, -1]
    for cuts in ([0, 120], [0, 3, 120], [0, 48, 96, 119, 120]):
        torch.testing.assert_close(last_logits(model, cuts), wanted, rtol=1e-4, atol=1e-4)


@torch.inference_mode()
def test_a_state_is_not_where_another_model_begins(models):
    model, own = models
    wanted = own(input_ids=PROMPT).logits
    last_logits(model, [0, 119, 120])
    assert torch.equal(own(input_ids=PROMPT).logits, wanted)


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_a_later_turn_goes_on_from_the_one_before(family):
    model = make(family)
    own = copy.deepcopy(model)
    driver = Driver(model, max_batch=2, step_tokens=48)
    first = PROMPT[0].tolist()
    number = driver.submit(first, max_tokens=4)
    driver.finish()
    later = first + driver.ids(number) + first[:40]
    further = driver.submit(later, max_tokens=4)
    driver.finish()
    assert driver.core.runner.chunked and driver.end(further).usage.cached_tokens == 123
    assert agrees(own, first, driver.ids(number)) and agrees(own, later, driver.ids(further))
