"""Everything between `serve` and the first token that needs no numbers, on fake tensors of a CUDA device: that tensors
are where they belong, and that no step waits for the device but where its tokens are looked at.

Not reached: the load-time checks' comparisons (they need numbers), kernels in Triton, and graphs themselves.
"""

import json
import shutil
from typing import ClassVar

import pytest
import torch
from inline_snapshot import snapshot
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.attention.varlen import varlen_attn

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation import device as devices
from agent_server.generation.checkpoints import checkpoint
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading import attention_kernels, loader, probe
from agent_server.generation.loading.attention_kernels import VarlenKernel
from agent_server.generation.loading.loader import load
from agent_server.generation.lora import lora
from agent_server.generation.sampling.sampler import Sampler
from agent_server.generation.scheduling.messages import EngineConfig, RequestFailed
from agent_server.generation.scheduling.sequence import MAX_CHUNKS
from tests.generation.fake_device import DEVICE, GIB, HiddenWait, fake_cuda
from tests.generation.harness import Driver
from tests.generation.test_adapters import make_adapter
from tests.generation.tiny_models import make_model, save
from tests.slow import slow

FAMILIES = ("llama", "gemma2", "gpt-oss", "qwen3-moe")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints of real numbers, made before anything is fake."""
    kept = {family: tmp_path_factory.mktemp(family) for family in FAMILIES}
    return {family: save(make_model(family).to(torch.bfloat16), folder) for family, folder in kept.items()}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return make_adapter(tmp_path_factory.mktemp("red"), "red")


@pytest.fixture
def serve(folders, monkeypatch):
    """Loads a family as `serve` does and returns a driver over its core; steps are strict about waiting."""
    monkeypatch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # fake tensors are one thread's
    monkeypatch.setattr(devices.Arrival, "wait", arrived)
    monkeypatch.setattr(probe, "compare", same_kind)
    monkeypatch.setattr(checkpoint, "is_finite", lambda parameter: parameter.device == DEVICE)  # there are no numbers
    monkeypatch.setattr(lora, "is_finite", lambda tensor: True)
    capture = PackedRunner.capture
    monkeypatch.setattr(PackedRunner, "capture", lambda *given, **named: capture(*given, **named, how=Graphs))
    with fake_cuda(monkeypatch) as bridge:

        def start(family="llama", kernel=False, own_choice=False, **options):
            chosen = VarlenKernel(varlen_attn) if kernel else None
            if not own_choice:
                monkeypatch.setattr(attention_kernels, "choose", lambda *_: chosen)
                monkeypatch.setattr(
                    loader, "make_sampler", lambda rows, size, device, slow: Sampler(rows, size, device)
                )
            settings = {"device": "auto", "max_batch": 8, "kv_cache_bytes": 2**20, **options}
            config = EngineConfig(model=str(folders[family]), **settings)
            core, info = load(config, lambda status: None, lambda files, size: None)
            bridge.strict = True
            return Driver.around(core, info)

        yield start


def arrived(arrival):
    """Tokens as they would come: zeros, on the host."""
    assert all(isinstance(t, FakeTensor) and t.device.type == "cpu" for t in arrival._tensors), "they are on the host"
    with unset_fake_temporarily():
        return [torch.zeros(tuple(tensor.shape), dtype=tensor.dtype).tolist() for tensor in arrival._tensors]


class Graphs:
    """What is captured is run again with every replay, strict about waiting as CUDA is. `sizes` has the logits of each
    replay."""

    sizes: ClassVar[list[int]] = []

    def __init__(self):
        self.sizes.clear()

    def __call__(self, function):
        rows = len(function())

        def replay():
            self.sizes.append(rows)
            function()

        return replay

    def seconds(self, replay):
        return 1.0


def same_kind(expected, found, dtype):
    """What can be compared without numbers."""
    assert expected.shape == found.shape and expected.device == found.device == DEVICE


SAMPLINGS = {
    "greedy": {},
    "plain": {"temperature": 1.0},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "top_k": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "many": {"temperature": 0.8, "top_k": 200, "min_p": 0.1},
    "typical": {"temperature": 0.8, "typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "biased": {"logit_bias": {7: 2.0}, "min_tokens": 3, "logprobs": 2},
}


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_device_has_an_index_and_can_be_chosen(name, serve):
    driver = serve(device=name)
    assert driver.info.details["device"] == "cuda:0" and driver.info.details["batching"] == "packed"
    assert {parameter.device for parameter in driver.core.runner.model.parameters()} == {DEVICE}


def test_a_gpu_without_triton_says_of_every_slow_path_why(serve, monkeypatch, caplog, tmp_path):
    """What is chosen here is what is chosen on a GPU on which nothing but torch runs, and which has no C compiler."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    details = serve(own_choice=True).info.details
    chosen = ("engine", "device", "attention", "fused_layers", "cuda_graphs", "fused_sampler", "compiler")
    assert {name: details[name] for name in chosen} == snapshot(
        {
            "engine": "embedded",
            "device": "cuda:0",
            "attention": "torch",
            "fused_layers": False,
            "cuda_graphs": False,
            "fused_sampler": False,
            "compiler": "",
        }
    )
    compiler, sampler, attention, layers = details["slow"]
    assert compiler.startswith("There is no C compiler, which Triton needs to start its kernels: install gcc")
    assert sampler.startswith("The fused sampler cannot be used, and sampling is slower: ")
    assert attention.startswith("Attention gathers pages, one sequence after the other, and steps are not captured")
    assert "triton: " in attention and "varlen: " in attention
    assert layers.startswith("Layers are not fused, and decoding is slower: Triton does not run on cuda:0 (")
    warned = [each.message for each in caplog.records if each.levelname == "WARNING" and "generation" in each.name]
    assert warned == details["slow"]


