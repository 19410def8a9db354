"""Weights in eight and four bits: close to the whole ones, the same alone and in a batch, and really used."""

from itertools import takewhile
from operator import eq

import pytest
import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation import device
from agent_server.generation.loading import loader, quantised
from agent_server.generation.loading.linear_layers import parameter_count
from agent_server.generation.loading.memory_plan import CPU_CACHE, MemoryDemand, cpu_tokens
from agent_server.generation.recorded.flat import flatten, rewrite_around_products
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model, save
from tests.slow import slow

KINDS = ("int8", "int4")
SIZES = {"hidden_size": 64, "intermediate_size": 96}
CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kernel_of_a_cpu_multiplies_with_what_was_rounded(kind, dtype):
    """Held against the rounded weights, which leaves the rounding of the inputs alone."""
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    inputs = torch.randn(5, 96, generator=torch.Generator().manual_seed(2)).to(dtype)
    if kind == "int8":
        whole, scales = quantised.rounded(weight)
        restored = whole * scales[:, None]
    else:
        whole, scales = quantised.grouped(weight)
        scale, middle = scales.transpose(0, 1).unbind(-1)
        restored = ((whole.unflatten(1, (-1, quantised.GROUP)) - 8) * scale[..., None] + middle[..., None]).flatten(1)
    wanted = inputs.float() @ restored.T
    for kernel in quantised.KERNELS[kind]:
        found = kernel(weight)(inputs)
        assert found.dtype == dtype
        assert float((found.float() - wanted).norm() / wanted.norm()) < 0.015


def test_without_vnni_inputs_have_a_bit_less_and_are_as_right(monkeypatch):
    monkeypatch.setattr(quantised, "multiplies_int8", lambda: False)
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(1))
    assert quantised._errors(quantised.packed_x86(weight), weight, [64])[0] < 0.03


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantised_model_says_nearly_what_the_whole_one_says(kind):
    model = make_model("qwen3", **SIZES)
    ids = torch.tensor([prompts(1, seed=7, longest=60)[0]])
    with torch.inference_mode():
        wanted = model(input_ids=ids).logits
        before = parameter_count(model)
        quantised.quantise(model, kind)
        found = model(input_ids=ids).logits
    similarity = torch.nn.functional.cosine_similarity(wanted, found, dim=-1).mean()
    assert {"int8": 0.995, "int4": 0.85}[kind] < similarity < 0.999999
    assert parameter_count(model) == before
    assert not any(type(module) is torch.nn.Linear for module in model.modules())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_served_in_batches_as_it_is_alone(kind):
    """A token's result does not depend on the others in the batch: every token's inputs are rounded by themselves."""
    asked = prompts(6, seed=3)
    driver = Driver(make_model("llama", **SIZES), quantize=kind, max_batch=8, step_tokens=64)
    assert driver.info.details["quantized"] == kind and driver.info.details["batching"] == "packed"
    alone = []
    for prompt in asked:
        number = driver.submit(prompt, max_tokens=12)
        driver.finish()
        alone.append(driver.ids(number))
    together = [driver.submit(prompt, max_tokens=12, tenant="another") for prompt in asked]
    driver.finish()
    assert [driver.ids(number) for number in together] == alone
    driver.assert_clean()


@pytest.mark.parametrize(
    ("family", "dtype", "alike"),
    [
        ("llama", torch.float32, 12),
        ("gemma3", torch.bfloat16, 4),
        *slow((family, torch.float32, 12) for family in ("qwen2", "qwen3", "gemma3", "phi3")),
        *slow((family, torch.bfloat16, 4) for family in ("llama", "qwen3", "phi3")),
    ],
)
def test_a_recorded_forward_multiplies_by_the_rounded_weights(family, dtype, alike):
    """Played back, it gives the tokens that the model's own modules give, until a sum that is rounded in another place
    decides between two that are nearly as likely, which depends on the CPU; and it holds the whole weights no longer."""
    asked = prompts(4, seed=5)
    found = []
    for played in (False, True):
        driver = Driver(make_model(family, **SIZES).to(dtype), quantize="int8", max_batch=8, flatten=played)
        assert driver.info.details["flat"] is played
        numbers = [driver.submit(prompt, max_tokens=12) for prompt in asked]
        driver.finish()
        found.append([driver.ids(number)[:alike] for number in numbers])
    equal = [len(list(takewhile(bool, map(eq, own, recorded)))) for own, recorded in zip(*found, strict=True)]
    assert sum(equal) >= alike * len(asked) / 2, found
    recording = driver.core.runner.flat
    assert not recording._graph.find_nodes(op="call_function", target=torch.nn.functional.linear)
    sizes = {tuple(constant.shape) for constant in recording._constants.values()}
    assert not {(96, 64), (64, 96)} & sizes


def test_a_recording_whose_weights_are_to_be_rounded_copies_none():
    """Weights of a file are read as they are needed; all of them joined at once would be another model in memory."""
    model = make_model("llama", **SIZES)
    own = {parameter.data_ptr() for parameter in model.parameters()}
    recording = flatten(model, rewrite_around_products)
    assert recording is not None
    matrices = {constant.data_ptr() for constant in recording._constants.values() if constant.dim() == 2}
    assert len(matrices) > 10 and matrices <= own


