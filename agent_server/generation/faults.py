"""The classes of errors in a step that need different recovery: out of memory, device lost, anything else."""

from __future__ import annotations

import torch

LONGEST_LINE = 300
MEMORY_PHRASES = "out of memory", "DefaultCPUAllocator"
"""Phrases in the messages of CUDA's errors and of torch's CPU allocator ("DefaultCPUAllocator: can't allocate memory"
or "not enough")."""


class DeviceLost(Exception):
    """The device, or this process's context on it, has failed: all later calls fail too until the process is restarted.
    The message is one sentence."""


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name if it has none."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:LONGEST_LINE]


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that there was too little memory, so that smaller steps may succeed. The CUDA
    runtime reports its own failed allocations (of a graph or a stream) as an AcceleratorError with such a message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in first_line(error) for word in MEMORY_PHRASES)


def raise_if_lost(error: BaseException, device: torch.device) -> None:
    """Raise DeviceLost if the device has failed. An AcceleratorError always means that: after an illegal access, a
    failed assertion or an unrecoverable memory error CUDA answers every later call with the same error. Libraries such
    as cuBLAS and Triton report it in errors of their own, so after any other error the device is synchronised to
    check."""
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
