"""Matrices of GGUF files that are computed with in the file's own blocks, by ggml."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import nn
from torch.nn.functional import linear as product

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation import device
from agent_server.generation.loading import gguf_weights, loader, probe, weights
from agent_server.generation.loading.ggml import FORMATS, BlockMatrix, ExpertMatrices, ggml
from agent_server.generation.loading.gguf_blocks import BlockEmbedding, BlockExperts, BlockLinear
from agent_server.generation.loading.linear_layers import parameter_count
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files.gguf_files import read_gguf
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_gguf import write_gguf
from tests.slow import slow

WIDE_SIZES = {"hidden_size": 256, "intermediate_size": 512, "moe_intermediate_size": 256, "head_dim": 64}
FAMILIES = ("llama", "llama-tied", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "qwen3-moe", "mixtral", "gpt-oss")
KINDS = sorted(FORMATS)


def matrix(kind, rows=80, columns=512):
    """A matrix of random blocks whose values have a usual size, and its values as the package gguf computes them."""
    block, size = gguf.GGML_QUANT_SIZES[Kind[kind]]
    data = np.random.default_rng(1).integers(0, 256, (20_000, size), np.uint8)
    with np.errstate(all="ignore"):
        largest = np.abs(gguf.dequantize(data, Kind[kind])).max(1)
    usual = data[(largest > 0.5) & (largest < 2)][: rows * columns // block]  # a random scale may be no finite number
    data = np.resize(usual, (rows, columns // block * size))
    return BlockMatrix(ggml(), torch.from_numpy(data), kind, columns), torch.from_numpy(
        gguf.dequantize(data, Kind[kind])
    )


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_exactly_the_files(kind):
    made, values = matrix(kind)
    torch.testing.assert_close(made.values(), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tokens", [1, 4, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_multiplies_with_the_values_of_the_file(kind, tokens):
    """Inputs are rounded to eight bits."""
    made, values = matrix(kind)
    whole = nn.Linear(512, 80)
    layer = BlockLinear(whole, made)
    inputs = torch.randn(tokens, 512, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        wanted, found = product(inputs, values, whole.bias), layer(inputs)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    assert float((found - wanted).norm() / wanted.norm()) < 0.01
    torch.testing.assert_close(layer.weight, values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_multiplied_by_the_matrices_of_their_experts(kind, tokens):
    """A token's input is the same for all of its experts, or another for each of them."""
    made, _ = matrix(kind, rows=3 * 48)
    rows = made._rows
    experts = ExpertMatrices(ggml(), rows, kind, 512, 3)
    alone = [BlockMatrix(ggml(), part, kind, 512) for part in rows.split(48)]
    ids = torch.randint(0, 3, (tokens, 2), generator=torch.Generator().manual_seed(1))
    for each in (1, 2):
        inputs = torch.randn(tokens, each, 512, generator=torch.Generator().manual_seed(2))
        found = experts.multiply(inputs, ids)
        assert found.shape == (tokens, 2, 48)
        for token, place in np.ndindex(tokens, 2):
            wanted = alone[ids[token, place]].multiply(inputs[token, place if each == 2 else 0][None])[0]
            assert torch.allclose(found[token, place], wanted, rtol=1e-3, atol=1e-3 * float(wanted.abs().max()))


def test_an_embedding_unpacks_the_rows_that_are_asked_for():
    made, values = matrix("Q6_K")
    ids = torch.tensor([[3, 79], [3, 0]])
    assert torch.equal(BlockEmbedding(nn.Embedding(80, 512, padding_idx=79), made, torch.float32)(ids), values[ids])


def loaded(path, **settings):
    config = EngineConfig(**{"model": str(path), "device": "cpu", "threads": 1, "flatten": False, **settings})
    return Driver.around(*load(config, lambda status: None, lambda files, size: None))


def blocks_of(driver):
    kinds = BlockLinear | BlockEmbedding | BlockExperts
    return [module for module in driver.core.runner.model.modules() if isinstance(module, kinds)]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_is_served_in_its_own_blocks(family, tmp_path):
    """Its logits are those of the unpacked weights but for rounding, for a prompt's many rows and a token's one."""
    path = tmp_path / "tiny.gguf"
    model = write_gguf(path, family, Kind.Q4_K, **WIDE_SIZES)
    driver = loaded(path)
    assert not [module for module in driver.core.runner.model.modules() if type(module) is nn.Linear]
    assert driver.info.details["batching"] == "packed"
    assert parameter_count(driver.core.runner.model) == parameter_count(model)
    for length in (9, 100):
        assert_same_scores(driver, model, (prompts(1, seed=3, longest=60)[0] * 100)[:length], 0.15)


def assert_same_scores(driver, model, asked, tolerance):
    """The likeliest next tokens have the log probabilities of the unpacked weights."""
    number = driver.submit(asked, max_tokens=1, logprobs=5)
    driver.finish()
    with torch.inference_mode():
        wanted = model(torch.tensor([asked])).logits[0, -1].log_softmax(-1)
    for token in driver.tokens(number)[0].alternatives:
        assert abs(float(wanted[token.id]) - token.logprob) < tolerance


def test_matrices_that_are_rows_of_one_layer_keep_their_blocks(tmp_path):
    """Gate and up of Granite's hybrid models, which are two tensors in a file."""
    path = tmp_path / "tiny.gguf"
    model = write_gguf(path, "granite-hybrid", Kind.Q8_0)
    driver = loaded(path)
    layers = driver.core.runner.model.model.layers
    assert all(isinstance(layer.shared_mlp.input_linear, BlockLinear) for layer in layers)
    assert_same_scores(driver, model, prompts(1, seed=3, longest=60)[0], 0.1)


