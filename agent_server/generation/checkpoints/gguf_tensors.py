"""How tensors lie in GGUF files of architectures that transformers does not read.

Each class undoes the arrangement of llama.cpp's converter (`conversion/` in https://github.com/ggml-org/llama.cpp).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import torch
from transformers.modeling_gguf_pytorch_utils import (
    GGUFTensor,
    Lfm2TensorProcessor,
    LlamaTensorProcessor,
    Qwen2MoeTensorProcessor,
    TensorProcessor,
)

Array = np.ndarray[Any, Any]
_LAYER = r"model\.layers\.(\d+)\."


class NamedTensors(TensorProcessor):  # type: ignore[misc]
    """Tensors whose names the package gguf does not know.

    OWN_NAMES: pattern of a tensor's name in the model → the names of the file's tensors of which it is made.
    """

    OWN_NAMES: Mapping[str, tuple[str, ...]] = {}

    def perform_fallback_tensor_mapping(
        self, gguf_to_hf_name_map: MutableMapping[str, str], suffix: str, qual_name: str, hf_name: str
    ) -> None:
        super().perform_fallback_tensor_mapping(gguf_to_hf_name_map, suffix, qual_name, hf_name)
        for kind in type(self).__mro__:
            for pattern, names in vars(kind).get("OWN_NAMES", {}).items():
                if match := re.fullmatch(pattern, hf_name):
                    gguf_to_hf_name_map.update((match.expand(name), qual_name + hf_name) for name in names)


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


class GraniteMoeTensors(NamedTensors, MixtralTensors):
    """Granite's names of the experts and their router."""

    OWN_NAMES = {
        _LAYER + r"block_sparse_moe\.experts\.down_proj": (r"blk.\1.ffn_down_exps",),
        _LAYER + r"block_sparse_moe\.router\.weight": (r"blk.\1.ffn_gate_inp.weight",),
    }
    HF_MOE_W13_PATTERN = re.compile(r"model\.layers\.(?P<bid>\d+)\.block_sparse_moe\.experts\.gate_up_proj")


class GraniteSharedTensors(GraniteMoeTensors):
    """Granite's experts, and its MLP for every token, whose gate and up are one matrix."""

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


class StateTensors(NamedTensors):
    """Mamba 2's state spaces: the decay is a logarithm in the model, and vectors have a second dimension in a file."""

    OWN_NAMES = {
        r"(?:model|backbone)\.layers\.(\d+)\.(?:mamba|mixer)\.dt_bias": (r"blk.\1.ssm_dt.bias",),
        _LAYER + r"pre_ff_layernorm\.weight": (r"blk.\1.ffn_norm",),  # of Falcon-H1, whose files leave out ".weight"
    }

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if name.endswith(".ssm_conv1d.weight"):
            weights = weights[:, None]
        elif name.endswith((".ssm_a", ".ssm_d", ".ssm_norm.weight")):
            weights = weights.reshape(-1)
        return super().process(np.log(-weights) if name.endswith(".ssm_a") else weights, name, **kwargs)


class GraniteHybridTensors(StateTensors, GraniteSharedTensors):
    """Granite's state spaces, experts and MLP."""


class Gemma4Tensors(NamedTensors):
    """Gemma 4's scalars and experts, which are parameters without a name of their own in the model."""

    OWN_NAMES = {
        _LAYER + r"router\.scale": (r"blk.\1.ffn_gate_inp.scale",),
        _LAYER + r"router\.per_expert_scale": (r"blk.\1.ffn_down_exps.scale",),
    }

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        plain = name.removesuffix(".weight")
        return GGUFTensor(weights, plain if plain in kwargs["tensor_key_mapping"] else name, {})


class Gemma3nTensors(Gemma4Tensors):
    """Gemma 3n's scalars, and its projections between the streams, which a file has in one tensor."""

    OWN_NAMES = {_LAYER + r"altup\.correct_output_scale": (r"blk.\1.altup_correct_scale",)}

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        part = {"altup_proj.weight": "", "altup_unembd_proj.weight": "unembed_"}.get(name)
        if part is None:
            return super().process(weights, name, **kwargs)
        for number, matrix in enumerate(weights):
            own = f"model.altup_{part}projections.{number}.weight"
            kwargs["parsed_parameters"]["tensors"][own] = torch.from_numpy(matrix)
        return GGUFTensor(weights, None, {})


class GptOssTensors(NamedTensors):
    """gpt-oss has its experts' matrices transposed, with gate and up in turns."""

    OWN_NAMES = {
        _LAYER + r"mlp\.experts\.gate_up_proj": (r"blk.\1.ffn_gate_exps", r"blk.\1.ffn_up_exps"),
        _LAYER + r"mlp\.experts\.gate_up_proj_bias": (r"blk.\1.ffn_gate_exps.bias", r"blk.\1.ffn_up_exps.bias"),
        _LAYER + r"mlp\.experts\.down_proj": (r"blk.\1.ffn_down_exps",),
        _LAYER + r"mlp\.experts\.down_proj_bias": (r"blk.\1.ffn_down_exps.bias",),
    }

    _PART = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.(weight|bias)")

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


class DeepseekTensors(NamedTensors, Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """DeepSeek's experts, and its projection from the latent to keys and values, which newer files split in two."""

    OWN_NAMES = {_LAYER + r"mlp\.gate\.e_score_correction_bias": (r"blk.\1.exp_probs_b.bias",)}

    _HALF = re.compile(r"blk\.(\d+)\.attn_(k|v)_b\.weight")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._halves: dict[str, dict[str, Array]] = {}

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


class Lfm2MoeTensors(NamedTensors, Qwen2MoeTensorProcessor):  # type: ignore[misc]
    """LFM2's convolutions, with experts and the bias of their router."""

    OWN_NAMES = {
        _LAYER + r"feed_forward\.experts\.down_proj": (r"blk.\1.ffn_down_exps",),
        _LAYER + r"feed_forward\.expert_bias": (r"blk.\1.exp_probs_b.bias",),
    }

    HF_MOE_W13_PATTERN = re.compile(r"model\.layers\.(?P<bid>\d+)\.feed_forward\.experts\.gate_up_proj")

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

    OWN_NAMES = {
        _LAYER + r"mixer\.experts\.up_proj": (r"blk.\1.ffn_up_exps",),
        _LAYER + r"mixer\.experts\.down_proj": (r"blk.\1.ffn_down_exps",),
        _LAYER + r"mixer\.gate\.e_score_correction_bias": (r"blk.\1.exp_probs_b.bias",),
    }

    def process(self, weights: Array, name: str, **kwargs: Any) -> Any:
        if "_exps." in name:
            return GGUFTensor(weights, name.removesuffix(".weight"), {})
        return super().process(weights, name, **kwargs)
