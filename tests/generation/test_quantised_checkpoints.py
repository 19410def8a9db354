"""Checkpoints that are quantised already, made here and loaded as they come: greedy ids are those of a model that has
the weights which they stand for."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import make_model, make_tokenizer, save

NEW = 10
WEIGHTS = "model.safetensors"
SIZES = {"hidden_size": 128, "intermediate_size": 128}
FP4 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The values of E2M1 by their codes; https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf"""


def rewrite(folder, model, change, **quantization):
    """Put in the place of tensors what `change` makes of each: (tensors of the file, what they stand for) or None."""
    found = {}
    for name, tensor in load_file(folder / WEIGHTS).items():
        made = change(name, tensor)
        if made is None:
            found[name] = tensor
            continue
        stored, meant = made
        found |= {name + end: value for end, value in stored.items()}
        model.state_dict()[name].copy_(meant)
    save_file(found, folder / WEIGHTS, metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))
    return model


def fp8(folder):
    def change(name, tensor):
        if not name.endswith("proj.weight"):
            return None
        scale = tensor.abs().max() / 448
        rounded = (tensor / scale).to(torch.float8_e4m3fn)
        return {"": rounded, "_scale_inv": scale.reshape(1, 1)}, rounded.float() * scale

    model = make_model("llama", **SIZES)
    save(model, folder)
    block = {"weight_block_size": [128, 128], "activation_scheme": "dynamic", "fmt": "e4m3"}
    return rewrite(folder, model, change, quant_method="fp8", **block)


def mxfp4(folder):
    def change(name, tensor):
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            return None
        turned = tensor.transpose(1, 2)
        blocks = turned.reshape(*turned.shape[:2], -1, 32)
        exponents = (blocks.abs().amax(-1) / 6).clamp_min(1e-9).log2().ceil()
        codes = ((blocks / 2 ** exponents[..., None])[..., None] - FP4).abs().argmin(-1)
        meant = (FP4[codes] * 2 ** exponents[..., None]).reshape(turned.shape).transpose(1, 2)
        pairs = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        return {"_blocks": pairs, "_scales": (exponents + 127).to(torch.uint8)}, meant

    model = make_model("gpt-oss", **SIZES | {"head_dim": 32, "intermediate_size": 64})
    save(model, folder)
    plain = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return rewrite(folder, model, change, quant_method="mxfp4", modules_to_not_convert=plain)


def compressed_tensors(folder):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    def change(name, tensor):
        if not name.endswith("proj.weight"):
            return None
        groups = tensor.reshape(tensor.shape[0], -1, 32)
        scales = groups.abs().amax(-1) / 7
        rounded = (groups / scales[..., None]).round().clamp(-8, 7).to(torch.int8)
        stored = {"_packed": pack_to_int32(rounded.reshape(tensor.shape), 4), "_scale": scales}
        meant = (rounded.float() * scales[..., None]).reshape(tensor.shape)
        return {**stored, "_shape": torch.tensor(tensor.shape)}, meant

    model = make_model("llama", **SIZES)
    save(model, folder)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    return rewrite(
        folder,
        model,
        change,
        quant_method="compressed-tensors",
        format="pack-quantized",
        quantization_status="compressed",
        ignore=["lm_head"],
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}},
    )


def through_transformers(folder, config, meaning):
    """A checkpoint that the package itself has rounded. meaning: module → the weight that it stands for, or None."""
    model = make_model("llama", **SIZES)
    save(model, folder / "whole")
    quantised = transformers.AutoModelForCausalLM.from_pretrained(
        folder / "whole", dtype=torch.float32, device_map="cpu", quantization_config=config
    )
    quantised.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    for name, module in quantised.named_modules():
        if (weight := meaning(module)) is not None:
            model.state_dict()[f"{name}.weight"].copy_(weight)
    return model


def torchao(folder):
    from torchao.quantization import Int8WeightOnlyConfig

    def meaning(module):
        weight = getattr(module, "weight", None)
        return weight.dequantize() if hasattr(weight, "qdata") else None

    return through_transformers(folder, transformers.TorchAoConfig(Int8WeightOnlyConfig(version=2)), meaning)


def bitsandbytes(folder):
    from bitsandbytes import functional, nn

    def meaning(module):
        weight = module.weight if isinstance(module, nn.Linear4bit) else None
        return None if weight is None else functional.dequantize_4bit(weight.data, weight.quant_state)

    config = transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float32)
    return through_transformers(folder, config, meaning)


PACKAGED = [compressed_tensors, torchao, bitsandbytes]


@pytest.mark.filterwarnings("ignore")
def test_fp8_on_a_cpu_says_that_it_is_unpacked_and_names_vllm(tmp_path, caplog):
    with torch.no_grad():
        fp8(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", threads=1, flatten=False)
    with caplog.at_level("INFO", logger="agent_server.generation"):
        _, info = load(config, lambda status: None, lambda files, size: None)
    assert info.details["slow"] == []
    assert (
        f"The FP8 weights of {tmp_path} are unpacked on cpu and take twice their size on disk. vLLM multiplies FP8 as it "
        "is on a GPU: pip install 'agent-server[vllm]', and serve it with --engine vllm." in caplog.messages
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [fp8, mxfp4, *(pytest.param(each, marks=pytest.mark.quantised) for each in PACKAGED)])
def test_a_quantised_checkpoint_generates_what_its_weights_stand_for(make, tmp_path):
    with torch.no_grad():
        model = make(tmp_path)
    config = EngineConfig(model=str(tmp_path), device="cpu", dtype="float32", threads=1, flatten=False)
    driver = Driver.around(*load(config, lambda status: None, lambda files, size: None))
    asked = prompts(3, seed=4, longest=40)
    numbers = [driver.submit(prompt, max_tokens=NEW) for prompt in asked]
    driver.finish()
    assert [driver.ids(number) for number in numbers] == [expected(model, prompt, NEW) for prompt in asked]
