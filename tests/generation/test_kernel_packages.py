"""Kernels that transformers takes from other packages: by its own decorator, with a package that is made for the test."""

import sys
from types import ModuleType

import pytest
import torch
import transformers.models.qwen3_next.modeling_qwen3_next as code
from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

from agent_server.generation.own_caches.kernel_packages import missing_packages, use_torch_functions
from tests.generation.fake_device import DEVICE
from tests.generation.harness import Driver
from tests.generation.tiny_models import make_model

DECODE = "torch_recurrent_gated_delta_rule"
PROMPT = "torch_chunk_gated_delta_rule"


@pytest.fixture
def with_package(monkeypatch):
    """As if flash-linear-attention had been installed when transformers was imported: its kernels refuse a CPU."""

    def kernel(query, key, value, **options):
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    package = ModuleType("fla")
    package.ops = ModuleType("fla.ops")
    package.ops.gated_delta_rule = ModuleType("fla.ops.gated_delta_rule")
    package.ops.gated_delta_rule.chunk_gated_delta_rule = kernel
    package.ops.gated_delta_rule.fused_recurrent_gated_delta_rule = kernel
    monkeypatch.setitem(sys.modules, "fla", package)
    for name, kernel_name in ((DECODE, "fused_recurrent_gated_delta_rule"), (PROMPT, "chunk_gated_delta_rule")):
        own = getattr(code, name)
        while hasattr(own, "__wrapped__"):
            own = own.__wrapped__
        monkeypatch.setattr(code, name, use_kernel_func_from_hub_with_fallback(kernel_name, "fla")(own))


def generate():
    driver = Driver(make_model("qwen3-next"))
    number = driver.submit([5, 6, 7] * 30, max_tokens=8)
    driver.finish()
    return driver.text(number), driver.end(number).reason


def test_a_cpu_does_not_use_kernels_for_gpus(request):
    without = generate()
    request.getfixturevalue("with_package")
    with pytest.raises(RuntimeError, match="active drivers"):
        getattr(code, PROMPT)(None, None, None)
    assert generate() == without
    assert without[1] == "length"


def test_a_gpu_names_the_packages_that_it_lacks(with_package, monkeypatch):
    model = make_model("qwen3-next")
    assert missing_packages(model) == []
    monkeypatch.setattr(type(model), "device", DEVICE)
    assert missing_packages(model) == ["causal-conv1d"]
    use_torch_functions(model)
    with pytest.raises(RuntimeError, match="active drivers"):
        getattr(code, DECODE)(torch.zeros(1), torch.zeros(1), torch.zeros(1))
