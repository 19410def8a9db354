"""LoRA: check the files of adapters, and apply their weights to the rows of a batch that use them.

Every tensor of an adapter must belong to a layer of the model. Adapters are loaded and unloaded while the server runs.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.checkpoints.checkpoint import check_weights, is_finite, weight_files
from agent_server.generation.device import send
from agent_server.generation.faults import first_line
from agent_server.model_files import UnusableFile, read_json

CONFIGURATION, STEM = "adapter_config.json", "adapter_model"
MISMATCH = re.compile(r"size mismatch for (\S+?): .*?Size\(\[([\d, ]*)\]\).*?Size\(\[([\d, ]*)\]\)")
"""torch's message about a tensor of another shape; the groups are its name, its shape in the file and in the model."""


def with_adapter(model: object, source: str, adapter: str, *, merge: bool) -> object:
    """Return the model with an adapter for all requests. merge: add its weights to the model's own; otherwise its
    layers apply both. Raises EngineError."""
    try:
        from peft import PeftConfig, PeftModel
    except ImportError:
        message = "A LoRA adapter needs the package peft: pip install 'agent-server[lora]'."
        raise EngineError("unavailable", message) from None
    check_adapter(adapter)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing tensors, which are refused below
            adapted = PeftModel(model, PeftConfig.from_pretrained(adapter))
            loading_info = adapted.load_adapter(adapter, "default")
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = first_line(error)
        if (match := MISMATCH.search(str(error))) is not None:
            name, had, expected = (group.replace(", ", " × ") for group in match.groups())
            name = name.replace(".default.", ".")  # peft's name of an adapter within the model
            reason = f"its tensor {name} is {had} and should be {expected}."
        raise EngineError("unavailable", f"The adapter {adapter} does not fit {source}: {reason}") from error
    mismatches = [f"it has {name}, for which the model has no place" for name in sorted(loading_info.unexpected_keys)]
    mismatches += [f"it lacks {name}" for name in sorted(loading_info.missing_keys)]
    if mismatches:
        message = f"The adapter {adapter} does not fit {source}: {mismatches[0].replace('.default.', '.')}."
        raise EngineError("unavailable", message)
    return adapted.merge_and_unload() if merge else adapted.get_base_model()


def check_adapter(adapter: str) -> None:
    """Raise EngineError unless a folder has an adapter's files. Names on the hub are not checked."""
    folder = Path(adapter).expanduser()
    if not folder.is_dir():
        return
    try:
        read_json(folder / CONFIGURATION)
        for file in weight_files(folder, STEM):
            check_weights(file)
    except UnusableFile as error:
        raise EngineError("unavailable", f"The adapter cannot be loaded: {error}") from error


PREFIX = "base_model.model."
PART = re.compile(r"(.+)\.lora_([AB])\.weight")
MERGE = "serve it alone with --adapter, which adds it to the weights"
Pair = tuple[Tensor, Tensor]
"""The matrices A `[rank, in]` and B `[out, rank]`; B includes the adapter's scale."""


@dataclass(frozen=True, slots=True)
class Share:
    """An adapter's part of a step. pairs: by the layers' names. places: the indices of the step's tokens that use it;
    None for all."""

    pairs: Mapping[str, Pair]
    places: Tensor | None


