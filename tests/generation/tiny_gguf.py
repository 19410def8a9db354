"""Tiny models as GGUF files, with the names, the order and the offsets that llama.cpp's converter gives their tensors."""

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind

from tests.generation.tiny_models import make_model, make_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "llama-tied": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3-moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "granite-hybrid": gguf.MODEL_ARCH.GRANITE_HYBRID,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "gpt-oss": gguf.MODEL_ARCH.GPT_OSS,
    "stablelm": gguf.MODEL_ARCH.STABLELM,
    "bloom": gguf.MODEL_ARCH.BLOOM,
}
CHANGES = {
    "qwen3-moe": {"norm_topk_prob": True},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
}
"""What files of a family always mean."""
SPLITS = {"qwen3-moe": "qwen2", "lfm2": "lfm2"}
EXPERTS = {"experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"), "experts.down_proj": ("ffn_down_exps",)}
EXPERT_BIASES = {f"{name}_bias": parts for name, parts in EXPERTS.items()}
PERMUTED = ("llama", "mixtral", "granite", "granitemoehybrid")
"""Families whose queries and keys are interleaved."""
UNROUNDED = ("conv", "ffn_gate_inp", "ssm_a", "ssm_d", "ssm_norm")
"""Parts of names of tensors that stay in float32 in files of any format."""
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
"""Sizes that the formats with blocks of 256 weights can have."""


_WRITE = {
    str: gguf.GGUFWriter.add_string,
    float: gguf.GGUFWriter.add_float32,
    int: gguf.GGUFWriter.add_uint32,
    bool: gguf.GGUFWriter.add_bool,
}