QWEN3_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
"""As Qwen3's FP8 checkpoints have it."""


def test_fp8_on_a_gpu_names_the_package_of_its_kernels_and_vllm(serve, folders, monkeypatch, tmp_path):
    folder = shutil.copytree(folders["llama"], tmp_path / "fp8")
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": QWEN3_FP8}))
    monkeypatch.setattr(checkpoint, "_there", lambda module: False)
    with pytest.raises(EngineError) as refused:
        load(EngineConfig(model=str(folder), device="cuda"), lambda status: None)
    assert refused.value.message == (
        f"{folder} has FP8 weights, whose kernels for cuda:0 are fetched by: pip install kernels. vLLM multiplies FP8 as "
        "it is on a GPU: pip install 'agent-server[vllm]', and serve it with --engine vllm."
    )


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_graphs_that_are_switched_off_and_adapters_are_named(serve, adapter):
    slow = serve(kernel=True, cuda_graphs=False, lora=(f"red={adapter}",)).info.details["slow"]
    assert "Steps are not captured in CUDA graphs: the setting cuda_graphs is off." in slow
    assert "Steps with a LoRA adapter are neither fused nor captured in CUDA graphs." in slow


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {"overlap": False}),
        ("gemma2", {}),
        *slow([("gpt-oss", {}), ("qwen3-moe", {"overlap": False})]),
    ],
)
def test_no_step_mixes_devices_or_waits(family, options, serve):
    """Chunks of prompts beside decoding, every way of sampling in one batch, pausing, and prompts that share pages."""
    driver = serve(family, step_tokens=24, **options)
    numbers = [driver.submit([5 + n] * (8 * n + 3), max_tokens=4, **s) for n, s in enumerate(SAMPLINGS.values())]
    driver.step(3)
    driver.pause(numbers[0])
    driver.step(2)
    driver.resume(numbers[0])
    numbers.append(driver.submit([12] * 70, max_tokens=2))
    driver.finish()
    for number in numbers:
        assert not isinstance(driver.end(number), RequestFailed), driver.end(number)
        assert driver.end(number).reason == "length"
    driver.assert_clean()


def test_decoding_by_graphs_mixes_nothing_and_waits_for_nothing(serve):
    driver = serve(kernel=True, step_tokens=24)
    assert driver.info.details["cuda_graphs"] is True
    numbers = [driver.submit([5 + n] * (6 * n + 3), max_tokens=4, **s) for n, s in enumerate(SAMPLINGS.values())]
    driver.finish()
    assert [driver.end(number).reason for number in numbers] == ["length"] * len(numbers)


def test_a_long_prompt_beside_decoding_is_replayed_chunk_by_chunk(serve, monkeypatch):
    """Which steps are replayed, as (sequences that decode, tokens of chunks), and which are run as they are."""
    eager = []
    batch = PackedRunner._batch
    monkeypatch.setattr(
        PackedRunner, "_batch", lambda self, plan: (eager.append(tokens_of(plan)), batch(self, plan))[1]
    )
    driver = serve(kernel=True, step_tokens=200, chunk_tokens=16)
    eager.clear()
    numbers = [driver.submit([number] * 20, max_tokens=30) for number in (5, 6, 7)]
    driver.step()
    assert eager == [(0, 60)] and Graphs.sizes == [], "prompts that hold nobody up: one step of all"
    numbers.append(driver.submit([8] * 160, max_tokens=2))
    driver.finish()
    assert eager == [(0, 60)]
    assert Graphs.sizes[:11] == [4 + MAX_CHUNKS] * 10 + [4], "the prompt's tokens, 16 a step; then the next ones"
    assert [driver.end(number).reason for number in numbers] == ["length"] * 4


