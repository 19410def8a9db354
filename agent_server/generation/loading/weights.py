"""Load a model's weights from a folder or the hub to its device, with progress and one-sentence errors."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from agent_server.engine_protocol.protocol import EngineError, EngineStatus
from agent_server.generation.checkpoints import gguf_model
from agent_server.generation.checkpoints.checkpoint import (
    check_checkpoint,
    check_configuration,
    check_loaded,
    check_packages,
)
from agent_server.generation.device import free_bytes, weight_bytes
from agent_server.generation.faults import LONGEST_LINE, first_line
from agent_server.generation.lora.lora import with_adapter
from agent_server.generation.multimodal.language import has_sound_tower
from agent_server.generation.scheduling.messages import EngineConfig
from agent_server.model_files import OWN_CODE, is_gguf, read_json
from agent_server.model_files.gguf_files import GgufFile

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Report = Callable[[EngineStatus], None]
_LOADING = threading.Lock()
"""Serializes loads. While transformers loads, it patches functions of torch and its own for all threads; of two
concurrent loads, one would omit tied weights and leave the patches in place."""
QUIET_WHILE_LOADING = ("transformers.modeling_utils", "transformers.distributed.tensor_parallel")
"""transformers' loggers that are silenced: `check_loaded` reports the same in a sentence, and warnings about layers
without a tensor-parallel plan do not apply to a single device."""
SEVERAL_GPUS = (
    " This engine computes a model on one device: one that needs several GPUs is served with --engine vllm and "
    """AGENT_SERVER_VLLM='{"tensor_parallel_size": 2}'."""
)


ADAPTER_ALONE = (
    "{0} holds an adapter without its model: serve {1} with --adapter {0}, or with --lora NAME={0} to have both."
)


def check_source(model: str) -> None:
    """Raise EngineError unless `model` is a folder with a model's files, a GGUF file, or looks like a name on the
    hub."""
    path = Path(model).expanduser()
    if is_gguf(model):
        gguf_model.checked(model)
        return
    looks_like_path = model.startswith((".", "/", "~")) or os.sep in model.replace("/", "", 1)
    if path.is_dir():
        for file in sorted(path.iterdir()):
            # The files of a hub cache are links, which dangle if their targets were moved or removed.
            if file.is_symlink() and not file.exists():
                message = f"{file} is a link to {file.readlink()}, which is not there; download it again."
                raise EngineError("unavailable", message)
        if not (path / "config.json").is_file() and (path / "adapter_config.json").is_file():
            base = read_json(path / "adapter_config.json").get("base_model_name_or_path")
            raise EngineError("unavailable", ADAPTER_ALONE.format(model, base or "the model that it was trained for"))
        if not (path / "config.json").is_file():
            raise EngineError("unavailable", f"{model} is a folder without a model: it has no config.json.")
        check_configuration(path)
    elif path.is_file() or looks_like_path:
        raise EngineError("unavailable", f"{model} is not a folder with a model.")


def read_configuration(model: str, *, trusted: bool = False) -> PreTrainedConfig:
    """Read transformers' configuration of the model. trusted: whether the model's own code may run. Raises
    EngineError."""
    if is_gguf(model):
        return gguf_model.configuration(gguf_model.checked(model))
    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=trusted)
    except OSError as error:
        raise EngineError(
            "unavailable", f"There is no model {model} here or on the hub: {first_line(error)}"
        ) from error
    except Exception as error:  # each architecture checks the values of config.json in its own way
        if "should have a `model_type`" in str(error).lower():
            message = (
                f"{model}/config.json has no model_type, so that its architecture is not known; download it again."
            )
        elif "trust_remote_code" in str(error):
            message = OWN_CODE.format(model)
        elif isinstance(error, KeyError) or "does not recognize this architecture" in str(error):
            message = f"{model} is of an architecture that transformers {transformers.__version__} does not know."
        else:
            lines = " ".join(line.strip() for line in str(error).splitlines())[:LONGEST_LINE]
            message = f"{model}/config.json cannot be used: {lines}"
        raise EngineError("unavailable", message) from error


def check_files(model: str, config: PreTrainedConfig, device: torch.device) -> str | None:
    """Raise EngineError unless a folder has the weights of a model that generates text. Models on the hub are only
    checked when they load. Return a sentence about FP8 weights that are unpacked, as `check_packages` does."""
    model_class(model, config)
    unpacked = check_packages(model, config, device)
    if (folder := Path(model).expanduser()).is_dir():
        check_checkpoint(folder)
    return unpacked


def check_memory(config: EngineConfig, dtype: torch.dtype, device: torch.device) -> None:
    """Raise EngineError if the weights alone exceed the free memory."""
    model, free = config.model, free_bytes(device)
    path = Path(model).expanduser()
    if in_blocks(config, device):  # a matrix takes what it takes in the file; some experts are unpacked
        file = gguf_model.checked(model)
        unpacked = set(_unpacked_experts(file))
        needed = sum(
            math.prod(place.shape) * dtype.itemsize if name in unpacked else place.size
            for name, place in file.tensors.items()
        )
    else:
        needed = weight_bytes(path, dtype)
    if needed and free and needed > free:
        larger = "" if device.type == "cpu" else SEVERAL_GPUS
        raise EngineError(
            "out_of_memory",
            f"{model} needs about {needed / 2**30:.1f} GiB for its weights alone; "
            f"{free / 2**30:.1f} GiB are free on {device}.{larger}",
        )


def load_weights(
    config: EngineConfig, settings: PreTrainedConfig, device: torch.device, dtype: torch.dtype, report: Report
) -> PreTrainedModel:
    """Load the model in evaluation mode. Weights for a device other than the CPU are copied there tensor by tensor from
    the mapped file, so that host memory never holds the whole model."""
    with _LOADING:
        quantised = getattr(settings, "quantization_config", None) is not None
        if quantised and config.quantize:
            message = f"{config.model} is quantised already; serve it without --quantize."
            raise EngineError("unavailable", message)
        source, weight_dtype = (
            model_class(config.model, settings),
            "auto" if quantised and config.dtype == "auto" else dtype,
        )
        places = {"device_map": {"": device}} if quantised or device.type != "cpu" else {}
        # check_loaded refuses mismatched sizes, by their names
        common = {"dtype": weight_dtype, "ignore_mismatched_sizes": True, **places}
        with _reporting(report):
            if is_gguf(config.model):
                from agent_server.generation.loading.gguf_weights import load_gguf  # of an extra

                model, loading_info = load_gguf(
                    source, gguf_model.checked(config.model), settings, dtype, device,
                    blocks=in_blocks(config, device), watched=lambda items: _Progress(items, None, report),
                )  # fmt: skip
            else:
                model, loading_info = source.from_pretrained(
                    config.model, trust_remote_code=config.trust_remote_code, output_loading_info=True, **common
                )
        check_loaded(config.model, model, loading_info)
        if config.adapter:
            model = with_adapter(model, config.model, config.adapter, merge=not quantised)
        return model.eval().requires_grad_(False)


def in_blocks(config: EngineConfig, device: torch.device, *, whole: bool = False) -> bool:
    """Return whether a GGUF file's matrices keep their blocks. They do not if the settings request other weights.

    whole: whether all of them do, experts included.
    """
    if not is_gguf(config.model) or config.dtype != "auto" or config.quantize or config.adapter:
        return False
    from agent_server.generation.loading.gguf_weights import keeps_blocks

    file = gguf_model.checked(config.model)
    return keeps_blocks(file, device) and not (whole and _unpacked_experts(file))


def _unpacked_experts(file: GgufFile) -> list[str]:
    """Return the names of the tensors of three dimensions that do not keep their blocks."""
    from agent_server.generation.loading.gguf_weights import experts_in_blocks

    kept = experts_in_blocks(file)
    return [name for name, place in file.tensors.items() if len(place.shape) > 2 and name not in kept]


def model_class(model: str, config: PreTrainedConfig) -> Any:
    """Return transformers' class for a configuration. Raises EngineError for a model that does not generate text."""
    name = (config.architectures or [type(config).__name__.removesuffix("Config")])[0]
    if config.is_encoder_decoder:
        reason = "it has an encoder and a decoder, and only models of a decoder alone are served"
    elif config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(config, "is_decoder", False):
        reason = "it is an encoder, which reads text and writes none"
    elif (matching_class := _class_for(config)) is None:
        reason = f"transformers {transformers.__version__} has no class that generates text with it"
    else:
        return matching_class
    raise EngineError(
        "unavailable", f"{model} ({name}) cannot be served: {reason}; choose a model that generates text."
    )


