"""The files of a checkpoint, checked before and after loading.

Before: a file that is missing, truncated or not the file itself is reported by its name; headers alone are read.
After: every tensor must come from the files, fit, and be finite. A checkpoint that is quantised already needs the
package that reads its kind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import logging
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
"""Bytes; the bound of the safetensors format."""
SAFETENSORS, PICKLED = "model.safetensors", "pytorch_model.bin"
PICKLES = (b"PK\x03\x04", b"\x80")
"""How torch.save's files begin: a zip archive since torch 1.6, a pickle before."""


def check_configuration(folder: Path) -> None:
    """Raise EngineError with one sentence unless config.json holds an object."""
    with _as_engine_error():
        read_json(folder / "config.json")


def check_checkpoint(folder: Path) -> None:
    """Raise EngineError with one sentence about the first file of weights that cannot be what it should be."""
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
    """The files with the weights that transformers would load: one, or the shards that an index names. stem: that of an
    adapter's file, "adapter_model". Raises UnusableFile."""
    for name in (f"{stem}.safetensors", f"{stem}.bin") if stem else (SAFETENSORS, PICKLED):
        if (folder / name).is_file():
            return [folder / name]
        if (folder / f"{name}.index.json").is_file():
            return _shards(folder / f"{name}.index.json")
    expected = f"{stem}.safetensors" if stem else f"{SAFETENSORS} (or {SAFETENSORS}.index.json and its shards)"
    raise UnusableFile(f"{folder} has no weights: {expected} is missing; download the model again.")


def _shards(index: Path) -> list[Path]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise UnusableFile(f"{index} names no weights: it has no weight_map; download it again.")
    files = [index.parent / str(name) for name in sorted(set(table.values()))]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UnusableFile(
            f"{missing[0]} is missing: of {len(files)} files that {index.name} names, {len(missing)} are not there; "
            "download the model again."
        )
    return files


def check_weights(file: Path) -> None:
    """Raise UnusableFile unless the file begins as its kind does and is as long as its header says."""
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
    """The names of the tensors in a safetensors file."""
    yield from _header(file)[0]


def _header(file: Path) -> tuple[list[str], int]:
    """Names of the tensors in a safetensors file, and the bytes that the whole file should have. The format: eight
    bytes with the header's length, little-endian; the header, JSON; the tensors at the offsets that it gives."""
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
COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""Formats in which torch can compare; values of the others, of eight bits and less, are scaled by such ones."""


def check_loaded(source: str, model: PreTrainedModel, loading_info: Mapping[str, Collection[Any]]) -> None:
    """Raise EngineError if tensors were missing, which transformers fills with random numbers, had another shape, or
    hold what is not a number. loading_info: as returned by transformers."""
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
    if unknown:
        logger.info("%s has %s that %s does not use.", source, _counted(unknown), type(model).__name__)
    _check_numbers(source, model)


def _check_numbers(source: str, model: PreTrainedModel) -> None:
    scales = (  # of GGUF's blocks
        (name.removesuffix("scales") + "weight", each)
        for name, each in model.named_buffers()
        if name.endswith(".scales")
    )
    for name, parameter in itertools.chain(model.named_parameters(), scales):
        if parameter.dtype not in COMPUTED or not parameter.numel() or parameter.is_meta:
            continue
        if type(parameter.data) is not Tensor:  # torchao's, which look like what they stand for and compute little
            continue
        if not is_finite(parameter):
            raise _unusable(source, name, f"has values in the tensor {name} that are not finite numbers")


def is_finite(parameter: Tensor) -> bool:
    """Whether all values are finite numbers; nothing is copied."""
    low, high = parameter.detach().aminmax()  # either is NaN where any value is
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _unusable(source: str, tensor: str, what: str) -> EngineError:
    place = _place(Path(source).expanduser(), tensor)
    return EngineError("unavailable", f"{place or source} {what}; download the model again.")


def _place(folder: Path, tensor: str) -> Path | None:
    """The file that a tensor of a folder is in, or should be in; None where that cannot be told."""
    try:
        files = weight_files(folder)
    except UnusableFile:
        return None
    holding = [file for file in files if file.name.endswith(".safetensors") and tensor in set(tensor_names(file))]
    if holding:
        return holding[0]
    return files[0] if len(files) == 1 else folder / f"{SAFETENSORS}.index.json"


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
"""By the name in config.json's quantization_config: each module that transformers needs, and what installs it. It reads
FP8 and MXFP4 by itself, and makes bfloat16 of them where the device or Triton does not multiply them."""


def check_packages(model: str, config: object) -> None:
    """Raise EngineError if the package that reads such weights is missing."""
    quantization: object = getattr(config, "quantization_config", None)
    settings: Mapping[str, object] = (
        quantization if isinstance(quantization, Mapping) else getattr(quantization, "__dict__", {})
    )
    kind = str(getattr(settings.get("quant_method"), "value", settings.get("quant_method")))
    missing = [package for module, package in PACKAGES.get(kind, {}).items() if not _there(module)]
    if missing:
        names = " ".join(f"'{name}'" if "[" in name else name for name in missing)
        raise EngineError("unavailable", f"{model} is quantised as {kind}, which is read by: pip install {names}")


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent
        return False