def tokens_of(plan):
    return len(plan.decodes), sum(chunk.length for chunk in plan.chunks)


@pytest.mark.parametrize("kernel", [False, True])
def test_the_largest_step_is_run_and_what_it_leaves_goes_to_the_cache(kernel, serve, caplog):
    """On 24 GiB, of which the tiny model can use a part; then on a card on which the largest step does not fit."""
    with caplog.at_level("INFO"):
        driver = serve(kernel=kernel, kv_cache_bytes=0, max_context=512)
    assert driver.info.details["kv_cache_tokens"] >= 2 * 8 * 512
    assert any(line.startswith("Memory of cuda:0 beside the weights: a step 0.29 GiB") for line in caplog.messages)
    number = driver.submit([5] * 70, max_tokens=2)
    driver.finish()
    assert driver.end(number).reason == "length"
    driver.assert_clean()


def test_steps_are_made_smaller_on_a_device_that_is_too_small_for_them(serve, monkeypatch, caplog):
    run, tried = PackedRunner.forward, []

    def exhausted(self, plan, last):
        tokens = sum(chunk.length for chunk in plan.chunks)
        tried.append(tokens)
        if tokens > 1024:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return run(self, plan, last)

    monkeypatch.setattr(PackedRunner, "forward", exhausted)
    driver = serve(kv_cache_bytes=0, max_context=512)
    assert tried[-3:] == [4096, 2048, 1024] and driver.core.scheduler.step_tokens == 1024
    assert "Steps of 2048 tokens do not fit on cuda:0; trying 1024." in caplog.messages


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
def test_adapters_beside_graphs(serve, adapter):
    """Rows with an adapter take the model's own forward, in one step with rows that have none."""
    driver = serve(kernel=True, lora=(f"red={adapter}",), step_tokens=24)
    before = len(Graphs.sizes)
    numbers = [driver.submit([5] * 30, max_tokens=4, adapter=name) for name in ("red", "")]
    driver.finish()
    assert [driver.end(number).reason for number in numbers] == ["length"] * 2
    number = driver.submit([5] * 30, max_tokens=4)
    driver.finish()
    assert driver.end(number).reason == "length" and len(Graphs.sizes) > before


@pytest.mark.parametrize("kernel", [False, True])
def test_guesses_wait_for_nothing_but_their_tokens(kernel, serve):
    """What comes back are zeros, which is what was guessed."""
    driver = serve(kernel=kernel, step_tokens=24)
    number = driver.submit([0] * 30, max_tokens=12, num_speculative_tokens=4, temperature=0.8, top_p=0.9, seed=1)
    beside = driver.submit([7] * 9, max_tokens=12)
    driver.finish()
    assert [driver.end(n).reason for n in (number, beside)] == ["length"] * 2
    assert driver.core.counters.spec_decode_num_accepted_tokens_total > 0


@pytest.mark.parametrize(("free", "what"), [(1000, "GiB for its weights alone"), (2 * GIB, "are free beside")])
def test_a_model_that_does_not_fit_on_one_gpu_names_the_way_to_several(free, what, serve, monkeypatch):
    """Weights that are larger than what is free; a step that is."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, free))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 4 * GIB)
    with pytest.raises(
        EngineError, match=rf"{what}.*one that needs several GPUs is served with --engine vllm"
    ) as error:
        serve(kv_cache_bytes=0, max_context=512)
    assert error.value.kind == "out_of_memory"


def test_a_scored_prompt_does_not_wait_either(serve):
    driver = serve(step_tokens=24)
    number = driver.submit([5] * 70, max_tokens=2, prompt_logprobs=2)
    driver.finish()
    assert len(driver.end(number).prompt_logprobs) == 70


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.cpu(),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: torch.ones(3).to(x.device),
        lambda x: torch.ones(3).to(x.device, non_blocking=True),
        lambda x: x + torch.ones(3),
        lambda x: x.index_select(0, torch.zeros(1, dtype=torch.int64)),
    ],
)
def test_what_waits_or_mixes_devices_in_a_step_is_seen(wait, serve, monkeypatch):
    """The check itself: one such line anywhere in a step ends the request."""
    driver = serve()
    run = driver.core.runner.forward

    def waiting(plan, last):
        wait(torch.ones(3, device=DEVICE))
        return run(plan, last)

    monkeypatch.setattr(driver.core.runner, "forward", waiting)
    number = driver.submit([5, 6], max_tokens=2)
    try:
        driver.finish()
    except HiddenWait:
        return
    assert isinstance(driver.end(number), RequestFailed)
