"""Read a model's configuration from a GGUF file with transformers. Settings of the file that transformers ignores
although they affect the model's output are applied here, or refused."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoConfig

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.checkpoints.gguf_families import FAMILIES, biases, family_configuration, family_of
from agent_server.model_files import UnusableFile
from agent_server.model_files.gguf_files import TOKENS, GgufFile, read_gguf, stop_ids

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

logger = logging.getLogger("agent_server.generation")
PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
TRIED = FAMILIES.keys() - {"falcon-mamba", "mixtral"} | {
    "bloom", "gemma2", "gemma3", "gpt2", "lfm2", "llama", "mamba", "minimax-m2", "nemotron", "phi3", "qwen2",
    "qwen2moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "stablelm", "starcoder2",
}  # fmt: skip
"""Architectures of which files that llama.cpp's converter wrote were compared with the converted model
(`tests/peers/converted_gguf.py`)."""
WORDS = {
    "context_length": "n_positions",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
"""Values of a file that transformers does not apply to every configuration, with their names there."""
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
"""Gemma's 27B models, by their number of layers: their queries are scaled by the model's width over the number of
heads, those of the other sizes by the width of a head. The file has no word for it; llama.cpp decides in the same way
(src/models/gemma3.cpp)."""
MULTIPLIERS = {"deepseek2": 0.1, "mistral3": 1.0}
"""What llama.cpp's converter multiplies YaRN's `mscale_all_dim` with, by architecture."""
YARN_WORDS = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}
"""YaRN's values of a file, and their names in `rope_parameters`."""
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
"""The tensors with the factors of LongRoPE (Phi-3 and later)."""


def checked(model: str) -> GgufFile:
    """Read a GGUF file's header. Raises EngineError if it is unusable or the package that unpacks it is missing."""
    try:
        file = read_gguf(Path(model).expanduser())
    except UnusableFile as error:
        raise EngineError("unavailable", str(error)) from error
    if importlib.util.find_spec("gguf") is None:
        raise EngineError("unavailable", f"{model} needs a package: pip install 'agent-server[local,gguf]'.")
    return file


def configuration(file: GgufFile) -> PreTrainedConfig:
    """Return the model's configuration. Raises EngineError."""
    family = family_of(file)
    try:
        if family is not None:
            config = family_configuration(family, file)
        else:
            with alone(file.path) as folder, _reader_with_header(file):
                config = AutoConfig.from_pretrained(folder, gguf_file=file.path.name)
    except KeyError as error:
        message = f"{file.path} lacks {error.args[0]}, without which its model cannot be built; download it again."
        raise EngineError("unavailable", message) from error
    except Exception as error:
        message = f"{file.path} cannot be used: {' '.join(str(error).split())}"
        if "not supported" in str(error):
            message = (
                f"{file.path} is of the architecture {file.architecture}, which transformers "
                f"{transformers.__version__} does not read from GGUF files: serve the folder that it was made of, or "
                "let llama.cpp's server compute it and give its URL with --engine."
            )
        raise EngineError("unavailable", message) from error
    if family is None:
        values = {name: file.setting(key) for key, name in WORDS.items()} | biases(file)
        for name, value in values.items():
            if value is not None and hasattr(config, name):
                setattr(config, name, value or None if name == "sliding_window" else value)
    if (layers := SCALED_BY_WIDTH.get(file.architecture)) is not None:
        by_width = config.num_hidden_layers == layers
        scale = config.hidden_size // config.num_attention_heads if by_width else config.head_dim
        config.query_pre_attn_scalar = scale
    if file.architecture not in TRIED:
        logger.warning(
            "%s is of the architecture %s, which was never tried from such a file: compare an answer with llama.cpp's.",
            file.path.name,
            file.architecture,
        )
    # The precision of most weights: values of eight bits and less lose nothing that matters in bfloat16. A router of
    # experts or a convolution is in float32 in files of any precision.
    weights = Counter[torch.dtype]()
    for each in file.tensors.values():
        if len(each.shape) > 1:
            weights[PLAIN.get(each.kind, torch.bfloat16)] += math.prod(each.shape)
    config.dtype = max(weights, key=weights.__getitem__, default=torch.bfloat16)
    config.eos_token_id = list(stop_ids(file)) or None
    for name, word in (("bos_token_id", "bos"), ("pad_token_id", "padding")):  # the family's defaults do not apply
        setattr(config, name, file.metadata.get(f"tokenizer.ggml.{word}_token_id"))
    _set_rope_parameters(config, file)
    return config


