"""Matrices of GGUF files that are computed with in the file's own blocks: the same numbers, by torch's four-bit product."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import nn
from torch.nn.functional import linear as product

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.loading import gguf_weights, weights
from agent_server.generation.loading.gguf_blocks import FORMATS, WIDE, BlockEmbedding, BlockLinear, numbers
from agent_server.generation.loading.linear_layers import parameter_count
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files.gguf_files import read_gguf
from tests.generation.harness import Driver, prompts
from tests.generation.tiny_gguf import write_gguf

HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}
"""Where a block has its scales in float16; at its beginning where nothing else is said."""
WIDE_SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}


def random_rows(kind, rows=80, columns=512):
    """Any bytes are a block; with scales of a usual size. 80 rows: no multiple of a kernel's block."""
    size = FORMATS[kind][0]
    blocks = np.random.default_rng(1).integers(
        0, 256, (rows, columns // gguf.GGML_QUANT_SIZES[Kind[kind]][0], size), np.uint8
    )
    for start in HALVES.get(kind, (0,)):
        blocks[..., start : start + 2] = (
            np.full(blocks.shape[:2], 3e-3, np.float16).view(np.uint8).reshape(*blocks.shape[:2], 2)
        )
    rows = torch.from_numpy(blocks.reshape(rows, -1))
    return rows, torch.from_numpy(gguf.dequantize(rows.numpy(), Kind[kind]))


@pytest.mark.parametrize("kind", FORMATS)
def test_numbers_and_scales_are_exactly_the_files(kind):
    rows, values = random_rows(kind)
    assert torch.equal(numbers(rows, kind).values(), values)


@pytest.mark.parametrize("tokens", [1, WIDE])
@pytest.mark.parametrize("kind", FORMATS)
def test_a_layer_multiplies_with_the_numbers_of_the_file(kind, tokens):
    """Scales are rounded to bfloat16 and so are a few rows of inputs; the numbers are not rounded: four bits for eight
    would be off by a tenth."""
    rows, values = random_rows(kind)
    whole = nn.Linear(512, 80)
    made = BlockLinear(whole, rows, kind)
    inputs = torch.randn(tokens, 512, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        wanted, found = product(inputs, values, whole.bias), made(inputs)
    assert found.shape == wanted.shape and found.dtype == torch.float32
    assert float((found - wanted).norm() / wanted.norm()) < 0.005
    torch.testing.assert_close(made.weight, values, rtol=0.02, atol=0.02 * float(values.abs().max()))


def test_an_embedding_unpacks_the_rows_that_are_asked_for():
    rows, values = random_rows("Q6_K")
    ids = torch.tensor([[3, 79], [3, 0]])
    assert torch.equal(
        BlockEmbedding(nn.Embedding(80, 512, padding_idx=79), rows, "Q6_K", torch.float32)(ids), values[ids]
    )


def loaded(path, **settings):
    config = EngineConfig(model=str(path), device="cpu", threads=1, flatten=False, **settings)
    return Driver.around(*load(config, lambda status: None, lambda files, size: None))


def blocks_of(driver):
    return [module for module in driver.core.runner.model.modules() if isinstance(module, BlockLinear | BlockEmbedding)]


@pytest.mark.parametrize("family", ["llama", "llama-tied", "qwen2", "qwen3", "gemma2", "gemma3", "phi3"])
def test_a_file_is_served_in_its_own_blocks(family, tmp_path):
    """Its logits are those of the unpacked weights but for rounding, for a prompt's many rows and a token's one."""
    path = tmp_path / "tiny.gguf"
    model = write_gguf(path, family, Kind.Q4_K, **WIDE_SIZES)
    driver = loaded(path)
    assert not [module for module in driver.core.runner.model.modules() if type(module) is nn.Linear]
    assert driver.info.details["batching"] == "packed"
    assert parameter_count(driver.core.runner.model) == parameter_count(model)
    for length in (9, 100):
        asked = (prompts(1, seed=3, longest=60)[0] * 100)[:length]
        number = driver.submit(asked, max_tokens=1, logprobs=5)
        driver.finish()
        with torch.inference_mode():
            wanted = model(torch.tensor([asked])).logits[0, -1].log_softmax(-1)
        for token in driver.tokens(number)[0].alternatives:
            assert abs(float(wanted[token.id]) - token.logprob) < 0.15


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"quantize": "int8"}])
def test_weights_of_another_kind_are_made_where_they_are_asked_for(settings, tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0, hidden_size=64)
    assert not blocks_of(loaded(path, **settings))


def test_a_device_without_the_product_unpacks_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_weights, "rows_of_kernel", lambda: 0)
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


def test_a_scale_that_is_not_a_number_is_refused(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "qwen3", Kind.Q8_0, hidden_size=64)
    place = read_gguf(path).tensors["blk.1.ffn_down.weight"]
    data = bytearray(path.read_bytes())
    data[place.start : place.start + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    with pytest.raises(EngineError, match=r"tensor model.layers.1.mlp.down_proj.weight that are not finite"):
        loaded(path)
