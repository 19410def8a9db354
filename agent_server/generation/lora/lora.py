"""A LoRA adapter over a model: its files are checked, and every tensor of it must find its place."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.checkpoints.checkpoint import check_weights, weight_files
from agent_server.generation.faults import first_line
from agent_server.model_files import UnusableFile, read_json

CONFIGURATION, STEM = "adapter_config.json", "adapter_model"
MISMATCH = re.compile(r"size mismatch for (\S+?): .*?Size\(\[([\d, ]*)\]\).*?Size\(\[([\d, ]*)\]\)")
"""torch's words for a tensor of another shape; the groups are its name, its shape in the file and in the model."""


def with_adapter(model: object, source: str, adapter: str, *, merge: bool) -> object:
    """The model with the adapter's weights, added to its own (`merge`) or beside them. Raises EngineError."""
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        message = "A LoRA adapter needs the package peft: pip install 'agent-server[lora]'."
        raise EngineError("unavailable", message) from None
    check_adapter(adapter)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of missing tensors, which are refused below
            adapted = PeftModel(model, PeftConfig.from_pretrained(adapter))
            found = adapted.load_adapter(adapter, "default")
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise EngineError("unavailable", f"The adapter {adapter} does not fit {source}: {_reason(error)}") from error
    left = [f"it has {name}, for which the model has no place" for name in sorted(found.unexpected_keys)]
    left += [f"it lacks {name}" for name in sorted(found.missing_keys)]
    if left:
        message = f"The adapter {adapter} does not fit {source}: {left[0].replace('.default.', '.')}."
        raise EngineError("unavailable", message)
    return adapted.merge_and_unload() if merge else adapted.get_base_model()


def check_adapter(adapter: str) -> None:
    """Raise EngineError unless a folder has an adapter's files; names on the hub are left to peft."""
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        return
    try:
        read_json(folder / CONFIGURATION)
        for file in weight_files(folder, STEM):
            check_weights(file)
    except UnusableFile as error:
        raise EngineError("unavailable", f"The adapter cannot be loaded: {error}") from error


def _reason(error: Exception) -> str:
    found = MISMATCH.search(str(error))
    if found is None:
        return first_line(error)
    name, had, wanted = found.groups()
    name = name.replace(".default.", ".")  # what peft calls an adapter within the model
    return f"its tensor {name} is {had.replace(', ', ' × ')} and should be {wanted.replace(', ', ' × ')}."
