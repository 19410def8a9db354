"""A CUDA device that is not there: torch's fake tensors on `cuda:0`, which have shapes and a device and no numbers.

They raise where an operation mixes devices, and where a number is asked for (`.item()`, `.tolist()`, the bool of a
tensor, sizes that depend on values). This module adds what a CPU build of torch lacks to carry them (indexing, pinned
memory, events) and raises for what they cannot see: copies between host and device that wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("cuda:0")
GIB = 2**30
STEP = 300 * 2**20
"""What the largest step takes, by the counters of this device."""


PLAIN = {
    Tensor.copy_: torch.ops.aten.copy_.default,
    Tensor.contiguous: lambda tensor: _contiguous(tensor),
    Tensor.__invert__: torch.bitwise_not,
}
"""Methods whose Python bindings ask for a CUDA runtime, and the operations that they stand for."""


class HiddenWait(AssertionError):
    """The host would stand still here until the device has done everything that it was given."""


class _Event:
    """torch.cuda.Event, as far as steps use it; `waited` counts who waited for one."""

    waited = 0

    def record(self, stream: object = None) -> None:
        pass

    def synchronize(self) -> None:
        _Event.waited += 1


class _Bridge(TorchFunctionMode):
    """What a CPU build cannot do with tensors on CUDA; `strict`: a copy that waits is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.strict = False
        self.pinned: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        if self.strict:
            self._look_for_waits(func, args, kwargs)
        if func is Tensor.__getitem__ and args[0].device.type == "cuda":
            return _get(*args)
        if func is Tensor.__setitem__ and args[0].device.type == "cuda":
            return _set(*args)
        if func in PLAIN:
            return PLAIN[func](*args)
        if args and isinstance(args[0], torch.UntypedStorage):  # a file's bytes, which a fake tensor cannot stand on
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is torch.tensor and _is_cuda(kwargs.get("device")):
            return func(*args, **{**kwargs, "device": "cpu"}).to(kwargs["device"])
        found = func(*args, **kwargs)
        if isinstance(found, FakeTensor):
            found.constant = None  # else operations on it are tried with its numbers, on a device that is not there
        if pinned:
            self.pinned.append(found)
        return found

    def _look_for_waits(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        name = getattr(func, "__name__", "")
        if name in ("tensor", "as_tensor") and _is_cuda(kwargs.get("device")):
            raise HiddenWait(f"torch.{name}(..., device=cuda) copies from memory that is not pinned, and waits.")
        if name in ("to", "cuda", "cpu", "copy_") and not kwargs.get("non_blocking"):
            target = _target(name, args, kwargs)
            if target is not None and target != args[0].device.type:
                raise HiddenWait(f"Tensor.{name} between host and device waits without non_blocking.")
        pinned = name != "to" or any(args[0] is tensor for tensor in self.pinned)
        if not pinned and _is_cuda(_target(name, args, kwargs)) and args[0].device.type == "cpu":
            raise HiddenWait("A copy to the device from memory that is not pinned waits.")


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor if tensor.is_contiguous() else tensor.clone(memory_format=torch.contiguous_format)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _target(name: str, args: Any, kwargs: dict[str, Any]) -> str | None:
    """The kind of device that a copy goes to (`copy_`: comes from), None where it stays."""
    if name in ("cuda", "cpu"):
        return name
    if name == "copy_":
        return str(args[1].device.type)
    for value in (*args[1:], kwargs.get("device")):
        if isinstance(value, str | torch.device):
            return torch.device(value).type
        if isinstance(value, Tensor):
            return value.device.type
    return None


def _get(tensor: Tensor, index: Any) -> Tensor:
    """`tensor[index]` by operations of their own: Python's indexing asks for a CUDA runtime."""
    items = list(index) if isinstance(index, tuple) else [index]
    if Ellipsis in [item for item in items if not isinstance(item, Tensor)]:
        at = next(number for number, item in enumerate(items) if item is Ellipsis)
        used = sum(item is not None and item is not Ellipsis for item in items)
        items[at : at + 1] = [slice(None)] * (tensor.dim() - used)
    out, dim = tensor, 0
    gathered: list[Tensor | None] = []
    for item in items:
        if item is None:
            out, dim = out.unsqueeze(dim), dim + 1
            gathered.append(None)
        elif isinstance(item, slice):
            if item != slice(None):
                out = torch.ops.aten.slice.Tensor(out, dim, item.start, item.stop, item.step or 1)
            dim += 1
            gathered.append(None)
        elif isinstance(item, Tensor):
            gathered.append(item)
            dim += 1
        elif isinstance(item, list):
            gathered.append(torch.ops.aten.empty.memory_format([len(item)], dtype=torch.int64, device=out.device))
            dim += 1
        else:
            out = out.select(dim, int(item))
    return torch.ops.aten.index.Tensor(out, gathered) if any(g is not None for g in gathered) else out


def _set(tensor: Tensor, index: Any, value: Any) -> None:
    items = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(item, Tensor) for item in items):
        target = _get(tensor, index)
        torch.ops.aten.copy_.default(target, value) if isinstance(value, Tensor) else target.fill_(value)
        return
    if not isinstance(value, Tensor):
        value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    places = [item if isinstance(item, Tensor) else None for item in items]
    torch.ops.aten.index_put_.default(tensor, places, value)


@contextmanager
def fake_cuda(patch: pytest.MonkeyPatch, *, free: int = 24 * GIB) -> Iterator[_Bridge]:
    """Everything inside computes with fake tensors, and `cuda:0` is there, with `free` bytes. Yields the bridge, whose
    `strict` is to be set once the model is loaded."""
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "device_count", lambda: 1)
    patch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    patch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, free))
    patch.setattr(torch.cuda, "Event", _Event)
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache"):
        patch.setattr(torch.cuda, name, lambda device=None: None)
    patch.setattr(torch.cuda, "memory_allocated", lambda device=None: GIB)
    patch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: GIB + STEP)
    patch.setattr(torch._C, "_cuda_setDevice", lambda index: None, raising=False)
    bridge = _Bridge()
    with FakeTensorMode(allow_non_fake_inputs=True), bridge:
        yield bridge