def test_a_matrix_that_is_arranged_by_its_columns_is_unpacked(tmp_path):
    """BLOOM's queries, keys and values."""
    path = tmp_path / "tiny.gguf"
    model = write_gguf(path, "bloom", Kind.Q8_0)
    driver = loaded(path)
    assert blocks_of(driver)
    assert_same_scores(driver, model, prompts(1, seed=3, longest=60)[0], 0.1)


def test_a_model_that_amplifies_rounding_is_tested_with_exact_products(tmp_path, monkeypatch):
    """Gemma 3 270M changes its logits by a tenth with the number of tokens that ggml multiplies at once."""
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "gemma3", Kind.Q4_K, **WIDE_SIZES)
    monkeypatch.setattr(probe, "LOW_PRECISION", -1.0)
    driver = loaded(path)
    assert driver.info.details["batching"] == "packed"
    assert not any(getattr(module, "exact", False) for module in blocks_of(driver))


@pytest.mark.parametrize("family", ["llama", "qwen3-moe", *slow(FAMILIES[1:-3] + FAMILIES[-2:])])
def test_a_recorded_forward_computes_with_the_same_blocks(family, tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, family, Kind.Q4_K, **WIDE_SIZES)
    driver = loaded(path, flatten=None)
    asked = prompts(1, seed=3, longest=60)[0]

    def answer(tenant):
        number = driver.submit(asked, max_tokens=6, logprobs=5, tenant=tenant)
        driver.finish()
        return [{each.id: each.logprob for each in token.alternatives} for token in driver.tokens(number)]

    before = answer("one")
    assert driver.core.runner.flat is None
    driver.core.record()
    assert driver.core.runner.flat is not None
    assert all(getattr(module, "marker", None) is None for module in blocks_of(driver))
    monkeypatch.setattr(BlockLinear, "forward", None)
    for one, other in zip(before, answer("another"), strict=True):
        assert one == pytest.approx(other, abs=0.05)


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"quantize": "int8"}])
def test_weights_of_another_kind_are_made_where_they_are_asked_for(settings, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0, hidden_size=64)
    assert not blocks_of(loaded(path, **settings))


@pytest.mark.parametrize(("kind", "dtype"), [(Kind.Q4_K, "float32"), (Kind.F16, "bfloat16")])
def test_activations_are_in_float32_unless_experts_are_unpacked(kind, dtype, tmp_path, monkeypatch):
    """bfloat16 would round what ggml rounds again. Unpacked weights would take twice the memory in float32."""
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(loader, "SMALL_PARAMETERS", 0)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3-moe", Kind.Q4_K, kinds={"blk.0.ffn_down_exps.weight": kind}, **WIDE_SIZES)
    driver = loaded(path)
    assert blocks_of(driver)
    assert (driver.info.details["dtype"], driver.info.details["kv_cache_dtype"]) == (dtype, "bfloat16")


def test_a_layer_of_experts_with_a_matrix_in_another_format_is_unpacked(tmp_path):
    path = tmp_path / "tiny.gguf"
    model = write_gguf(path, "qwen3-moe", Kind.Q8_0, kinds={"blk.1.ffn_down_exps.weight": Kind.F16}, **WIDE_SIZES)
    driver = loaded(path)
    assert [isinstance(module, BlockExperts) for module in blocks_of(driver)].count(True) == 1
    number = driver.submit([5, 6, 7], max_tokens=1, logprobs=5)
    driver.finish()
    with torch.inference_mode():
        wanted = model(torch.tensor([[5, 6, 7]])).logits[0, -1].log_softmax(-1)
    for token in driver.tokens(number)[0].alternatives:
        assert abs(float(wanted[token.id]) - token.logprob) < 0.15


def test_a_machine_without_ggml_unpacks_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_weights, "ggml", lambda: None)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0, hidden_size=64)
    assert not blocks_of(loaded(path))


def test_memory_is_asked_for_what_the_file_takes(tmp_path, monkeypatch):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q4_K, **WIDE_SIZES)
    monkeypatch.setattr(weights, "free_bytes", lambda device: 2 * path.stat().st_size)
    assert blocks_of(loaded(path))
    with pytest.raises(EngineError, match="needs about"):
        loaded(path, dtype="float32")


@pytest.mark.parametrize(("kind", "fits"), [(Kind.Q4_K, True), (Kind.F16, False)])
def test_experts_are_counted_as_they_are_served(kind, fits, tmp_path, monkeypatch):
    """In the file's blocks, or unpacked."""
    path = tmp_path / "tiny.gguf"
    kinds = {f"blk.{layer}.ffn_up_exps.weight": kind for layer in (0, 1)}
    write_gguf(path, "qwen3-moe", Kind.Q4_K, kinds=kinds, **WIDE_SIZES)
    monkeypatch.setattr(weights, "free_bytes", lambda device: int(1.5 * path.stat().st_size))
    if fits:
        assert blocks_of(loaded(path))
    else:
        with pytest.raises(EngineError, match="needs about"):
            loaded(path)


@pytest.mark.parametrize(
    ("family", "name", "own"),
    [
        ("qwen3", "blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"),
        ("qwen3-moe", "blk.1.ffn_up_exps.weight", "model.layers.1.mlp.experts.gate_up_proj"),
    ],
)
def test_a_scale_that_is_not_a_number_is_refused(family, name, own, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, family, Kind.Q8_0, **WIDE_SIZES)
    place = read_gguf(path).tensors[name]
    data = bytearray(path.read_bytes())
    data[place.start : place.start + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(EngineError, match=f"tensor {own} that are not finite"):
        loaded(path)
