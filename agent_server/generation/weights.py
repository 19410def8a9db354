"""A folder or a hub name → a model with its weights on its device, with progress, and one sentence when it fails."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from agent_server.engine.protocol import EngineError, EngineStatus
from agent_server.generation.config import EngineConfig
from agent_server.generation.device import free_bytes, weight_bytes
from agent_server.generation.faults import first_line

Report = Callable[[EngineStatus], None]
_LOADING = threading.Lock()
"""transformers changes functions of torch and of its own while it loads, for every thread: of two loads at once, one
would leave tied weights out and the changes behind."""
SEVERAL_GPUS = (
    " This engine computes a model on one device: one that needs several GPUs is served with --engine vllm and "
    """AGENT_SERVER_VLLM='{"tensor_parallel_size": 2}'."""
)


def check_folder(model: str) -> None:
    """Raise unless it is a folder with a model, or looks like a name on the hub."""
    path = Path(model).expanduser()
    looks_like_path = model.startswith((".", "/", "~")) or os.sep in model.replace("/", "", 1)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise EngineError("unavailable", f"{model} is a folder without a model: it has no config.json.")
    elif path.is_file() or looks_like_path:
        raise EngineError("unavailable", f"{model} is not a folder with a model.")


def read_configuration(model: str) -> Any:
    """transformers' configuration of the model."""
    try:
        return AutoConfig.from_pretrained(model)
    except (ValueError, KeyError) as error:
        if "architecture" in str(error) or "model type" in str(error) or isinstance(error, KeyError):
            message = f"{model} is of an architecture that transformers {transformers.__version__} does not know."
            raise EngineError("unavailable", message) from error
        raise
    except OSError as error:
        raise EngineError(
            "unavailable", f"There is no model {model} here or on the hub: {first_line(error)}"
        ) from error


def check_memory(model: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise if the weights alone are more than what is free."""
    needed, free = weight_bytes(Path(model).expanduser(), dtype), free_bytes(device)
    if needed and free and needed > free:
        larger = "" if device.type == "cpu" else SEVERAL_GPUS
        raise EngineError(
            "out_of_memory",
            f"{model} needs about {needed / 2**30:.1f} GiB for its weights alone; "
            f"{free / 2**30:.1f} GiB are free on {device}.{larger}",
        )


def load_weights(config: EngineConfig, settings: Any, device: torch.device, dtype: torch.dtype, report: Report) -> Any:
    """The model in evaluation mode. Weights for another device than the CPU go straight there, one tensor of a mapped
    file after the other: host memory never holds the model."""
    with _LOADING:
        return _load_weights(config, settings, device, dtype, report)


def _load_weights(config: EngineConfig, settings: Any, device: torch.device, dtype: torch.dtype, report: Report) -> Any:
    quantised = getattr(settings, "quantization_config", None) is not None
    before = transformers.utils.logging.set_tqdm_hook(_progress_hook(report))
    try:
        model = _class_for(settings).from_pretrained(
            config.model,
            dtype="auto" if quantised and config.dtype == "auto" else dtype,
            **({"device_map": {"": device}} if quantised or device.type != "cpu" else {}),
        )
    finally:
        transformers.utils.logging.set_tqdm_hook(before)
    if config.adapter:
        model = _adapted(model, config.adapter, quantised)
    return model.eval().requires_grad_(False)


def _class_for(settings: Any) -> Any:
    """transformers' class for models of pictures and text where the configuration is one's, else the one for text."""
    seeing = type(settings) in AutoModelForImageTextToText._model_mapping
    text = type(settings) in AutoModelForCausalLM._model_mapping
    has_eyes = getattr(settings, "vision_config", None) is not None
    return AutoModelForImageTextToText if seeing and (has_eyes or not text) else AutoModelForCausalLM


def _adapted(model: Any, adapter: str, quantised: bool) -> Any:
    try:
        from peft import PeftModel
    except ImportError:
        message = "A LoRA adapter needs the package peft: pip install 'agent-server[lora]'."
        raise EngineError("unavailable", message) from None
    try:
        adapted = PeftModel.from_pretrained(model, adapter)
    except (OSError, ValueError, RuntimeError) as error:
        raise EngineError("unavailable", f"Cannot load the adapter {adapter}: {first_line(error)}") from error
    return adapted.get_base_model() if quantised else adapted.merge_and_unload()


class _Progress:
    """What transformers takes for a progress bar; tells the status how far the weights are."""

    def __init__(self, items: Any, total: int | None, report: Report) -> None:
        self._items = items
        self._total = total or (len(items) if hasattr(items, "__len__") else 0)
        self._report = report
        self._done = 0

    def __iter__(self) -> Any:
        for item in self._items:
            yield item
            self.update()

    def update(self, count: int = 1) -> None:
        before, self._done = self._done, self._done + count
        if self._total and self._done * 50 // self._total != before * 50 // self._total:
            share = 0.05 + 0.85 * min(1.0, self._done / self._total)
            self._report(EngineStatus(state="loading", progress=share, message="weights"))

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, _: str) -> Any:
        return lambda *args, **kwargs: None


def _progress_hook(report: Report) -> Any:
    def hook(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Progress:
        items = args[0] if args else kwargs.get("iterable")
        return _Progress(() if items is None else items, kwargs.get("total"), report)

    return hook
