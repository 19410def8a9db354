"""Check the files of a checkpoint before and after loading.

Before loading, a file that is missing, truncated or of another kind is reported by its name; only headers are read.
After loading, every tensor of the model must come from the files, have the right shape, and be finite. A quantised
checkpoint also needs the package that reads its kind of quantisation.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import UnusableFile, is_gguf, read_json, readable

if TYPE_CHECKING:
    from transformers import PreTrainedModel

HEADER_LENGTH = 8
LONGEST_HEADER = 100_000_000
"""The maximum length of a header in bytes, by the safetensors format."""
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
PICKLES = (b"PK\x03\x04", b"\x80")
"""The first bytes of torch.save's files: a zip archive since torch 1.6, a pickle before."""


def check_configuration(folder: Path) -> None:
    """Raise EngineError unless config.json has a JSON object."""
    with _as_engine_error():
        read_json(folder / "config.json")


def check_checkpoint(folder: Path) -> None:
    """Raise EngineError about the first file of weights that is missing, truncated or of another kind."""
    with _as_engine_error():
        for file in weight_files(folder):
            check_weights(file)


@contextlib.contextmanager
def _as_engine_error() -> Iterator[None]:
    try:
        yield
    except UnusableFile as error:
        raise EngineError("unavailable", str(error)) from error


def weight_files(folder: Path, stem: str = "") -> list[Path]:
    """Return the files of weights that transformers would load: one, or the shards that an index names. stem: the name
    of LoRA weights, "adapter_model". Raises UnusableFile."""
    names = (f"{stem}.safetensors", f"{stem}.bin") if stem else (SAFETENSORS, PICKLED)
    expected = f"{stem}.safetensors" if stem else f"{SAFETENSORS} (or {SAFETENSORS}.index.json and its shards)"
    for name in names:
        if (folder / name).is_file():
            return [folder / name]
        if (folder / f"{name}.index.json").is_file():
            index = folder / f"{name}.index.json"
            break
    else:
        raise UnusableFile(f"{folder} has no weights: {expected} is missing; download the model again.")
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise UnusableFile(f"{index} names no weights: it has no weight_map; download it again.")
    files = [folder / str(name) for name in sorted(set(table.values()))]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UnusableFile(
            f"{missing[0]} is missing: of {len(files)} files that {index.name} names, {len(missing)} are not there; "
            "download the model again."
        )
    return files


def check_weights(file: Path) -> None:
    """Raise UnusableFile unless the file starts like one of its kind and is as long as its header says."""
    readable(file)
    if file.suffix == ".safetensors":
        names, end = _header(file)
        size = file.stat().st_size
        if end != size:
            reason = "is cut off" if size < end else "is longer than it should be"
            raise UnusableFile(f"{file} {reason}: its header says {end} bytes, it has {size}; download it again.")
        if not names:
            raise UnusableFile(f"{file} has no tensors; download it again.")
    else:
        with file.open("rb") as stream:
            if not stream.read(4).startswith(PICKLES):
                raise UnusableFile(f"{file} is not a file of torch's; download it again.")


def tensor_names(file: Path) -> Iterator[str]:
    """Iterate over the names of the tensors in a safetensors file."""
    yield from _header(file)[0]


def _header(file: Path) -> tuple[list[str], int]:
    """Return the names of the tensors in a safetensors file, and the size that the file should have in bytes.

    The format: eight bytes with the header's length, little-endian; the header in JSON; the tensors at the offsets in
    the header. Raises UnusableFile.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(HEADER_LENGTH), "little")
        if length > min(LONGEST_HEADER, 1000 * size):
            raise UnusableFile(f"{file} is not a safetensors file; download it again.")
        if HEADER_LENGTH + length > size:
            raise UnusableFile(f"{file} is cut off within its header; download it again.")
        text = stream.read(length)
    try:
        tensors = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
        ends = [int(entry["data_offsets"][1]) for entry in tensors.values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnusableFile(
            f"{file} is not a safetensors file: its header cannot be read; download it again."
        ) from error
    return list(tensors), HEADER_LENGTH + length + max(ends, default=0)


logger = logging.getLogger("agent_server.generation")
_GGUF_LAYER = re.compile(r"blk\.(\d+)\.(?!rope_freqs|attn_rot_embd)")
"""A tensor of a layer in a GGUF file. Old files have the frequencies of rotary embeddings for each layer."""
COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes whose values are checked. Values of other dtypes, with eight bits or less, are scaled by tensors of
these."""