def _class_for(config: PreTrainedConfig) -> object:
    """Return the class for models of pictures or sounds and text if the configuration is of that kind, and otherwise
    the class for text."""
    text = _supports(AutoModelForCausalLM, config)
    if _supports(AutoModelForImageTextToText, config) and (
        getattr(config, "vision_config", None) is not None or not text
    ):
        return AutoModelForImageTextToText
    if _supports(AutoModelForMultimodalLM, config) and has_sound_tower(config):
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM if text else None


def _supports(auto: Any, config: PreTrainedConfig) -> bool:
    return type(config) in auto._model_mapping or auto.__name__ in (getattr(config, "auto_map", None) or {})


@contextlib.contextmanager
def _reporting(report: Report) -> Iterator[None]:
    """Send transformers' progress to `report`, and silence its table of missing weights, which `check_loaded`
    reports."""

    def progress_bar(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Progress:
        items = args[0] if args else kwargs.get("iterable")
        return _Progress(() if items is None else items, kwargs.get("total"), report)

    before = transformers.utils.logging.set_tqdm_hook(progress_bar)
    levels = {name: logging.getLogger(name).level for name in QUIET_WHILE_LOADING}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        transformers.utils.logging.set_tqdm_hook(before)
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


class _Progress:
    """A replacement of transformers' progress bar, which reports the progress of the weights."""

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

    def __getattr__(self, _: str) -> object:
        return lambda *args, **kwargs: None
