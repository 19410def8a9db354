"""The shapes of released models, with random weights."""

import torch
import transformers

from agent_server.generation.attention.batches import LayerShape

ATTENTION = {
    "qwen3-0.6b": (LayerShape(8, 128, 128), 2),
    "qwen3-8b": (LayerShape(8, 128, 128), 4),
    "qwen3-32b": (LayerShape(8, 128, 128), 8),
    "qwen2.5-7b": (LayerShape(4, 128, 128), 7),
    "qwen2.5-14b": (LayerShape(8, 128, 128), 5),
    "llama-3.2-1b": (LayerShape(8, 64, 64), 4),
    "phi-2": (LayerShape(32, 80, 80), 1),
    "phi-3-mini": (LayerShape(32, 96, 96), 1),
    "gemma-2-2b": (LayerShape(4, 256, 256, window=64, softcap=50.0), 2),
    "gemma-3-1b": (LayerShape(1, 256, 256, window=512), 4),
    "gpt-oss-20b": (LayerShape(8, 64, 64, window=128, sinks=True), 8),
    "deepseek-v2-lite": (LayerShape(16, 192, 128), 1),
    "deepseek-v3, absorbed": (LayerShape(1, 576, 512), 16),
}
"""One layer's keys and values, and how many query heads share a KV head."""
VOCABULARIES = [32000, 128256, 151936, 262144]
SHAPES = {
    "qwen3": ("Qwen3Config", {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True}),
    "llama": ("LlamaConfig", {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3TextConfig", {"hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512}),
    "qwen3-moe": ("Qwen3MoeConfig", {"hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}),
    "qwen3.5": ("Qwen3_5TextConfig", {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}),
}  # fmt: skip


def random_model(shape, device, *, layers=None, dtype=torch.bfloat16):
    name, numbers = SHAPES[shape]
    given = {**numbers, "vocab_size": 32000, "max_position_embeddings": 8192}
    if layers is not None:
        given["num_hidden_layers"] = layers
    torch.manual_seed(0)
    with device:
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**given), dtype=dtype)
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)
