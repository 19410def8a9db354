"""The files of a checkpoint, looked at before anything is loaded: what is missing, cut off or not the file itself is
said by the file's name. Reads headers alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import UnusableFile, read_json, readable

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
    wanted = f"{stem}.safetensors" if stem else f"{SAFETENSORS} (or {SAFETENSORS}.index.json and its shards)"
    raise UnusableFile(f"{folder} has no weights: {wanted} is missing; download the model again.")


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
