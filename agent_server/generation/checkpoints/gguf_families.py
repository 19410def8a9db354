"""GGUF files of architectures that transformers does not read: their configurations and how their tensors lie.

The keys are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, the arrangement that of llama.cpp's
converter (`conversion/` in https://github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from math import isfinite
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import AutoConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    Gemma2TensorProcessor,
    GGUFTensor,
    Lfm2TensorProcessor,
    LlamaTensorProcessor,
    Qwen2MoeTensorProcessor,
    TensorProcessor,
)

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from agent_server.model_files.gguf_files import GgufFile

Array = np.ndarray[Any, Any]
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


class MixtralTensors(Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """Llama's interleaved queries and keys, and Mixtral's experts."""

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if ".attn_q." in name or ".attn_k." in name:
            return LlamaTensorProcessor(self.config).process(weights, name, **kwargs)
        return super().process(weights, name, **kwargs)


class SharedExpertTensors(Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """Qwen2's experts. Of the gate of the shared expert there are files with one dimension and with two."""

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if "ffn_gate_inp_shexp" in name:
            return GGUFTensor(weights.reshape(1, -1), name, {})
        return super().process(weights, name, **kwargs)


class GraniteMoeTensors(MixtralTensors):
    """Granite's names of the experts and their router."""

    HF_MOE_W13_PATTERN = re.compile(r"model\.layers\.(?P<bid>\d+)\.block_sparse_moe\.experts\.gate_up_proj")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.down_proj", hf_name):
            gguf_to_hf_name_map[f"blk.{match[1]}.ffn_down_exps"] = qual_name + hf_name
        elif match := re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.router\.weight", hf_name):
            gguf_to_hf_name_map[f"blk.{match[1]}.ffn_gate_inp.weight"] = qual_name + hf_name


