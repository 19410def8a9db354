"""Checkpoints whose weights are quantised already: which package reads which kind, and whether it is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from agent_server.engine_protocol.protocol import EngineError

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
    found: object = getattr(config, "quantization_config", None)
    settings: Mapping[str, object] = found if isinstance(found, Mapping) else getattr(found, "__dict__", {})
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