def check_loaded(source: str, model: PreTrainedModel, loading_info: Mapping[str, Collection[Any]]) -> None:
    """Raise EngineError if tensors are missing, which transformers fills with random numbers, have another shape, or
    have values that are not finite. loading_info: as returned by transformers."""
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise _unusable(
            source,
            missing[0],
            f"lacks {_counted(missing)} that {type(model).__name__} needs; without them the answers would be random",
        )
    for name, had, expected in sorted(loading_info["mismatched_keys"]):
        file, asks = ("metadata", "they ask") if is_gguf(source) else ("config.json", "config.json asks")
        shapes = f"{_shape(had)} where {asks} for {_shape(expected)}"
        raise _unusable(source, name, f"does not fit its {file}: the tensor {name} is {shapes}")
    unknown = sorted(loading_info["unexpected_keys"])
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 0)
    unused = [name for name in unknown if (match := _GGUF_LAYER.match(name)) and int(match[1]) < layers]
    if unused and is_gguf(source):  # the layer computes something that this model does not
        message = (
            f"{source} has {_counted(unused)} that {type(model).__name__} does not use, so its answers would be wrong: "
            "serve the folder that it was made of, or let llama.cpp's server compute it and give its URL with --engine."
        )
        raise EngineError("unavailable", message)
    if unknown:
        logger.info("%s has %s that %s does not use.", source, _counted(unknown), type(model).__name__)
    not_finite = list(loading_info.get("not_finite_keys", ()))
    for name, parameter in model.named_parameters():
        if parameter.dtype not in COMPUTED or not parameter.numel() or parameter.is_meta:
            continue
        if type(parameter.data) is not Tensor:  # torchao's tensors, which support few operations
            continue
        if not is_finite(parameter):
            not_finite.append(name)
    if not_finite:
        name = not_finite[0]
        raise _unusable(source, name, f"has values in the tensor {name} that are not finite numbers")


def is_finite(parameter: Tensor) -> bool:
    """Return whether all values are finite numbers, without a copy."""
    low, high = parameter.detach().aminmax()  # either is NaN where any value is
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _unusable(source: str, tensor: str, what: str) -> EngineError:
    """Return the error about a tensor. It names the file that has the tensor or should have it, if that is known."""
    folder = Path(source).expanduser()
    place: Path | str = source
    with contextlib.suppress(UnusableFile):
        files = weight_files(folder)
        expected = files[0] if len(files) == 1 else folder / f"{SAFETENSORS}.index.json"
        safetensors = (file for file in files if file.name.endswith(".safetensors"))
        place = next((file for file in safetensors if tensor in set(tensor_names(file))), expected)
    return EngineError("unavailable", f"{place} {what}; download the model again.")


def _counted(names: list[str]) -> str:
    return f"the tensor {names[0]}" if len(names) == 1 else f"{len(names)} tensors ({names[0]} first)"


def _shape(sizes: Collection[int]) -> str:
    return " × ".join(map(str, sizes))


PACKAGES: dict[str, dict[str, str]] = {
    "aqlm": {"aqlm": "aqlm[cpu,gpu]"},
    "auto-round": {"auto_round": "auto-round"},
    "awq": {"gptqmodel": "gptqmodel"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "eetq": {"kernels": "kernels"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "hqq": {"hqq": "hqq"},
    "quanto": {"optimum.quanto": "optimum-quanto"},
    "quark": {"quark": "amd-quark"},
    "spqr": {"spqr_quant": "spqr-quant"},
    "torchao": {"torchao": "torchao"},
    "vptq": {"vptq": "vptq"},
}
"""The modules that transformers needs for a kind of quantisation, by its name in config.json's quantization_config, and
the packages that install them. transformers reads FP8 and MXFP4 by itself, and converts them to bfloat16 if the device
or Triton cannot multiply them."""


FP8_KINDS = ("fp8", "fbgemm_fp8")
FP8_CAPABILITY = (8, 9)
"""The compute capability from which a GPU multiplies FP8."""
VLLM = "vLLM multiplies FP8 as it is on a GPU: pip install 'agent-server[vllm]', and serve it with --engine vllm."


def check_packages(model: str, config: object, device: torch.device) -> str | None:
    """Raise EngineError if a package is missing that reads or multiplies such weights. Return a sentence about FP8
    weights that this engine unpacks; None for all others."""
    quantization: object = getattr(config, "quantization_config", None)
    settings: Mapping[str, object] = (
        quantization if isinstance(quantization, Mapping) else getattr(quantization, "__dict__", {})
    )
    kind = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
    missing = [package for module, package in PACKAGES.get(kind, {}).items() if not _there(module)]
    groups = settings.get("config_groups")
    weights = [each.get("weights") or {} for each in groups.values()] if isinstance(groups, Mapping) else []
    fp8 = kind in FP8_KINDS or any(each.get("type") == "float" and each.get("num_bits") == 8 for each in weights)
    if missing:
        names = " ".join(f"'{name}'" if "[" in name else name for name in missing)
        message = f"{model} is quantised as {kind}, which is read by: pip install {names}"
        raise EngineError("unavailable", f"{message}. {VLLM}" if fp8 else message)
    if not fp8:
        return None
    multiplies = device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
    if kind in FP8_KINDS and multiplies:
        if not _there("kernels"):
            message = f"{model} has FP8 weights, whose kernels for {device} are fetched by: pip install kernels"
            raise EngineError("unavailable", f"{message}. {VLLM}")
        return None
    return f"The FP8 weights of {model} are unpacked on {device} and take twice their size on disk. {VLLM}"


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent
        return False