def write_gguf(
    path, family="qwen3", kind=None, *, architecture=None, metadata=(), tensors=(), without=(), spoilt="", kinds=None,
    **changes,
):  # fmt: skip
    """Write a file, and return the float32 model that it means: one with the file's rounded weights. architecture: if
    not that of the family. kinds: formats of single tensors, by their names in the file."""
    model = make_model(family, **{"hidden_size": 64, **CHANGES.get(family, {}), **changes})
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):  # zero in a new model, as if the file had none
            torch.nn.init.normal_(parameter)
    config, architecture = model.config, architecture or ARCHITECTURES[family]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _write_sizes(writer, config)
    _write_tokenizer(writer, config, SPLITS.get(family, "qwen2"))
    for key, value in metadata:
        writer.kv_data[0].pop(key, None)
        _WRITE[type(value)](writer, key, value)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    state = model.state_dict()
    if spoilt:
        state[spoilt][0, 0] = float("nan")
    for name, tensor in state.items():
        if name in without or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        for own, values, put in _tensors(family, config, names, name, tensor):
            put(_write(writer, own, values, (kinds or {}).get(own, kind)))
    for name, values in tensors:
        writer.add_tensor(name, np.asarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_sizes(writer, config):
    heads = config.num_attention_heads
    if config.model_type == "bloom":
        writer.add_context_length(512)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_head_count(heads)
        writer.add_head_count_kv(heads)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    if config.model_type == "stablelm":
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    if config.model_type.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if config.model_type == "granitemoehybrid":
        writer.add_head_count_kv([0, config.num_key_value_heads])
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_inner_size(config.mamba_n_heads * config.mamba_d_head)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        return
    if config.model_type == "lfm2":
        writer.add_head_count_kv([0, config.num_key_value_heads])
        writer.add_shortconv_l_cache(config.conv_L_cache)
        return
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    if config.model_type.startswith(("gemma", "phi3")) and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if hasattr(config, "num_experts_per_tok"):
        writer.add_expert_count(getattr(config, "num_experts", None) or config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    if config.model_type == "gpt_oss":
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _write_tokenizer(writer, config, split):
    own = make_tokenizer()
    tokens = [f"[PAD{number}]" for number in range(config.vocab_size)]
    kinds = [gguf.TokenType.UNUSED] * config.vocab_size
    for text, number in sorted(own.get_vocab().items(), key=lambda each: each[0].startswith("<|im")):
        special = text.startswith("<|im")  # whose ids some letters have too
        tokens[number], kinds[number] = text, gguf.TokenType.CONTROL if special else gguf.TokenType.NORMAL
    tokens[300], kinds[300] = "hi", gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["h i"])
    writer.add_eos_token_id(own.token_to_id("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)


def _tensors(family, config, names, name, tensor):
    """(name in the file, values as the file has them, what takes back the values that it came to have) of a tensor."""
    values = tensor.numpy()
    if config.model_type == "gpt_oss" and ".experts." in name:
        yield from _gpt_oss_experts(name, values)
        return
    for end, parts in EXPERTS.items():
        if name.endswith(end):
            block = name.split(".")[2]
            for part, piece in zip(parts, np.split(values, len(parts), axis=1), strict=True):
                yield f"blk.{block}.{part}.weight", piece.copy(), lambda found, piece=piece: np.copyto(piece, found)
            return
    if ".shared_mlp." in name:  # Granite's gate and up, of which a file without experts has each as a tensor
        block, parts = name.split(".")[2], ("ffn_gate", "ffn_up") if ".input_linear." in name else ("ffn_down",)
        for part, piece in zip(parts, np.split(values, len(parts)), strict=True):
            yield f"blk.{block}.{part}.weight", piece.copy(), lambda found, piece=piece: np.copyto(piece, found)
        return
    known = name.replace(".dt_bias", ".dt_proj.bias")
    known = known.removeprefix("transformer.") if config.model_type == "bloom" else known
    own = names.get_name(known, try_suffixes=(".weight", ".bias"))
    own += ".weight" if name.endswith(".sinks") else ""
    to, back = lambda given: given, lambda found: found
    if config.model_type in PERMUTED and (".q_proj" in name or ".k_proj" in name):
        heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
        to, back = (lambda given: _turned(given, heads, 2, -1)), (lambda found: _turned(found, heads, -1, 2))
    elif config.model_type.startswith("gemma") and "norm" in name:
        to, back = (lambda given: given + 1), (lambda found: found - 1)
    elif config.model_type == "bloom" and ".query_key_value." in name:  # of each head in the model, of all in a file
        heads = config.num_attention_heads
        to, back = (lambda given: _regrouped(given, heads, 3)), (lambda found: _regrouped(found, 3, heads))
    elif name.endswith(".A_log"):
        to, back = (lambda given: -np.exp(given)[:, None]), (lambda found: np.log(-found)[:, 0])
    elif name.endswith(".mamba.D"):
        to, back = (lambda given: given[:, None]), (lambda found: found[:, 0])
    elif ".mamba.norm." in name:
        to, back = (lambda given: given.reshape(config.mamba_n_groups, -1)), (lambda found: found.reshape(-1))
    elif ".conv.conv." in name or name.endswith(".conv1d.weight"):
        to, back = (lambda given: given[:, 0]), (lambda found: found[:, None])
    yield own, np.ascontiguousarray(to(values)), lambda found: np.copyto(values, back(found))


def _gpt_oss_experts(name, values):
    """Gate and up in turns, and matrices transposed."""
    block, bias = name.split(".")[2], name.endswith("_bias")
    parts = (EXPERT_BIASES if bias else EXPERTS)[name.split("mlp.")[1]]
    for at, part in enumerate(parts):
        piece = values[..., at :: len(parts)]
        turned = piece if bias else piece.swapaxes(-1, -2)
        back = lambda found, piece=piece: np.copyto(piece, found if bias else found.swapaxes(-1, -2))  # noqa: E731
        yield f"blk.{block}.{part}.{'bias' if bias else 'weight'}", np.ascontiguousarray(turned), back


def _turned(values, heads, first, second):
    """Halves of each head, of which one follows the other, interleaved, or back."""
    split = values.reshape(heads, first, second, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def _regrouped(values, outer, inner):
    """Rows that are in `outer` groups of `inner` parts, with the groups inside the parts."""
    return values.reshape(outer, inner, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def _write(writer, name, values, kind):
    """Write a tensor, a matrix in the format; what it is worth then."""
    if kind is None or values.ndim < 2 or any(part in name for part in UNROUNDED):
        writer.add_tensor(name, values)
        return values
    if kind in (Kind.Q4_K, Kind.Q6_K):
        blocks = _random_blocks(values.shape, kind)
    elif kind == Kind.F16:
        writer.add_tensor(name, values.astype(np.float16))
        return values.astype(np.float16).astype(np.float32)
    else:
        blocks = gguf.quantize(values, kind)
    writer.add_tensor(name, blocks, raw_dtype=kind)
    return gguf.dequantize(blocks, kind)


def _random_blocks(shape, kind):
    """Blocks of formats that the package can only read, with scales that give weights of a usual size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    rows = int(np.prod(shape[:-1]))
    generator = np.random.default_rng(0)
    blocks = generator.integers(0, 256, (rows, shape[-1] // 256, size), np.uint8)
    scales = np.full((rows, shape[-1] // 256), 1e-4, np.float16).view(np.uint8).reshape(rows, -1, 2)
    if kind == Kind.Q4_K:
        blocks[..., :2] = scales
        blocks[..., 2:4] = scales
    else:
        blocks[..., -2:] = scales
    return blocks.reshape(*shape[:-1], -1)
