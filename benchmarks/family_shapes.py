"""Tiny shapes of the decoder-only families that transformers has: what `families.py` builds with random weights.

A family is transformers' own model type. Its configuration is `SMALL`, as far as it has such fields, and then its own
entry of `OWN`: enough layers for every kind of layer that the family has.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB = 320
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "head_dim": 16, "tie_word_embeddings": False,
    # experts
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "expert_ffn_hidden_size": 32,
    "moe_shared_expert_intermediate_size": 32,
    # latent attention, sparse indexers
    "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
    "index_topk": 16, "index_head_dim": 16, "index_n_heads": 64,
    # states
    "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_chunk_size": 16,
    "mamba_d_ssm": 96, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 24, "ssm_state_size": 16, "chunk_size": 16,
}  # fmt: skip

FULL, SLIDING, LINEAR, CHUNKED = "full_attention", "sliding_attention", "linear_attention", "chunked_attention"
HALF = {"layer_types": [LINEAR, FULL]}
LATENT: dict[str, Any] = {"num_key_value_heads": 4, "head_dim": 8}
MAMBA2 = {"num_hidden_layers": 3, "layer_types": [LINEAR, FULL, LINEAR]}
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite"), LATENT),
    **dict.fromkeys(("glm_moe_dsa", "minicpm3", "youtu"), LATENT),
    "bailing_hybrid": {**HALF, **LATENT, "layer_group_size": 2},
    **dict.fromkeys(("minimax", "olmo_hybrid", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"), HALF),
    "bamba": {"attn_layer_indices": [1]},
    "codegen": {"rotary_dim": 8},
    "dbrx": {"d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 512,
             "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
             "ffn_config": {"ffn_hidden_size": 64}},
    "deepseek_v4": {"num_hidden_layers": 3, "sliding_window": 24, "index_topk": 12,
                    "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention", SLIDING],
                    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 16}},
    "dots1": {"num_key_value_heads": 4, "n_shared_experts": 1},
    "exaone4": {"layer_types": [SLIDING, FULL], "sliding_window": 24},
    "exaone_moe": {"layer_types": [SLIDING, FULL], "sliding_window": 24},
    "gemma3n_text": {"num_hidden_layers": 4, "layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2,
                     "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16, "laurel_rank": 8,
                     "sliding_window": 24, "activation_sparsity_pattern": None},
    "gemma4_text": {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 16},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 24},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": MAMBA2,
    "helium": {"head_dim": 12},
    "jamba": {"num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "kimi_linear": {**LATENT, **HALF, "head_dim": 16, "linear_head_dim": 16, "linear_num_heads": 4},
    "lfm2": {"layer_types": ["conv", FULL], "block_auto_adjust_ff_dim": False},
    "lfm2_moe": {"layer_types": ["conv", FULL], "num_dense_layers": 1},
    "lfm3": {"num_hidden_layers": 3, "layer_types": ["conv", SLIDING, FULL], "sliding_window": 24},
    "llama4_text": {"num_hidden_layers": 4, "attention_chunk_size": 32, "interleave_moe_layer_step": 2,
                    "intermediate_size_mlp": 64, "floor_scale": 64, "layer_types": [CHUNKED, CHUNKED, CHUNKED, FULL]},
    "longcat_flash": {**LATENT, "num_layers": 1, "zero_expert_num": 2, "ffn_hidden_size": 64},
    "mamba2": {"num_heads": 4, "head_dim": 24, "state_size": 16, "n_groups": 1},
    "nemotron_h": {"n_groups": 1, "layers_block_type": [LINEAR, "moe", FULL, "mlp"]},
    "qwen4_exp_text": {**HALF, "indexer_n_heads": 64, "indexer_kv_heads": 1, "indexer_head_dim": 16,
                       "indexer_budget": 32, "indexer_compress_ratio": 4, "ple_layer_ids": [], "hc_lowrank": 8},
    "recurrent_gemma": {"lru_width": 48, "attention_window_size": 64, "num_hidden_layers": 3},
    "stablelm": {"partial_rotary_factor": 0.5},
    "xlstm": {"hidden_size": 64, "num_heads": 4, "num_blocks": 2, "qk_dim_factor": 1.0},
    "zamba": {"num_hidden_layers": 3, "layers_block_type": [LINEAR, "hybrid", LINEAR], "num_key_value_heads": 4,
              "n_mamba_heads": 2, "mamba_dt_rank": 4},
    "zamba2": {"num_hidden_layers": 3, "layers_block_type": [LINEAR, "hybrid", LINEAR], "num_key_value_heads": 4,
               "n_mamba_heads": 4, "adapter_rank": 8},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
FAMILIES = [
    "afmoe", "apertus", "arcee", "aria_text", "axk1", "axk2", "bailing_hybrid", "bamba", "biogpt", "bitnet", "bloom",
    "codegen", "cohere", "cohere2", "cohere2_moe", "cpmant", "ctrl", "cwm", "dbrx", "deepseek_v2", "deepseek_v3",
    "deepseek_v32", "deepseek_v4", "diffllama", "doge", "dots1", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe",
    "falcon", "falcon_h1", "falcon_mamba", "flex_olmo", "flint", "gemma", "gemma2", "gemma3_text", "gemma3n_text",
    "gemma4_text", "gemma4_unified_text", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt2",
    "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_neox_japanese", "gpt_oss", "gptj", "granite", "granite_swa",
    "granitemoe", "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "hy_v3", "hy_v4", "hyperclovax", "inkling2_text", "inkling_text", "internlm3", "iquestcoder",
    "jais2", "jamba", "jetmoe", "kimi_linear", "kolibri1", "laguna", "lfm2", "lfm2_moe", "lfm3", "llama",
    "llama4_text", "longcat_flash", "mamba", "mamba2", "mellum", "mimo_v2_flash", "minicpm3", "minimax", "minimax_m2",
    "minimax_m3_vl_text", "ministral", "ministral3", "mistral", "mixtral", "modernbert-decoder", "mpt", "nanochat",
    "nemotron", "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openai-gpt", "opt", "persimmon",
    "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
    "qwen3_next", "qwen4_exp_text", "rwkv", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
    "vaultgemma", "xglm", "xlstm", "youtu", "zamba", "zamba2", "zaya", "recurrent_gemma",
]  # fmt: skip


def make(family: str, seed: int = 0) -> Any:
    """A float32 model of the family with weights large enough that greedy decoding wanders."""
    kind = CONFIG_MAPPING[family]
    known = {field.name for field in fields(kind)} | set(getattr(kind, "attribute_map", {}))
    config = kind(**{**{name: value for name, value in SMALL.items() if name in known}, **OWN.get(family, {})})
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for module in model.modules():  # a padding token that is generated would be nothing: all scores would be equal
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].normal_(0, 0.02)
        for name, parameter in model.named_parameters():
            # A router of zeros (afmoe) leaves the choice of experts to how a device orders equal scores.
            if name.endswith("router.gate.weight") and not parameter.any():
                parameter.normal_(0, 0.02)
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    model.generation_config.eos_token_id = None
    return model