def test_a_model_with_states_of_its_own_is_quantised_too():
    family = "lfm2"
    driver = Driver(make_model(family), quantize="int8")
    number = driver.submit([5, 6, 7], max_tokens=4)
    driver.finish()
    assert len(driver.ids(number)) == 4
    assert any(isinstance(module, quantised.QuantisedLinear) for module in driver.core.runner.model.modules())


@pytest.mark.parametrize("played", [False, True])
def test_a_weight_that_loses_too_much_stays_as_it_is_and_the_rest_is_rounded(played, caplog):
    """Rows of one large weight and many below half of a step of their scale, which would all become zero. The layer
    shares its input with two others, which are rounded all the same."""
    model = make_model("llama", hidden_size=1024, intermediate_size=96)
    weak = model.model.layers[1].self_attn.k_proj
    with torch.no_grad():
        weak.weight.copy_(0.0038 * torch.randn(weak.weight.shape, generator=torch.Generator().manual_seed(1)).sign())
        weak.weight[:, 0] = 1.0
    asked = prompts(1, seed=5)[0]
    driver = Driver(model, quantize="int8", max_batch=2, flatten=played)
    number = driver.submit(asked, max_tokens=4)
    driver.finish()
    assert len(driver.ids(number)) == 4
    layers = driver.core.runner.model.model.layers
    assert type(layers[1].self_attn.k_proj) is torch.nn.Linear
    for rounded in (layers[1].self_attn.q_proj, layers[1].self_attn.v_proj, layers[0].self_attn.k_proj):
        assert isinstance(rounded, quantised.QuantisedLinear)
    assert "stay in float32: model.layers.1.self_attn.k_proj (packed_" in caplog.text


def test_a_device_without_kernels_says_so(monkeypatch):
    def missing(weight):
        raise NotImplementedError("aten::_packed is not there")

    def wrong(weight):
        return lambda inputs: inputs @ weight.T * 2

    monkeypatch.setitem(quantised.KERNELS, "int8", [missing, wrong])
    with pytest.raises(EngineError) as raised:
        quantised.quantise(make_model("llama"), "int8")
    assert raised.value.message == (
        f"--quantize int8 has no kernel on cpu in torch {torch.__version__}: aten::_packed is not there; "
        "wrong is off by 100.0%"
    )


def test_a_gpu_is_not_asked_for_rounded_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(loader, "choose_device", lambda name: torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    config = EngineConfig(model=str(save(make_model("llama"), tmp_path)), quantize="int4", threads=1)
    with pytest.raises(EngineError) as raised:
        loader.load(config, lambda status: None, lambda files, size: None)
    assert raised.value.message == (
        "--quantize int4 is for CPUs, not for cuda:0. Serve an FP8 or AWQ checkpoint of the model with --engine vllm, "
        "which has kernels for them."
    )


# the precision that a CPU computes in


@pytest.mark.parametrize(
    ("stored", "native", "least", "wanted"),
    [
        (torch.bfloat16, True, 0, "bfloat16"),
        (torch.float16, True, 0, "bfloat16"),
        (torch.float32, True, 0, "float32"),
        (torch.bfloat16, False, 0, "float32"),
        (torch.bfloat16, True, 10**9, "float32"),
    ],
)
def test_a_cpu_computes_in_what_it_multiplies(stored, native, least, wanted, tmp_path, monkeypatch):
    """In bfloat16 if it has instructions for it, the checkpoint has no more bits, and it is not tiny."""
    folder = save(make_model("llama").to(stored), tmp_path)
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda: native)
    monkeypatch.setattr(loader, "SMALL_PARAMETERS", least)
    config = EngineConfig(model=str(folder), device="cpu", threads=1)
    _, info = loader.load(config, lambda status: None, lambda files, size: None)
    assert info.details["dtype"] == wanted


def test_arm_is_asked_by_its_own_library(monkeypatch):
    monkeypatch.setattr(device.platform, "machine", lambda: "aarch64")
    for answer in (True, False):
        monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda answer=answer: answer, raising=False)
        assert device.multiplies_bfloat16() == (answer and torch.backends.mkldnn.is_available())


# memory for keys and values on a machine that has other work


@pytest.mark.parametrize(
    ("weights", "context", "free", "tokens"),
    [
        (0, 100, 2**40, CPU_CACHE // 1000),  # next to no weights
        (10**9, 100, 2**40, (CPU_CACHE + 2 * 10**9) // 1000),  # in proportion to them
        (10**6, 10**6, 2**40, 10**6),  # one whole sequence at least
        (10**9, 100, 10**6, 300),  # and never more than a share of what is free
    ],
)
def test_a_cpu_keeps_so_many_tokens(weights, context, free, tokens):
    assert cpu_tokens(free, weights, MemoryDemand(1000, 1, requested_tokens=10**9), context) == tokens


def test_a_tiny_model_takes_no_more_than_it_needs():
    assert cpu_tokens(2**40, 10**6, MemoryDemand(1000, 1, requested_tokens=500), 100) == 500
