"""The log probabilities of prompts, beside those that the model gives for the whole prompt at once."""

import copy

import pytest
import torch

from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model

MOST = 3


@pytest.fixture(scope="module")
def model():
    return make_model("llama")


def reference(model, prompt):
    with torch.inference_mode():
        return model(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("memory", ["slab", "paged"])
def test_they_are_the_models_own_beside_others_and_in_chunks(model, memory):
    driver = Driver(copy.deepcopy(model), max_batch=4, step_tokens=24, memory=memory)
    asked = prompts(4, seed=11, longest=90)
    numbers = [
        driver.submit(prompt, max_tokens=6, prompt_logprobs=MOST if index % 2 else None)
        for index, prompt in enumerate(asked)
    ]
    driver.finish()
    for index, (number, prompt) in enumerate(zip(numbers, asked, strict=True)):
        found = driver.end(number).prompt_logprobs
        if not index % 2:
            assert found is None
            continue
        expected = reference(model, prompt)
        assert found[0] is None and [token.id for token in found[1:]] == list(prompt[1:])
        own = torch.tensor([token.logprob for token in found[1:]])
        torch.testing.assert_close(own, expected[:-1].gather(1, torch.tensor(prompt[1:])[:, None])[:, 0])
        values = torch.tensor([[other.logprob for other in token.alternatives] for token in found[1:]])
        torch.testing.assert_close(values, expected[:-1].topk(MOST).values)
    driver.assert_clean()


def test_a_prompt_that_was_computed_before_is_scored_in_full(model):
    driver = Driver(copy.deepcopy(model), max_batch=2)
    prompt = prompts(1, seed=12, longest=90)[0]
    driver.submit(prompt, max_tokens=2)
    driver.finish()
    again = driver.submit(prompt, max_tokens=1, prompt_logprobs=0)
    driver.finish()
    end = driver.end(again)
    assert end.usage.cached_tokens == 0
    assert all(token.alternatives == () and token.logprob <= 0 for token in end.prompt_logprobs[1:])
    assert len(end.prompt_logprobs) == len(prompt)


def test_what_is_said_of_a_prompt_does_not_change_what_follows(model):
    driver = Driver(copy.deepcopy(model), max_batch=2)
    prompt = prompts(1, seed=13, longest=90)[0]
    plain, scored = (driver.submit(prompt, max_tokens=8, **more) for more in ({}, {"prompt_logprobs": 1}))
    driver.finish()
    assert driver.ids(plain) == driver.ids(scored)
