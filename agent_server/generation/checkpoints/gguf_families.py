"""GGUF files of architectures that transformers does not read: their configurations.

The keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    Gemma2TensorProcessor,
    LlamaTensorProcessor,
    Qwen2MoeTensorProcessor,
    TensorProcessor,
)

from agent_server.generation.checkpoints.gguf_tensors import (
    DeepseekTensors,
    FalconTensors,
    Gemma3nTensors,
    Gemma4Tensors,
    GptOssTensors,
    GraniteHybridTensors,
    GraniteSharedTensors,
    Lfm2MoeTensors,
    MixtralTensors,
    NemotronTensors,
    NeoxTensors,
    SharedExpertTensors,
    StateTensors,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from agent_server.model_files.gguf_files import GgufFile

VALUES = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_used_count": "num_experts_per_tok",
}
"""The names that most configurations have for a file's values."""


def _sliding_layers(file: GgufFile) -> dict[str, object]:
    """Which layers see a window only."""
    pattern = file.setting("attention.sliding_window_pattern")
    if not isinstance(pattern, list):
        return {}
    return {"layer_types": ["sliding_attention" if each else "full_attention" for each in pattern]}


def _query_norm(file: GgufFile) -> dict[str, object]:
    return {"use_qk_norm": "blk.0.attn_q_norm.weight" in file.tensors}


def _mistral3(file: GgufFile) -> dict[str, object]:
    """Ministral 3 scales its positions; Mistral Small 3.1 and 3.2, whose files name the same architecture, do not."""
    return {} if file.setting("rope.scaling.type") else {"model_type": "mistral"}


def _routing(file: GgufFile) -> dict[str, object]:
    """How a router of the kind of DeepSeek's chooses experts."""
    return {
        "norm_topk_prob": bool(file.setting("expert_weights_norm")),
        "n_group": file.setting("expert_group_count") or 1,
        "topk_group": file.setting("expert_group_used_count") or 1,
    }


def _olmo2(file: GgufFile) -> dict[str, object]:
    layers = _sliding_layers(file)
    return {"model_type": "olmo3", **layers} if layers else {}


def _always_normed(file: GgufFile) -> dict[str, object]:
    return {"norm_topk_prob": True}  # as all models of the architecture do, whose files have no word for it


BIASES = {
    "attention_bias": ("attn_q", "attn_qkv", "attn_q_a", "attn_kv_a_mqa"),
    "use_bias": ("attn_q",),
    "attention_out_bias": ("attn_output",),
    "mlp_bias": ("ffn_down",),
}
"""Names of configurations for biases, of which each has some, and the parts of a layer that have the bias."""


def biases(file: GgufFile) -> dict[str, bool]:
    """Return which biases the file's model has, by their names in configurations."""
    return {name: any(f"blk.0.{part}.bias" in file.tensors for part in parts) for name, parts in BIASES.items()}


SIGMOID = 2
"""`expert_gating_func` of files whose router scores experts independently of each other (DeepSeek V3)."""


def _deepseek(file: GgufFile) -> dict[str, object]:
    rotated = file.setting("rope.dimension_count")
    widths = file.setting("attention.key_length_mla") or file.setting("attention.key_length")
    if not isinstance(rotated, int) or not isinstance(widths, int):
        raise KeyError(f"{file.architecture}.rope.dimension_count and attention.key_length")
    values: dict[str, object] = {
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": widths - rotated,
        "v_head_dim": file.setting("attention.value_length_mla") or file.setting("attention.value_length"),
        "q_lora_rank": file.setting("attention.q_lora_rank"),
        "num_key_value_heads": file.setting("attention.head_count"),
        "head_dim": rotated,
        **_routing(file),
    }
    if file.setting("expert_gating_func") == SIGMOID or any(
        name.endswith(".exp_probs_b.bias") for name in file.tensors
    ):
        values["model_type"] = "deepseek_v3"
    elif values["n_group"] != 1:
        values["topk_method"] = "group_limited_greedy"
    return values


def _lfm2_moe(file: GgufFile) -> dict[str, object]:
    heads = file.setting("attention.head_count_kv")
    if not isinstance(heads, list):
        raise KeyError(f"{file.architecture}.attention.head_count_kv of each layer")
    return {
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else "conv" for each in heads],
        "use_expert_bias": any(name.endswith(".exp_probs_b.bias") for name in file.tensors),
    }


