"""Kernels that transformers takes from other packages where they are installed: flash-linear-attention (`fla`),
causal-conv1d and mamba-ssm.

transformers resolves each function when it imports the model's code, whatever device the model is on. The kernels run
on GPUs only, so on a CPU its own functions are restored; on a GPU, packages that are not installed are named.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DISTRIBUTIONS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d", "mamba_ssm": "mamba-ssm"}


class KernelFunction(NamedTuple):
    """A function of a model's code for which transformers looks in a package. found: whether it uses the package's."""

    code: ModuleType
    name: str
    own: Callable[..., Any]
    package: str
    found: bool


def kernel_functions(model: PreTrainedModel) -> Iterator[KernelFunction]:
    """Yield the functions of `use_kernel_func_from_hub_with_fallback` (transformers/integrations/hub_kernels.py), whose
    closure has what it found."""
    modules = {type(module).__module__ for module in model.modules()}
    for code in filter(None, map(sys.modules.get, modules)):
        for name, function in inspect.getmembers(code, inspect.isfunction):
            closure = inspect.getclosurevars(function).nonlocals if hasattr(function, "__wrapped__") else {}
            if "is_new_implementation" in closure:
                own, package, found = (closure[key] for key in ("torch_function", "package", "is_new_implementation"))
                yield KernelFunction(code, name, own, package, found)


def use_torch_functions(model: PreTrainedModel) -> None:
    """Replace kernels of other packages by transformers' own functions, if the model is on the CPU."""
    if model.device.type == "cpu":
        for function in list(kernel_functions(model)):
            if function.found:
                setattr(function.code, function.name, function.own)


def missing_packages(model: PreTrainedModel) -> list[str]:
    """Return the distributions whose kernels would make this model faster, on CUDA."""
    if model.device.type != "cuda":
        return []
    missing = {function.package for function in kernel_functions(model) if not function.found}
    return sorted(DISTRIBUTIONS.get(package, package) for package in missing)
