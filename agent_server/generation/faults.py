"""What goes wrong in a step, told apart by what has to follow."""

from __future__ import annotations

import torch

LONGEST_LINE = 300
NO_MEMORY = "out of memory", "DefaultCPUAllocator"
"""What CUDA's errors say, and torch's for the CPU: "DefaultCPUAllocator: can't allocate memory", or "not enough"."""


class DeviceLost(Exception):
    """The device, or this process's context on it, does not work any more: everything after it fails too, until the
    process is another one. The message is one sentence."""


def first_line(error: BaseException) -> str:
    """The first line of an error, without what follows it."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:LONGEST_LINE]


def out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory: the same work in smaller pieces may succeed. The CUDA runtime reports its
    own failed allocations (a graph's, a stream's) as an AcceleratorError that says so."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in first_line(error) for word in NO_MEMORY)


def raise_if_lost(error: BaseException, device: torch.device) -> None:
    """Raise DeviceLost if the device is gone. An AcceleratorError says so itself: after an illegal access, a failed
    assertion or an unrecoverable memory error CUDA answers every later call with the same error. Libraries report it
    in errors of their own (cuBLAS, Triton), so after any other error the device is asked."""
    if out_of_memory(error):
        return
    if isinstance(error, torch.AcceleratorError):
        raise DeviceLost(f"The device failed: {first_line(error)}.") from error
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as answer:
        raise DeviceLost(f"The device failed: {first_line(answer)}.") from error