def _gemma4(file: GgufFile) -> dict[str, object]:
    sliding, heads = file.setting("attention.sliding_window_pattern"), file.setting("attention.head_count_kv")
    widths = file.setting("feed_forward_length")
    if not isinstance(sliding, list):
        raise KeyError(f"{file.architecture}.attention.sliding_window_pattern")
    full_layers = [number for number, each in enumerate(sliding) if not each]
    values = _sliding_layers(file)
    if isinstance(heads, list):
        values["num_key_value_heads"] = heads[sliding.index(True)]
        values["num_global_key_value_heads"] = heads[full_layers[0]]
    if isinstance(widths, list):  # layers that share earlier keys and values are twice as wide
        values["intermediate_size"], values["use_double_wide_mlp"] = widths[0], widths[0] != widths[-1]
    values["attention_k_eq_v"] = f"blk.{full_layers[0]}.attn_v.weight" not in file.tensors
    values["enable_moe_block"] = bool(file.setting("expert_count"))
    if (places := file.tensors.get("per_layer_token_embd.weight")) is not None:
        values["vocab_size_per_layer_input"] = places.shape[0]
    return values


def _gemma3n(file: GgufFile) -> dict[str, object]:
    scales = file.setting("activation_sparsity_scale")
    if not isinstance(scales, list):
        raise KeyError(f"{file.architecture}.activation_sparsity_scale")
    return {
        **_sliding_layers(file),
        # The scale is the number of standard deviations below which a share of the activations is zero.
        "activation_sparsity_pattern": [NormalDist().cdf(scale) if isfinite(scale) else 0.0 for scale in scales],
        "laurel_rank": file.tensors["blk.0.laurel_l.weight"].shape[0],
        "vocab_size_per_layer_input": file.tensors["per_layer_token_embd.weight"].shape[0],
    }


def _nemotron_h(file: GgufFile) -> dict[str, object]:
    heads, widths = file.setting("attention.head_count_kv"), file.setting("feed_forward_length")
    if not isinstance(heads, list) or not isinstance(widths, list):
        raise KeyError(f"{file.architecture}.attention.head_count_kv and feed_forward_length of each layer")
    wide = "moe" if file.architecture.endswith("_moe") else "mlp"
    states = _state_spaces(file)
    return {
        "layers_block_type": [
            "full_attention" if own_heads else wide if width else "linear_attention"
            for own_heads, width in zip(heads, widths, strict=True)
        ],
        "num_key_value_heads": max(heads),
        "intermediate_size": max(widths),
        "mamba_num_heads": states["mamba_n_heads"],
        "mamba_head_dim": states["mamba_d_head"],
        "n_groups": states["mamba_n_groups"],
        "ssm_state_size": states["mamba_d_state"],
        "conv_kernel": states["mamba_d_conv"],
        "moe_latent_size": file.setting("moe_latent_size"),
        "num_nextn_predict_layers": 0,
        **_routing(file),
    }


def _minicpm(file: GgufFile) -> dict[str, object]:
    width, heads = file.setting("embedding_length"), file.setting("attention.head_count")
    return {"attention_multiplier": (int(str(width)) / int(str(heads))) ** -0.5}


def _state_spaces(file: GgufFile) -> dict[str, object]:
    """The sizes of Mamba 2's state spaces. `ssm.time_step_rank` is the number of their heads."""
    inner, heads = file.setting("ssm.inner_size"), file.setting("ssm.time_step_rank")
    if not isinstance(inner, int) or not isinstance(heads, int):
        raise KeyError(f"{file.architecture}.ssm.inner_size and ssm.time_step_rank")
    return {
        "mamba_d_conv": file.setting("ssm.conv_kernel"),
        "mamba_d_state": file.setting("ssm.state_size"),
        "mamba_n_groups": file.setting("ssm.group_count"),
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_proj_bias": "blk.0.ssm_in.bias" in file.tensors,
    }


def _mamba2(file: GgufFile) -> dict[str, object]:
    states, width = _state_spaces(file), file.setting("embedding_length")
    return {
        "num_heads": states["mamba_n_heads"],
        "head_dim": states["mamba_d_head"],
        "n_groups": states["mamba_n_groups"],
        "state_size": states["mamba_d_state"],
        "conv_kernel": states["mamba_d_conv"],
        "expand": int(str(file.setting("ssm.inner_size"))) // int(str(width)),
        "layer_norm_epsilon": file.setting("attention.layer_norm_rms_epsilon"),
        "use_bias": states["mamba_proj_bias"],
    }


def _granite_hybrid(file: GgufFile) -> dict[str, object]:
    heads, states = file.setting("attention.head_count_kv"), _state_spaces(file)
    if not isinstance(heads, list):
        raise KeyError(f"{file.architecture}.attention.head_count_kv of each layer")
    inner, width = file.setting("ssm.inner_size"), file.setting("embedding_length")
    return {
        **states,
        "mamba_expand": int(str(inner)) // int(str(width)),
        "num_key_value_heads": max(heads),
        "layer_types": ["full_attention" if each else "linear_attention" for each in heads],
        "num_local_experts": file.setting("expert_count") or 0,
        "position_embedding_type": "rope" if file.setting("rope.scaling.finetuned") else None,
    }


