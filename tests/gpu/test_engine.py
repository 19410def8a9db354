"""The whole engine on a GPU: with its kernels, fused layers, graphs, and the memory that it plans by itself."""

import copy

import pytest
import torch

from agent_server.generation.execution.graphs import CudaCapture
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.loader import assemble
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files import ModelFiles
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_tokenizer
from tests.gpu.shapes import random_model

pytestmark = pytest.mark.gpu
GIB = 2**30


def drive(model, device, **options):
    files = ModelFiles(tokenizer=make_tokenizer())
    given = {"model": "random", "device": str(device), "max_batch": 8, "max_context": 2048, **options}
    return Driver.around(*assemble(EngineConfig(**given), model, files, device, lambda files, size: None))


def answers(driver, asked, count, **sampling):
    numbers = []
    for prompt in asked:
        numbers.append(driver.submit(prompt, max_tokens=count, **sampling))
        driver.step()
    driver.finish()
    driver.assert_clean()
    return [driver.ids(number) for number in numbers]


@pytest.mark.parametrize("shape", ["qwen3", "llama", "gemma3", "qwen3-moe"])
def test_tokens_are_those_of_generate(shape, device):
    """In float32, so that only ties could differ: prompts that arrive piecemeal, beside others that decode."""
    model = random_model(shape, device, layers=2, dtype=torch.float32)
    asked = prompts(10, seed=3, longest=700, vocab=30000)
    wanted = [expected(model, prompt, 24) for prompt in asked]
    driver = drive(model, device, kv_cache_bytes=GIB, step_tokens=256)
    details = driver.info.details
    # torch's grouped product of a mixture's experts reads its sizes on the host, but for bfloat16 on some GPUs.
    dense = shape != "qwen3-moe"
    assert (details["attention"], details["cuda_graphs"], details["flat"]) == ("triton", dense, True), details
    assert answers(driver, asked, 24) == wanted


@pytest.mark.skipif("torch.cuda.get_device_capability() not in ((9, 0), (10, 0))", reason="no grouped product there")
def test_a_mixture_of_experts_is_captured_in_bfloat16(device):
    driver = drive(random_model("qwen3-moe", device, layers=2), device, kv_cache_bytes=GIB)
    assert driver.info.details["cuda_graphs"] is True
    assert [len(ids) for ids in answers(driver, prompts(3, seed=2, longest=60, vocab=30000), 12)] == [12] * 3


def test_graphs_give_the_tokens_of_steps_without(device):
    model = random_model("qwen3", device, layers=4)
    asked = prompts(8, seed=5, longest=300, vocab=30000)
    found = []
    for graphs in (True, False):
        driver = drive(copy.deepcopy(model), device, kv_cache_bytes=GIB, cuda_graphs=graphs)
        assert driver.info.details["cuda_graphs"] is graphs
        found.append(answers(driver, asked, 64))
    same = sum(a == b for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))
    assert same >= 0.9 * 8 * 64, f"{same} of {8 * 64} tokens"


def test_sampled_tokens_are_repeatable_alone_and_in_company(device):
    model = random_model("qwen3", device, layers=2, dtype=torch.float32)
    driver = drive(model, device, kv_cache_bytes=GIB)
    asked = prompts(6, seed=7, longest=60, vocab=30000)
    sampling = {"temperature": 0.8, "top_p": 0.95, "top_k": 50, "seed": 11, "logprobs": 2}
    together = answers(driver, asked, 20, **sampling)
    assert [answers(driver, [prompt], 20, **sampling)[0] for prompt in asked] == together


def test_memory_is_planned_and_given_back(device):
    """Without kv_cache_bytes the engine measures a step and takes what is left, up to what it can use."""
    model = random_model("qwen3", device)
    driver = drive(model, device, max_batch=16, max_context=4096)
    tokens = driver.info.details["kv_cache_tokens"]
    assert tokens >= 16 * 4096
    asked = prompts(20, seed=9, longest=2000, vocab=30000)
    assert [len(ids) for ids in answers(driver, asked, 8)] == [8] * 20
    assert torch.cuda.mem_get_info(device)[0] > GIB


def test_more_requests_than_the_cache_holds(device):
    """Sequences are preempted and go on with the same tokens."""
    model = random_model("qwen3", device, layers=2, dtype=torch.float32)
    asked = prompts(8, seed=13, longest=200, vocab=30000)
    wanted = [expected(model, prompt, 60) for prompt in asked]
    driver = drive(model, device, kv_cache_bytes=800 * 2 * 2 * 8 * 128 * 4)
    assert answers(driver, asked, 60) == wanted
    assert driver.core.scheduler.preemptions > 0


def test_a_hybrid_model_is_served(device):
    """Linear attention beside full attention, on the model's own caches."""
    model = random_model("qwen3.5", device, layers=4, dtype=torch.float32)
    asked = prompts(4, seed=3, longest=100, vocab=30000)
    wanted = [expected(model, prompt, 16) for prompt in asked]
    assert answers(drive(model, device, kv_cache_bytes=GIB), asked, 16) == wanted


def test_a_failed_capture_leaves_the_device_usable(device):
    with pytest.raises(RuntimeError):
        CudaCapture()(lambda: torch.ones(4, device=device).nonzero())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    reserved = torch.cuda.memory_reserved()
    block = torch.empty(2**28, device=device)
    del block
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= reserved + 2**20
    assert float(torch.ones(4, device=device).sum()) == 4
    replay = CudaCapture()(lambda: torch.ones(4, device=device) * 2)
    replay()
    torch.cuda.synchronize()


def test_the_runner_is_packed(device):
    driver = drive(random_model("llama", device, layers=2), device, kv_cache_bytes=GIB)
    assert isinstance(driver.core.runner, PackedRunner)
    assert driver.core.runner.kernel.name == "triton" and driver.core.runner.flat is not None