class Loras:
    """The LoRA adapters of one model. Each load gets a key of its own, so that cached keys and values of an adapter are
    never used for a later one of the same name."""

    def __init__(self, model: Any, name: str) -> None:
        self._name = name
        self._layers = _layers(model)
        self._device, self._dtype = model.device, model.dtype
        self._keys: dict[str, str] = {}
        self._loaded: dict[str, dict[str, Pair]] = {}
        self._users: Counter[str] = Counter()
        self._hooked: set[str] = set()
        self._attached = False
        self._serial = itertools.count(1)
        self._shares: list[Share] = []

    @property
    def names(self) -> list[str]:
        return list(self._keys)

    def load(self, name: str, folder: str) -> None:
        """Load an adapter. It replaces one of the same name for later requests. Raises EngineError."""
        place = Path(folder).expanduser()
        try:
            config = read_json(place / CONFIGURATION)
            tensors: dict[str, Tensor] = {}
            for file in weight_files(place, STEM):
                check_weights(file)
                if file.suffix == ".safetensors":
                    from safetensors.torch import load_file

                    tensors |= load_file(file)
                else:
                    tensors |= torch.load(file, map_location="cpu", weights_only=True)
        except UnusableFile as error:
            raise EngineError("unavailable", f"The adapter cannot be loaded: {error}") from error
        # The adapter must be a LoRA that can be applied to single rows of a batch.
        if (kind := str(config.get("peft_type", "LORA")).upper()) != "LORA":
            raise EngineError("unavailable", f"The adapter {folder} is of the kind {kind}; only LORA is served.")
        for setting in (
            "use_dora",
            "layer_replication",
            "modules_to_save",
            "trainable_token_indices",
            "alora_invocation_tokens",
        ):
            if config.get(setting):
                raise EngineError(
                    "unavailable",
                    f"The adapter {folder} has {setting}, which cannot be kept apart from other rows of a batch; "
                    f"{MERGE}.",
                )
        parts_by_layer: dict[str, dict[str, Tensor]] = {}
        for tensor_name, tensor in tensors.items():
            part = PART.fullmatch(tensor_name.removeprefix(PREFIX))
            if part is None:
                raise EngineError(
                    "unavailable",
                    f"The adapter {folder} has {tensor_name}, which cannot be kept apart from other rows of a batch; "
                    f"{MERGE}.",
                )
            if part[1] not in self._layers:
                raise EngineError(
                    "unavailable",
                    f"The adapter {folder} does not fit {self._name}: it has {tensor_name}, for which the model has no "
                    "place among the linear layers of its decoder.",
                )
            parts_by_layer.setdefault(part[1], {})[part[2]] = tensor
        pairs = {layer: self._pair(folder, layer, parts, config) for layer, parts in sorted(parts_by_layer.items())}
        if not pairs:
            raise EngineError("unavailable", f"The adapter {folder} has no tensors; download it again.")
        self.remove(name)
        key = f"{name}#{next(self._serial)}"
        self._keys[name], self._loaded[key] = key, pairs
        if self._attached:
            self._hook(pairs)

    def attach(self, model: Any) -> None:
        """Apply adapters in the model's layers from now on. They may have been replaced by quantised ones since it was
        loaded."""
        self._layers, self._attached = _layers(model), True
        for pairs in self._loaded.values():
            self._hook(pairs)

    def _hook(self, layers: Iterable[str]) -> None:
        for layer in set(layers) - self._hooked:

            def apply(module: nn.Module, args: tuple[Tensor, ...], out: Tensor, *, layer: str = layer) -> Tensor | None:
                return self.add(layer, args[0], out) if self.active else None

            self._layers[layer].register_forward_hook(apply)
            self._hooked.add(layer)

    def remove(self, name: str) -> bool:
        """Accept no more requests for an adapter. Its weights are freed after the last generation that uses them.
        Returns whether it existed."""
        key = self._keys.pop(name, None)
        if key is not None and not self._users[key]:
            del self._loaded[key]
        return key is not None

    def enter(self, name: str) -> str:
        """Count a generation as a user of an adapter, and return the adapter's key. Raises EngineError for an unknown
        one."""
        if name not in self._keys:
            raise EngineError("invalid_request", f"This engine has no adapter {name}.", param="model")
        key = self._keys[name]
        self._users[key] += 1
        return key

    def leave(self, key: str) -> None:
        """Count a generation as ended."""
        self._users[key] -= 1
        if not self._users[key] and key not in self._keys.values():
            del self._loaded[key]

    # a step

    @property
    def active(self) -> bool:
        """Whether the current step has rows with adapters."""
        return bool(self._shares)

    @contextlib.contextmanager
    def applied(self, keys: Sequence[str]) -> Iterator[None]:
        """Apply adapters in the forward within. keys: the key of each token's adapter; "" for none."""
        shares = []
        for key in dict.fromkeys(key for key in keys if key):
            places = [place for place, other in enumerate(keys) if other == key]
            indices = None if len(places) == len(keys) else send(places, torch.int64, self._device)
            shares.append(Share(self._loaded[key], indices))
        self._shares = shares
        try:
            yield
        finally:
            self._shares = []

    def add(self, layer: str, x: Tensor, out: Tensor) -> Tensor | None:
        """Return a layer's output with the products of the adapters added; None if no adapter has this layer. x:
        `[..., tokens, in]`. out: `[..., tokens, out]`."""
        shares = [share for share in self._shares if layer in share.pairs]
        if not shares:
            return None
        rows, result = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
        for share in shares:
            down, up = share.pairs[layer]
            if share.places is None:
                result = result + (rows @ down.T) @ up.T
            else:
                result = result.index_add(0, share.places, (rows.index_select(0, share.places) @ down.T) @ up.T)
        return result.view(out.shape)

    def _pair(self, folder: str, layer: str, parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> Pair:
        """Check the two matrices of a layer, and return them on the model's device. Raises EngineError."""
        for part in "AB":
            if part not in parts:
                lacking = f"{PREFIX}{layer}.lora_{part}.weight"
                raise EngineError("unavailable", f"The adapter {folder} does not fit {self._name}: it lacks {lacking}.")
        rank = parts["A"].shape[0] if parts["A"].dim() else 0
        inner, outer = _sizes(self._layers[layer])
        for part, expected in (("A", (rank, inner)), ("B", (outer, rank))):
            name = f"{PREFIX}{layer}.lora_{part}.weight"
            tensor = parts[part]
            if tuple(tensor.shape) != expected:
                had, should = (" × ".join(map(str, shape)) for shape in (tensor.shape, expected))
                fault = f"its tensor {name} is {had} and should be {should}"
                message = f"The adapter {folder} does not fit {self._name}: {fault}."
                raise EngineError("unavailable", message)
            if not is_finite(tensor):
                raise EngineError(
                    "unavailable",
                    f"The adapter {folder} has values in {name} that are not finite numbers; download it again.",
                )
        down, up = parts["A"], parts["B"].float() * scale_of(config, layer, rank)
        down, up = (matrix.to(self._device, self._dtype).contiguous() for matrix in (down, up))
        return down, up


def _layers(model: Any) -> dict[str, nn.Module]:
    """Return the linear layers of the text decoder whose rows are the step's tokens, by their names in the checkpoint.
    Layers of experts are excluded, since they get only some of the tokens, and the output layer, which gets those whose
    logits are needed."""
    whole = getattr(model, "whole", model)
    within = set(whole.get_decoder().modules())
    return {
        name: module
        for name, module in whole.named_modules()
        if module in within and ".experts." not in name and _sizes(module) != (0, 0)
    }


def _sizes(module: nn.Module) -> tuple[int, int]:
    """Return (in, out) of a linear layer; (0, 0) for any other module. GPT-2's Conv1D is a linear layer with transposed
    weights."""
    if type(module).__name__ == "Conv1D":
        return int(module.nx), int(module.nf)  # type: ignore[arg-type]
    sizes = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (sizes[0], sizes[1]) if isinstance(sizes[0], int) and isinstance(sizes[1], int) else (0, 0)


def scale_of(config: Mapping[str, Any], layer: str, rank: int) -> float:
    """Return the scale of an adapter's product as in peft (LoraLayer.update_layer): alpha / rank, or alpha / √rank with
    `use_rslora`. alpha depends on the layer if a pattern matches its name."""
    patterns = config.get("alpha_pattern") or {}
    alpha = next(
        (value for pattern, value in patterns.items() if re.fullmatch(rf"(?:.*\.)?(?:{pattern})", layer)),
        config.get("lora_alpha", 8),
    )
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
