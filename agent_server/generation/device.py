"""Which device and number format to use, and how much memory there is."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent_server.engine_protocol.protocol import EngineError
from agent_server.model_files import is_gguf
from agent_server.model_files.gguf_files import read_gguf

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


def choose_device(name: str) -> torch.device:
    """The named device if it is there, with its index; "auto" takes CUDA before Apple's GPU before the CPU."""
    if name == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return indexed(torch.device(kind))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise EngineError("unavailable", f"{name} is not a device; cpu, cuda, cuda:1 and mps are.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EngineError("unavailable", f"There is no device {name} here; --device cpu always works.")
    return indexed(device)


def indexed(device: torch.device) -> torch.device:
    """The same device with its index, the first of its kind unless it has one: torch.cuda.set_device asks for an
    index, and tensors carry one, so that a device without it equals none of theirs. The CPU has no index."""
    return device if device.type == "cpu" or device.index is not None else torch.device(device.type, 0)


def choose_dtype(name: str, device: torch.device, *, halved: bool = False) -> torch.dtype:
    """bfloat16 on CUDA where the chip has it, else float16. A CPU computes in bfloat16 if it has instructions for it
    and that costs nothing (`halved`: the checkpoint has 16 bits, and enough weights that reading them takes the time).
    """
    if name != "auto":
        return named_dtype(name)
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float16
    if device.type == "cpu" and halved and multiplies_bfloat16():
        return torch.bfloat16
    return torch.float16 if device.type == "mps" else torch.float32


def named_dtype(name: str, dtypes: Mapping[str, torch.dtype] = DTYPES) -> torch.dtype:
    try:
        return dtypes[name]
    except KeyError:
        raise EngineError("unavailable", f"{name} is not a dtype; {', '.join(dtypes)} are.") from None


def choose_cache_dtype(
    name: str, *, computed: torch.dtype, stored: torch.dtype | None, device: torch.device
) -> torch.dtype:
    """What keys and values are kept in: as the model computes. A CPU that computes in float32 with the weights of a
    bfloat16 checkpoint keeps them in bfloat16, if it can multiply that: attention is bound by how much it reads."""
    if name != "auto":
        return named_dtype(name, DTYPES)
    halved = device.type == "cpu" and computed == torch.float32 and stored == torch.bfloat16
    return torch.bfloat16 if halved and multiplies_bfloat16() else computed


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it; without them it is slower than float32. oneDNN says so of Arm's; of
    x86 it also counts CPUs that only emulate it."""
    if platform.machine() in ("aarch64", "arm64"):
        return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def send(values: list[int] | list[float] | list[list[int]], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A host list as a tensor on the device; from pinned memory the copy runs beside the computation, where
    `torch.tensor(..., device=)` would wait for everything that was launched before."""
    if device.type == "cpu":  # four times faster than torch.tensor
        return torch.from_numpy(np.array(values, NUMPY[dtype]))
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def put(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on the device, without waiting either."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Arrival:
    """Tensors on their way to the host, behind everything that was launched on the device so far."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._there: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()

    def wait(self) -> list[Any]:
        """The tensors' numbers, as (nested) lists. Waits for what was launched before them, not for what came later:
        the one place where a step waits for the device."""
        if self._there is not None:
            self._there.synchronize()
        return [tensor.tolist() for tensor in self._tensors]


def release_unused(device: torch.device) -> None:
    """Give back what torch's allocator keeps for later, so that it can be had in other pieces."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had; 0 where that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 8 * 2**30


def weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Memory that the weights in a folder will take in `dtype`, from the headers of its safetensors files, or those of
    a GGUF file; 0 where that cannot be told."""
    if is_gguf(folder):
        return read_gguf(folder).weights * dtype.itemsize
    total = 0
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        total += sum(_tensor_bytes(entry, dtype) for name, entry in header.items() if name != "__metadata__")
    return total


def _tensor_bytes(entry: dict[str, Any], dtype: torch.dtype) -> int:
    """Floating weights are converted, everything else stays as it is stored."""
    widths = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    width = widths.get(entry["dtype"])
    size: int = entry["data_offsets"][1] - entry["data_offsets"][0]
    return size if width is None else size // width * dtype.itemsize
