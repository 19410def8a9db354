"""The engine over the project's kernels gives transformers' own tokens."""

import pytest
import torch

from agent_server.generation.attention.batches import LayerShape
from agent_server.generation.attention.kernels import paged
from agent_server.generation.loading import attention_kernels, runner_choice
from agent_server.generation.loading.attention_kernels import TritonKernel, difference
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model

COUNT = 3


@pytest.fixture
def kernel(monkeypatch):
    """The kernel, as if this were its device, with pages that are soon full."""
    made = TritonKernel(processors=8)
    monkeypatch.setattr(TritonKernel, "page_size", 16)
    monkeypatch.setattr(paged, "LEAST_SPLIT", 16)
    monkeypatch.setattr(paged, "KEYS", 16)
    monkeypatch.setattr(attention_kernels, "choose", lambda *_: made)
    # it takes the interpreter a minute; see test_fusion.py
    monkeypatch.setattr(runner_choice, "fit_flat", lambda *_: True)
    return made


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_prompts_beside_decoding(family, kernel):
    """Windows and soft caps; chunks of a prompt in the steps of those that decode."""
    model = make_model(family)
    asked = prompts(2, seed=4, longest=20)
    driver = Driver(make_model(family), memory="paged", max_batch=2, step_tokens=16, cuda_graphs=False, flatten=None)
    assert driver.info.details["attention"] == "triton" and driver.info.details["flat"] is True
    numbers = []
    for prompt in asked:
        numbers.append(driver.submit(prompt, max_tokens=COUNT))
        driver.step()
    driver.finish()
    assert [driver.ids(number) for number in numbers] == [expected(model, prompt, COUNT) for prompt in asked]


def test_layers_are_fused_whichever_kernel_attends(kernel, monkeypatch):
    """Triton runs, but its attention does not serve the model: pages are gathered, and the layers are still fused."""
    model = make_model("qwen3")
    (asked,) = prompts(1, seed=4, longest=20)
    monkeypatch.setattr(attention_kernels, "choose", lambda *_: None)
    driver = Driver(make_model("qwen3"), memory="paged", cuda_graphs=False, flatten=None)
    assert driver.info.details["flat"] is True
    number = driver.submit(asked, max_tokens=COUNT)
    driver.finish()
    assert driver.ids(number) == expected(model, asked, COUNT)


def test_the_self_test_at_load_is_passed(kernel):
    layer = LayerShape(kv_heads=2, key_dim=24, value_dim=16, window=20, softcap=9.0, sinks=True)
    for lengths, chunk in (((1, 130), 0), ((40,), 33)):
        assert difference(kernel, torch.device("cpu"), torch.float32, layer, lengths, chunk) < 1e-4