def _set_rope_parameters(config: PreTrainedConfig, file: GgufFile) -> None:
    """Apply the file's settings of rotary embeddings. Their keys:
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md"""
    parameters = getattr(config, "rope_parameters", None)  # absent where positions are learned, or states recur
    rope: dict[str, Any] = parameters if isinstance(parameters, dict) else {}
    if (local_base := file.setting("rope.freq_base_swa")) is not None and "sliding_attention" in rope:
        rope["sliding_attention"]["rope_theta"] = local_base
    rope = rope.get("full_attention", rope)  # Gemma 3 has one for each kind of layer; the file's are for this kind
    if (base := file.setting("rope.freq_base")) is not None:
        rope["rope_theta"] = base
    width = file.setting("rope.dimension_count")
    if isinstance(width, int) and "head_dim" not in (getattr(config, "per_layer_attributes", None) or ()):
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if width != head or "partial_rotary_factor" in rope:  # a configuration may rotate a part by default
            rope["partial_rotary_factor"] = width / head
    kind = file.setting("rope.scaling.type") or ("longrope" if LONG_FACTORS in file.tensors else "none")
    original = file.setting("rope.scaling.original_context_length")
    if kind in ("linear", "yarn"):
        rope |= {"rope_type": kind, "factor": file.setting("rope.scaling.factor")}
        for key, name in YARN_WORDS.items():
            if (value := file.setting(f"rope.scaling.{key}")) is not None:
                rope[name] = value
        multiplier = file.setting("rope.scaling.yarn_log_multiplier")
        if isinstance(multiplier, float) and file.architecture in MULTIPLIERS:
            scale = multiplier / MULTIPLIERS[file.architecture]
            rope |= {"mscale": scale, "mscale_all_dim": scale}
        if (temperature := file.setting("attention.temperature_scale")) is not None and "llama_4_scaling_beta" in rope:
            rope["llama_4_scaling_beta"] = temperature
    elif kind == "longrope":
        factors = tensors(file, SHORT_FACTORS, LONG_FACTORS)
        rope |= {"rope_type": kind, "short_factor": factors[0].tolist(), "long_factor": factors[1].tolist()}
        rope |= {"attention_factor": file.setting("rope.scaling.attn_factor") or 1.0}
    elif (
        kind == "none" and rope.get("rope_type") == "yarn"
    ):  # the configuration's default, which the file does not name
        raise EngineError("unavailable", f"{file.path} lacks {file.architecture}.rope.scaling.type; download it again.")
    elif kind != "none":
        raise EngineError("unavailable", f"{file.path} scales positions in a way that is not known here ({kind}).")
    if kind != "none" and original is not None:
        rope["original_max_position_embeddings"] = original
        if hasattr(config, "original_max_position_embeddings"):
            config.original_max_position_embeddings = original


def tensors(file: GgufFile, *names: str) -> list[Tensor]:
    """Read small tensors of the file, in float32."""
    if missing := [name for name in names if name not in file.tensors]:
        raise EngineError("unavailable", f"{file.path} lacks the tensor {missing[0]}; download it again.")
    loaded = []
    with file.path.open("rb") as stream:
        for place in (file.tensors[name] for name in names):
            stream.seek(place.start)
            values = np.frombuffer(stream.read(place.size), np.float16 if place.kind == "F16" else np.float32)
            loaded.append(torch.from_numpy(values.astype(np.float32)))
    return loaded


@contextlib.contextmanager
def alone(path: Path) -> Iterator[str]:
    """Provide a folder with only this file, since transformers would also read other files in its folder."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())
        yield folder


class _Field(NamedTuple):
    """A value of the header in the form of the package `gguf`. types: the GGUF types of an array or a value. parts: the
    values or bytes."""

    types: list[int]
    parts: Sequence[Sequence[object]]

    @property
    def data(self) -> range:
        return range(len(self.parts))


class _Named(NamedTuple):
    name: str


class _Reader:
    """A stand-in for the package's GGUFReader with a header that was read already. The package's own reader takes
    seconds for a vocabulary, of which transformers needs only the length."""

    def __init__(self, file: GgufFile) -> None:
        self.fields: dict[str, _Field] = {}
        for key, value in file.metadata.items():
            if key.startswith("tokenizer.") and isinstance(value, list):
                if key != TOKENS:
                    continue
                field = _Field([9, 11], [[0]] * len(value))  # only their number is used
            elif isinstance(value, str):
                field = _Field([8], [value.encode()])
            elif isinstance(value, list):
                numbers = [each if isinstance(each, int | float) else 0 for each in value]
                kind = 12 if any(isinstance(each, float) for each in numbers) else 11
                field = _Field([9, kind], [[each] for each in numbers])
            else:
                field = _Field([7 if isinstance(value, bool) else 12 if isinstance(value, float) else 11], [[value]])
            self.fields[key] = field
        self.tensors = [_Named(name) for name in file.tensors]


@contextlib.contextmanager
def _reader_with_header(file: GgufFile) -> Iterator[None]:
    """Make transformers use the header that was read already."""
    import gguf

    package = vars(gguf)
    before = package["GGUFReader"]
    package["GGUFReader"] = lambda path: _Reader(file)
    try:
        yield
    finally:
        package["GGUFReader"] = before