class StateTensors(TensorProcessor):  # type: ignore[misc]
    """Mamba 2's state spaces: the decay is a logarithm in the model, and vectors have a second dimension in a file."""

    _STEP = re.compile(r"(?:model|backbone)\.layers\.(\d+)\.(?:mamba|mixer)\.dt_bias")
    _NORM = re.compile(r"model\.layers\.(\d+)\.pre_ff_layernorm\.weight")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := self._STEP.fullmatch(hf_name):
            gguf_to_hf_name_map[f"blk.{match[1]}.ssm_dt.bias"] = qual_name + hf_name
        elif match := self._NORM.fullmatch(hf_name):  # of Falcon-H1, whose files have it without ".weight"
            gguf_to_hf_name_map[f"blk.{match[1]}.ffn_norm"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if name.endswith(".ssm_conv1d.weight"):
            weights = weights[:, None]
        elif name.endswith((".ssm_a", ".ssm_d", ".ssm_norm.weight")):
            weights = weights.reshape(-1)
        return super().process(np.log(-weights) if name.endswith(".ssm_a") else weights, name, **kwargs)


class GraniteHybridTensors(StateTensors, GraniteMoeTensors):
    """Granite's state spaces and experts, and its MLP for every token, whose gate and up are one matrix."""

    _MLP = re.compile(r"model\.layers\.(\d+)\.shared_mlp\.input_linear\.weight")
    _PART = re.compile(r"blk\.\d+\.ffn_(gate|up)(_shexp)?\.weight")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := self._MLP.fullmatch(hf_name):
            kind = "_shexp" if self.config["num_local_experts"] else ""
            for part in ("gate", "up"):
                gguf_to_hf_name_map[f"blk.{match[1]}.ffn_{part}{kind}"] = qual_name + hf_name
            down = hf_name.replace("input", "output")
            gguf_to_hf_name_map[f"blk.{match[1]}.ffn_down{kind}.weight"] = qual_name + down

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if match := self._PART.fullmatch(name):
            gathered = kwargs["parsed_parameters"]["tensors"]
            own = kwargs["tensor_key_mapping"].get(name.removesuffix(".weight"))
            rows, columns = weights.shape
            both = gathered.setdefault(own, torch.empty(2 * rows, columns))
            (both[rows:] if match[1] == "up" else both[:rows]).copy_(torch.from_numpy(weights))
            return GGUFTensor(weights, None, {})
        return super().process(weights, name, **kwargs)


class Gemma4Tensors(TensorProcessor):  # type: ignore[misc]
    """Gemma 4's scalars and experts, which are parameters without a name of their own in the model."""

    _SCALE = re.compile(r"model\.layers\.(\d+)\.router\.(scale|per_expert_scale)")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        if scale := self._SCALE.fullmatch(hf_name):
            part = "ffn_gate_inp" if scale[2] == "scale" else "ffn_down_exps"
            gguf_to_hf_name_map[f"blk.{scale[1]}.{part}.scale"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        plain = name.removesuffix(".weight")
        return GGUFTensor(weights, plain if plain in kwargs["tensor_key_mapping"] else name, {})


class Gemma3nTensors(Gemma4Tensors):
    """Gemma 3n's scalars, and its projections between the streams, which a file has in one tensor."""

    _CORRECTION = re.compile(r"model\.layers\.(\d+)\.altup\.correct_output_scale")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        if match := self._CORRECTION.fullmatch(hf_name):
            gguf_to_hf_name_map[f"blk.{match[1]}.altup_correct_scale"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        part = {"altup_proj.weight": "", "altup_unembd_proj.weight": "unembed_"}.get(name)
        if part is None:
            return super().process(weights, name, **kwargs)
        for number, matrix in enumerate(weights):
            own = f"model.altup_{part}projections.{number}.weight"
            kwargs["parsed_parameters"]["tensors"][own] = torch.from_numpy(matrix)
        return GGUFTensor(weights, None, {})


class GptOssTensors(TensorProcessor):  # type: ignore[misc]
    """gpt-oss has its experts' matrices transposed, with gate and up in turns."""

    _PART = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")
    _OWN = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        if match := self._OWN.fullmatch(hf_name):
            for part in match[2].split("_"):
                gguf_to_hf_name_map[f"blk.{match[1]}.ffn_{part}_exps{'.bias' if match[3] else ''}"] = hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        match = self._PART.fullmatch(name)
        if match is None:
            return GGUFTensor(weights, name.removesuffix(".weight") if ".attn_sinks." in name else name, {})
        own = kwargs["tensor_key_mapping"][name.removesuffix(".weight")]
        gathered = kwargs["parsed_parameters"]["tensors"]
        values = torch.from_numpy(np.ascontiguousarray(weights.swapaxes(-1, -2) if match[3] == "weight" else weights))
        if match[2] == "down":
            gathered[own] = values
        else:
            both = gathered.setdefault(own, values.new_empty(*values.shape[:-1], 2 * values.shape[-1]))
            both[..., 0 if match[2] == "gate" else 1 :: 2] = values
        return GGUFTensor(weights, None, {})


class DeepseekTensors(Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """DeepSeek's experts, and its projection from the latent to keys and values, which newer files split in two."""

    _HALF = re.compile(r"blk\.(\d+)\.attn_(k|v)_b\.weight")
    _BIAS = re.compile(r"model\.layers\.(\d+)\.mlp\.gate\.e_score_correction_bias")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._halves: dict[str, dict[str, Array]] = {}

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := self._BIAS.fullmatch(hf_name):
            gguf_to_hf_name_map[f"blk.{match[1]}.exp_probs_b.bias"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if (match := self._HALF.fullmatch(name)) is None:
            return super().process(weights, name, **kwargs)
        halves = self._halves.setdefault(match[1], {})
        # (heads, latent, width) for keys, (heads, width, latent) for values
        halves[match[2]] = weights.swapaxes(1, 2) if match[2] == "k" else weights
        if len(halves) == 2:
            both = np.concatenate([halves["k"], halves["v"]], axis=1)
            own = f"model.layers.{match[1]}.self_attn.kv_b_proj.weight"
            kwargs["parsed_parameters"]["tensors"][own] = torch.from_numpy(both.reshape(-1, both.shape[-1]))
            del self._halves[match[1]]
        return GGUFTensor(weights, None, {})


class Lfm2MoeTensors(Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """LFM2's convolutions, with experts and the bias of their router."""

    HF_MOE_W13_PATTERN = re.compile(r"model\.layers\.(?P<bid>\d+)\.feed_forward\.experts\.gate_up_proj")
    _OWN = re.compile(r"model\.layers\.(\d+)\.feed_forward\.(experts\.down_proj|expert_bias)")

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := self._OWN.fullmatch(hf_name):
            part = "exp_probs_b.bias" if match[2] == "expert_bias" else "ffn_down_exps"
            gguf_to_hf_name_map[f"blk.{match[1]}.{part}"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if "shortconv.conv.weight" in name:
            return Lfm2TensorProcessor(self.config).process(weights, name, **kwargs)
        return super().process(weights, name, **kwargs)


class FalconTensors(TensorProcessor):  # type: ignore[misc]
    """Falcon has groups of queries that share a key and a value; a file has all queries, all keys, all values."""

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if ".attn_qkv." in name:
            heads, groups = self.config["num_attention_heads"], self.config["num_kv_heads"]
            width = weights.shape[0] // (heads + 2 * groups)
            queries, keys, values = np.split(weights, [heads * width, (heads + groups) * width])
            shape = (groups, -1, *weights.shape[1:])
            grouped = [each.reshape(shape) for each in (queries, keys, values)]
            weights = np.concatenate(grouped, axis=1).reshape(weights.shape)
        return GGUFTensor(weights, name, {})


class NeoxTensors(TensorProcessor):  # type: ignore[misc]
    """GPT-NeoX has query, key and value of one head after the other; a file has all queries, all keys, all values."""

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if ".attn_qkv." in name:
            heads = self.config["num_attention_heads"]
            split = weights.reshape(3, heads, -1, *weights.shape[1:])
            weights = split.swapaxes(0, 1).reshape(weights.shape)
        return GGUFTensor(weights, name, {})


class NemotronTensors(StateTensors, DeepseekTensors):
    """Nemotron-H's state spaces and experts, which have no gate."""

    _OWN = re.compile(
        r"model\.layers\.(\d+)\.mixer\.(experts\.up_proj|experts\.down_proj|gate\.e_score_correction_bias)"
    )
    _NAMES = {"experts.up_proj": "ffn_up_exps", "experts.down_proj": "ffn_down_exps"}

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        if match := self._OWN.fullmatch(hf_name):
            part = self._NAMES.get(match[2], "exp_probs_b.bias")
            gguf_to_hf_name_map[f"blk.{match[1]}.{part}"] = qual_name + hf_name

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if "_exps." in name:
            return GGUFTensor(weights, name.removesuffix(".weight"), {})
        return super().process(weights, name, **kwargs)


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
    "attention_bias": "attn_q",
    "use_bias": "attn_q",
    "attention_out_bias": "attn_output",
    "mlp_bias": "ffn_down",
}
"""Names of configurations for biases, of which each has some, and the part of a layer that has the bias."""


def _biased(file: GgufFile) -> dict[str, object]:
    return {name: f"blk.0.{part}.bias" in file.tensors for name, part in BIASES.items()}


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
    return {**_biased(file), "attention_multiplier": (int(str(width)) / int(str(heads))) ** -0.5}


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


def _falcon_h1(file: GgufFile) -> dict[str, object]:
    """The multipliers of a configuration are in the weights of a file. llama.cpp applies the gate before the norm."""
    return {
        **_state_spaces(file),
        "mamba_rms_norm": "blk.0.ssm_norm.weight" in file.tensors,
        "mamba_norm_before_gate": False,
    }


def _glm4_moe(file: GgufFile) -> dict[str, object]:
    return {**_biased(file), **_routing(file), **_query_norm(file)}


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
    "granite": Family("granite", _GRANITE, _biased, LlamaTensorProcessor),
    "granitemoe": Family("granitemoe", {**_GRANITE, "expert_count": "num_local_experts"}, tensors=GraniteMoeTensors),
    "granitehybrid": Family(
        "granitemoehybrid",
        {**_GRANITE, "expert_shared_feed_forward_length": "shared_intermediate_size"},
        _granite_hybrid,
        GraniteHybridTensors,
    ),
    "gemma3n": Family("gemma3n_text", _GEMMA3N, _gemma3n, Gemma3nTensors),
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
    "glm4": Family("glm4", more=_biased),
    "olmo": Family("olmo", {"attention.clamp_kqv": "clip_qkv"}, tensors=LlamaTensorProcessor),
    "olmo2": Family("olmo2", more=_olmo2),
    "olmoe": Family("olmoe", {"expert_count": "num_experts"}, tensors=Qwen2MoeTensorProcessor),
    # The text parts of models for pictures. Their positions of three dimensions are equal in a text without pictures.
    "qwen2vl": Family("qwen2"),
    "qwen3vl": Family("qwen3"),
    "qwen3vlmoe": Family("qwen3_moe", _QWEN3_MOE, _always_normed, Qwen2MoeTensorProcessor),
    "smollm3": Family("smollm3", tensors=LlamaTensorProcessor),
    "arcee": Family("arcee", more=_biased, tensors=LlamaTensorProcessor),
    "seed_oss": Family("seed_oss", more=_biased),
    "exaone4": Family("exaone4", more=_sliding_layers),
    "ernie4_5": Family("ernie4_5", more=_biased),
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
"""By the architecture's name in the file; Mixtral's files name "llama"."""


def family_of(file: GgufFile) -> Family | None:
    """Return the family of a file that transformers does not read, or reads as another one."""
    if file.architecture == "llama" and file.setting("expert_count"):
        return FAMILIES["mixtral"]
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
    values |= {name: value for name, value in more.items() if name in known or name not in BIASES}
    config: PreTrainedConfig = AutoConfig.for_model(model_type, **values)
    return config