def _granite_moe(file: GgufFile) -> dict[str, object]:
    width = file.setting("expert_shared_feed_forward_length")
    return {"model_type": "granitemoeshared", "shared_intermediate_size": width} if width else {}


def _falcon_mamba(file: GgufFile) -> dict[str, object]:
    inner, width = file.setting("ssm.inner_size"), file.setting("embedding_length")
    return {
        "expand": int(str(inner)) // int(str(width)),
        "intermediate_size": inner,
        "state_size": file.setting("ssm.state_size"),
        "conv_kernel": file.setting("ssm.conv_kernel"),
        "time_step_rank": file.setting("ssm.time_step_rank"),
        "layer_norm_epsilon": file.setting("attention.layer_norm_rms_epsilon"),
    }


def _falcon_h1(file: GgufFile) -> dict[str, object]:
    """The multipliers of a configuration are in the weights of a file. llama.cpp applies the gate before the norm."""
    return {
        **_state_spaces(file),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in file.tensors,
        "mamba_norm_before_gate": False,
    }


def _glm4_moe(file: GgufFile) -> dict[str, object]:
    return {**_routing(file), **_query_norm(file)}


def _falcon(file: GgufFile) -> dict[str, object]:
    two_norms = "blk.0.attn_norm_2.weight" in file.tensors
    return {
        "new_decoder_architecture": two_norms,
        "multi_query": file.setting("attention.head_count_kv") == 1,
        "parallel_attn": True,
        "bias": "blk.0.attn_qkv.bias" in file.tensors,
        "alibi": False,
    }


@dataclass(frozen=True)
class Family:
    """An architecture. values: names of further values of the file in the configuration. more: what else of the
    configuration follows from the file. tensors: undoes the converter's arrangement."""

    model_type: str
    values: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[GgufFile], dict[str, object]] = lambda file: {}
    tensors: type[Any] = TensorProcessor


_GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_COHERE = {"logit_scale": "logit_scale"}
_ROUTED = {
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_weights_scale": "routed_scaling_factor",
    "leading_dense_block_count": "first_k_dense_replace",
}
_LFM2 = {
    "attention.layer_norm_rms_epsilon": "norm_eps",
    "expert_count": "num_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "leading_dense_block_count": "num_dense_layers",
    "shortconv.l_cache": "conv_L_cache",
}
_GEMMA4 = {
    "attention.key_length": "global_head_dim",
    "attention.key_length_swa": "head_dim",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    "expert_count": "num_experts",
    "expert_used_count": "top_k_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
}
_GEMMA3N = {
    "altup.active_idx": "altup_active_idx",
    "altup.num_inputs": "altup_num_inputs",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
_NEMOTRON_H = {
    **_ROUTED,
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
}
_QWEN3_MOE = {"expert_count": "num_experts", "expert_feed_forward_length": "moe_intermediate_size"}
_FALCON = {
    "attention.head_count_kv": "num_kv_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "feed_forward_length": "ffn_hidden_size",
}
FAMILIES = {
    "mixtral": Family("mixtral", {"expert_count": "num_local_experts"}, tensors=MixtralTensors),
    "gemma": Family("gemma", tensors=Gemma2TensorProcessor),
    "granite": Family("granite", _GRANITE, tensors=LlamaTensorProcessor),
    "granitemoe": Family(
        "granitemoe", {**_GRANITE, "expert_count": "num_local_experts"}, _granite_moe, GraniteSharedTensors
    ),
    "granitehybrid": Family(
        "granitemoehybrid",
        {**_GRANITE, "expert_shared_feed_forward_length": "shared_intermediate_size"},
        _granite_hybrid,
        GraniteHybridTensors,
    ),
    "gemma3n": Family("gemma3n_text", _GEMMA3N, _gemma3n, Gemma3nTensors),
    "falcon-mamba": Family("falcon_mamba", more=_falcon_mamba, tensors=TENSOR_PROCESSORS["mamba"]),
    "mamba2": Family("mamba2", more=_mamba2, tensors=StateTensors),
    "nemotron_h": Family("nemotron_h", _NEMOTRON_H, _nemotron_h, StateTensors),
    "nemotron_h_moe": Family("nemotron_h", _NEMOTRON_H, _nemotron_h, NemotronTensors),
    "dots1": Family("dots1", _ROUTED, _routing, DeepseekTensors),
    "falcon-h1": Family("falcon_h1", {"ssm.inner_size": "mamba_d_ssm"}, _falcon_h1, StateTensors),
    # Models with code of their own, which compute what Llama or Granite computes.
    "exaone": Family("llama"),
    "internlm2": Family("llama", tensors=LlamaTensorProcessor),
    "minicpm": Family("granite", _GRANITE, _minicpm, LlamaTensorProcessor),
    "command-r": Family("cohere", _COHERE, _query_norm),
    "cohere2": Family("cohere2", _COHERE, _sliding_layers),
    "glm4": Family("glm4"),
    "olmo": Family("olmo", {"attention.clamp_kqv": "clip_qkv"}, tensors=LlamaTensorProcessor),
    "olmo2": Family("olmo2", more=_olmo2),
    "olmoe": Family("olmoe", {"expert_count": "num_experts"}, tensors=Qwen2MoeTensorProcessor),
    # The text parts of models for pictures. Their positions of three dimensions are equal in a text without pictures.
    "qwen2vl": Family("qwen2"),
    "qwen3vl": Family("qwen3"),
    "qwen3vlmoe": Family("qwen3_moe", _QWEN3_MOE, _always_normed, Qwen2MoeTensorProcessor),
    "smollm3": Family("smollm3", tensors=LlamaTensorProcessor),
    "arcee": Family("arcee", tensors=LlamaTensorProcessor),
    "seed_oss": Family("seed_oss"),
    "exaone4": Family("exaone4", more=_sliding_layers),
    "ernie4_5": Family("ernie4_5"),
    "hunyuan-dense": Family("hunyuan_v1_dense"),
    "gpt-oss": Family("gpt_oss", {"expert_count": "num_local_experts"}, tensors=GptOssTensors),
    "deepseek2": Family(
        "deepseek_v2", {**_ROUTED, "attention.kv_lora_rank": "kv_lora_rank"}, _deepseek, DeepseekTensors
    ),
    "gemma4": Family("gemma4_text", _GEMMA4, _gemma4, Gemma4Tensors),
    "mistral3": Family("ministral3", more=_mistral3, tensors=LlamaTensorProcessor),
    "lfm2moe": Family("lfm2_moe", _LFM2, _lfm2_moe, Lfm2MoeTensors),
    "falcon": Family("falcon", _FALCON, _falcon, FalconTensors),
    "glm4moe": Family("glm4_moe", _ROUTED, _glm4_moe, DeepseekTensors),
    "phi2": Family("phi"),
    "gptneox": Family("gpt_neox", {"use_parallel_residual": "use_parallel_residual"}, tensors=NeoxTensors),
}
"""By the architecture's name in the file; Mixtral's files name "llama", FalconMamba's "mamba"."""


def family_of(file: GgufFile) -> Family | None:
    """Return the family of a file that transformers does not read, or reads as another one."""
    if file.architecture == "llama" and file.setting("expert_count"):
        return FAMILIES["mixtral"]
    if file.architecture == "mamba" and file.setting("ssm.dt_b_c_rms"):
        return FAMILIES["falcon-mamba"]
    return FAMILIES.get(file.architecture)


def tensor_processor(file: GgufFile) -> type[Any]:
    """Return the class that undoes the arrangement of a file's tensors."""
    if (family := family_of(file)) is not None:
        return family.tensors
    if file.architecture == "qwen2moe":
        return SharedExpertTensors
    processor: type[Any] = TENSOR_PROCESSORS.get(file.architecture, TensorProcessor)
    return processor


def family_configuration(family: Family, file: GgufFile) -> PreTrainedConfig:
    """Return the configuration of a model whose architecture transformers has, but does not read from GGUF files.

    Raises KeyError for a value that every model has and the file lacks.
    """
    more = family.more(file)
    model_type = str(more.pop("model_type", family.model_type))
    known = AutoConfig.for_model(model_type).to_dict()
    # A configuration has a window by default, where a file that names none has none.
    values: dict[str, object] = {"sliding_window": None} if "sliding_window" in known else {}
    for key, name in {**VALUES, **family.values}.items():
        if (value := file.setting(key)) is not None and (key in family.values or name in known):
            values[name] = value
    for key in ("block_count", "embedding_length", "attention.head_count"):
        if file.setting(key) is None:
            raise KeyError(f"{file.architecture}.{key}")
    further = file.setting("nextn_predict_layers")
    if isinstance(further, int):  # layers that predict tokens after the next one, which transformers does not compute
        values["num_hidden_layers"] = int(str(values["num_hidden_layers"])) - further
    values["vocab_size"] = file.tensors["token_embd.weight"].shape[0]
    values["tie_word_embeddings"] = "output.weight" not in file.tensors
    if values.get("sliding_window") is None and "sliding_window" in known and "layer_types" in known:
        values["layer_types"] = ["full_attention"] * int(str(values["num_hidden_layers"]))
    values |= {name: value for name, value in biases(file).items() if name in known} | more
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **values)
    return config
