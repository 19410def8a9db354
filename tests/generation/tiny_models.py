"""Tiny random models of many families, made on the spot."""

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 320
BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1}

PACKED = {
    "llama": ("LlamaConfig", {}),
    "llama-tied": ("LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 16}),
    "mistral-window": ("MistralConfig", {"sliding_window": 11}),
    "gemma2": ("Gemma2Config", {"head_dim": 16, "sliding_window": 9, "attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3TextConfig", {"head_dim": 16, "sliding_window": 7, "num_hidden_layers": 7}),
    "phi3": ("Phi3Config", {"original_max_position_embeddings": 1024}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.2}),
    "olmo2": ("Olmo2Config", {}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3MoeConfig", {"head_dim": 16, **EXPERTS}),
    "gpt-oss": (
        "GptOssConfig",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    ),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5}),
    "nemotron": ("NemotronConfig", {"partial_rotary_factor": 0.5, "hidden_act": "relu2"}),
    "gpt2": ("GPT2Config", {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 1024}),
}
OWN_CACHES = {
    "bloom": ("BloomConfig", {"n_layer": 2, "n_head": 4}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "granite-hybrid": (
        "GraniteMoeHybridConfig",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "num_local_experts": 0,
            "shared_intermediate_size": 96,
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        {
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "shared_expert_intermediate_size": 32,
            **EXPERTS,
        },
    ),
}
LONG = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + number / 8 for number in range(6)],
        "long_factor": [2.0 + number for number in range(6)],
        "original_max_position_embeddings": 48,
    },
    "max_position_embeddings": 512,
    "original_max_position_embeddings": 48,
}
ODD = {
    "phi3-long": ("Phi3Config", LONG),
    "bamba": (
        "BambaConfig",
        {
            "attn_layer_indices": [1],
            "mamba_n_heads": 4,
            "mamba_d_head": 24,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_expand": 2,
            "mamba_chunk_size": 16,
        },
    ),
    "phimoe-window": (
        "PhimoeConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 120},
    ),
}
"""Families on caches of their own, each for a reason of its own: positions, states, windows in masks alone, states that
stay in modules, temperatures that go by the length of the cache."""
ODD |= {
    "recurrent-gemma": (
        "RecurrentGemmaConfig",
        {"lru_width": 48, "attention_window_size": 64, "block_types": ["recurrent", "attention"], "head_dim": 16},
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            "num_hidden_layers": 2,
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 32,
            "floor_scale": 32,
            "num_local_experts": 2,
            "interleave_moe_layer_step": 2,
            "intermediate_size_mlp": 64,
            "head_dim": 16,
        },
    ),
}
OWN_CACHES |= {"rwkv": ("RwkvConfig", {"attention_hidden_size": 48, "context_length": 1024})}
RECORDED = set(PACKED)
"""Families whose forward can be recorded as one list of operations."""
FAMILIES = {**PACKED, **OWN_CACHES, **ODD}


def make_model(family, seed=0, **changes):
    """A float32 model with weights large enough that greedy decoding wanders."""
    name, own = FAMILIES[family]
    config = getattr(transformers, name)(**{**BASE, **own, **changes})
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    model.generation_config.eos_token_id = None
    return model


def make_tokenizer():
    """Bytes, a few merged words and special tokens; ids below VOCAB."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number + 4 for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    return tokenizer


def save(model, folder):
    """A folder that the loader can read."""
    model.save_pretrained(folder)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
