"""The choice of device and dtype, transfers between host and device, and the free memory."""

from __future__ import annotations

import json
import os
import platform
import shutil
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

NO_COMPILER = (
    "There is no C compiler, which Triton needs to start its kernels: install gcc and Python's headers, or name a "
    "compiler in the variable CC."
)


def choose_device(name: str) -> torch.device:
    """Return the named device with its index. "auto" prefers CUDA over Apple's GPU over the CPU. Raises EngineError for
    a device that is unknown or absent."""
    if name == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return indexed(torch.device(kind))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise EngineError("unavailable", f"Unknown device {name!r}. Use cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise EngineError("unavailable", f"This machine has no device {name!r}. Use --device cpu.")
    return indexed(device)


def indexed(device: torch.device) -> torch.device:
    """Return the device with its index, 0 unless it has one. torch.cuda.set_device requires an index, and the devices
    of tensors have one, so a device without an index equals none of them. The CPU has no index."""
    return device if device.type == "cpu" or device.index is not None else torch.device(device.type, 0)


def choose_dtype(name: str, device: torch.device, *, halved: bool = False) -> torch.dtype:
    """Return the named dtype or, for "auto", the best one: bfloat16 on CUDA if the chip supports it, else float16. A
    CPU uses bfloat16 if it has instructions for it and `halved`: the checkpoint has 16 bits, and so many weights that
    reading them dominates."""
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
        raise EngineError("unavailable", f"Unknown dtype {name!r}. Use {', '.join(dtypes)}.") from None


def choose_cache_dtype(
    name: str, *, computed: torch.dtype, stored: torch.dtype | None, device: torch.device
) -> torch.dtype:
    """Return the dtype of keys and values; "auto" is the dtype of computation. A CPU that computes in float32 with the
    weights of a bfloat16 checkpoint stores them in bfloat16 if it can multiply that, since attention is bound by
    memory bandwidth."""
    if name != "auto":
        return named_dtype(name, DTYPES)
    stored_16_bit = device.type == "cpu" and computed == torch.float32 and stored == torch.bfloat16
    return torch.bfloat16 if stored_16_bit and multiplies_bfloat16() else computed


def find_compiler() -> str:
    """Return the name of the C compiler that Triton uses: the variable CC, gcc or clang. Empty if there is none."""
    return Path(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or "").name


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions for bfloat16; without them it is slower than float32. oneDNN reports
    this for Arm; for x86 its report includes CPUs that only emulate it."""
    if platform.machine() in ("aarch64", "arm64"):
        return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16"))


def send(values: list[int] | list[float] | list[list[int]], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Copy a list to the device. From pinned memory the copy runs concurrently with computation, whereas
    `torch.tensor(..., device=)` would wait for everything that was launched before."""
    if device.type == "cpu":  # four times faster than torch.tensor
        return torch.from_numpy(np.array(values, NUMPY[dtype]))
    if device.type != "cuda":
        return torch.tensor(values, dtype=dtype, device=device)
    return torch.tensor(values, dtype=dtype, pin_memory=True).to(device, non_blocking=True)


def put(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to the device without waiting."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


class Arrival:
    """An asynchronous copy of tensors to the host, queued after everything that was launched on the device so far."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._copied: torch.cuda.Event | None = None
        if any(tensor.is_cuda for tensor in tensors):
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def wait(self) -> list[Any]:
        """Wait for the copy and return the values as (nested) lists. It does not wait for what was launched later. This
        is the only place where a step waits for the device."""
        if self._copied is not None:
            self._copied.synchronize()
        return [tensor.tolist() for tensor in self._tensors]


def release_unused(device: torch.device) -> None:
    """Release the unused memory that torch's allocator caches, so that it can be allocated in other sizes."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    """Return the free memory of the device in bytes."""
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
    """Return the bytes that the weights in a folder will take in `dtype`, from the headers of its safetensors files or
    of a GGUF file; 0 if it has neither."""
    if is_gguf(folder):
        return read_gguf(folder).weights * dtype.itemsize
    widths = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    total = 0
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else ():
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        for entry in (entry for name, entry in header.items() if name != "__metadata__"):
            size = entry["data_offsets"][1] - entry["data_offsets"][0]
            # Floating weights are converted to `dtype`; others stay as they are stored.
            width = widths.get(entry["dtype"])
            total += size if width is None else size // width * dtype.itemsize
    return total
