"""Weights in the order of oneDNN's products: the same numbers, taken back where a model reads them, and served."""

import copy

import pytest
import torch

from agent_server.generation.device import multiplies_bfloat16
from agent_server.generation.loading import linear_layers
from agent_server.generation.loading.linear_layers import PackedLinear, linears, pack, parameter_count, unpack_read
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_models import make_model

SIZES = {"hidden_size": 64, "intermediate_size": 96}
pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_reorder_linear_weight") or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="oneDNN does not multiply bfloat16 on this CPU",
)


@pytest.fixture(autouse=True)
def multiplying(monkeypatch):
    """Emulated, the numbers are those of a CPU that has instructions for it."""
    monkeypatch.setattr(linear_layers, "multiplies_bfloat16", lambda: True)


def halved(family="qwen3", **sizes):
    return make_model(family, **SIZES, **sizes).bfloat16()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_products_and_weights_are_those_of_the_layer(rows, bias):
    linear = torch.nn.Linear(48, 33, bias=bias, dtype=torch.bfloat16)
    packed = PackedLinear(linear)
    inputs = torch.randn(2, rows, 48, generator=torch.Generator().manual_seed(1)).bfloat16()
    torch.testing.assert_close(packed(inputs), linear(inputs), rtol=0.01, atol=0.01)
    assert not packed.read
    assert torch.equal(packed.whole().weight, linear.weight) and packed.read
    assert torch.equal(packed.whole()(inputs), linear(inputs))


@torch.inference_mode()
def test_every_layer_of_a_model_is_packed_and_it_says_the_same():
    model = halved()
    ids = torch.tensor([prompts(1, seed=7, longest=60)[0]])
    wanted, count = model(input_ids=ids).logits, parameter_count(model)
    pack(model)
    assert not list(linears(model)) and len(list(linears(model, PackedLinear))) == 15
    assert parameter_count(model) == count
    torch.testing.assert_close(model(input_ids=ids).logits, wanted, rtol=0.05, atol=0.05)
    unpack_read(model)
    assert not list(linears(model))


def test_layers_whose_weights_are_read_are_put_back():
    model = halved()
    wanted = copy.deepcopy(model)
    pack(model)
    model.model.layers[1].mlp.up_proj.weight.sum()
    unpack_read(model)
    (put_back,) = (linear for linear, _ in linears(model))
    assert put_back is model.model.layers[1].mlp.up_proj
    assert torch.equal(put_back.weight, wanted.model.layers[1].mlp.up_proj.weight)


def test_weights_that_the_embedding_shares_are_packed_where_there_is_room_for_them_twice(monkeypatch):
    for free, packed in ((1 << 40, True), (0, False)):
        monkeypatch.setattr(linear_layers, "free_bytes", lambda device, free=free: free)
        model = halved(tie_word_embeddings=True)
        pack(model)
        assert isinstance(model.lm_head, PackedLinear) == packed
        assert type(model.model.layers[0].mlp.up_proj) is PackedLinear


def test_other_precisions_are_left_alone(monkeypatch):
    whole = make_model("qwen3", **SIZES)
    pack(whole)
    monkeypatch.setattr(linear_layers, "multiplies_bfloat16", lambda: False)
    half = halved()
    pack(half)
    assert not list(linears(whole, PackedLinear)) and not list(linears(half, PackedLinear))


@pytest.mark.skipif(not multiplies_bfloat16(), reason="it would not be packed")
@pytest.mark.parametrize("family", ["qwen3", "qwen3-next"])
def test_the_core_runs_on_packed_weights(family):
    model = halved() if family == "qwen3" else make_model(family).bfloat16()
    driver = Driver(model)
    assert list(linears(driver.core.runner.model, PackedLinear))
    numbers = [driver.submit(prompt, max_tokens=6) for prompt in prompts(3, seed=3, longest=40)]
    driver.finish()
    assert all(len(driver.ids(number)) == 6 for number in numbers)
    driver.assert_clean()


def test_rounded_weights_are_not_packed_before():
    driver = Driver(halved(), quantize="int8")
    assert not list(linears(driver.core.runner.model, PackedLinear))
