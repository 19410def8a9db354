"""Load a GGUF file's tensors into a model, one tensor of the mapped file at a time.

transformers knows how llama.cpp's converter names and arranges the tensors of each architecture. Its tables and
processors are used here, but not its loader, which unpacks the whole file at once. A matrix of a linear layer or an
embedding can keep the file's blocks (`gguf_blocks.py`), so that it is not quantised again and needs no more memory.
"""

from __future__ import annotations

import copy
import logging
import math
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import torch
import transformers
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers.initialization import no_init_weights
from transformers.modeling_gguf_pytorch_utils import MiniMaxM2TensorProcessor, Qwen2MoeTensorProcessor

from agent_server.generation.checkpoints.gguf_families import tensor_processor
from agent_server.generation.checkpoints.gguf_model import PLAIN, alone, tensors
from agent_server.generation.checkpoints.gguf_tensors import GptOssTensors
from agent_server.generation.loading.ggml import FORMATS, BlockMatrix, ExpertMatrices, ggml
from agent_server.generation.loading.gguf_blocks import BlockEmbedding, BlockExperts, BlockLinear, takes_blocks
from agent_server.model_files.gguf_files import GgufFile
from agent_server.model_files.gguf_header import TensorPlace

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

logger = logging.getLogger("agent_server.generation")
WHOLE_ALONE = frozenset({"qwen35", "qwen35moe"})
"""Architectures without a table of names in transformers, whose loader then loads the file, unpacked."""
SPLIT_EXPERTS = (Qwen2MoeTensorProcessor, MiniMaxM2TensorProcessor, GptOssTensors)
"""The arrangements in which a file has the gate, up and down matrices of a layer's experts as three tensors."""
_EXPERTS = re.compile(r"(?P<layer>blk\.\d+)\.ffn_(?P<part>gate|up|down)_exps\.weight")
SCALED_FREQUENCIES = "rope_freqs.weight"
"""The divisor of each frequency (Llama 3.1 and later); no architecture's table has it."""
SAMPLING: Mapping[str, tuple[str, float | None]] = {
    "general.sampling.temp": ("temperature", 0.8),
    "general.sampling.top_k": ("top_k", 40),
    "general.sampling.top_p": ("top_p", 0.95),
    "general.sampling.min_p": ("min_p", 0.05),
    "general.sampling.penalty_repeat": ("repetition_penalty", None),
}
"""Default sampling parameters of a file, and llama.cpp's own for a file without them (`common_params_sampling` in
common/common.h). Few files have any, and their users expect llama.cpp's: at temperature 1 without a filter, a small
model in 4 bits often draws a token that makes no sense."""
Loading = Mapping[str, list[Any]]
"""Like transformers' loading information: `missing_keys`, `unexpected_keys`, and `mismatched_keys` as (name, the file's
shape, the model's shape); also `not_finite_keys`."""


def keeps_blocks(file: GgufFile, device: torch.device) -> bool:
    """Return whether the file's matrices can be multiplied in their blocks."""
    possible = device.type == "cpu" and file.architecture not in WHOLE_ALONE
    formats = {place.kind for place in file.tensors.values() if len(place.shape) == 2}
    return possible and not formats.isdisjoint(FORMATS) and ggml() is not None


def experts_in_blocks(file: GgufFile) -> set[str]:
    """Return the names of the tensors of experts that keep their blocks where other matrices do. The rest is unpacked:
    experts whose gate and up are one tensor in the file (Gemma 4), and those with a matrix in another format."""
    if not issubclass(tensor_processor(file), SPLIT_EXPERTS):
        return set()
    layers: dict[str, set[str]] = {}
    for name, place in file.tensors.items():
        if (match := _EXPERTS.fullmatch(name)) and place.kind in FORMATS:
            layers.setdefault(match["layer"], set()).add(name)
    return set().union(*(names for names in layers.values() if len(names) == 3))


def load_gguf(
    source: Any,
    file: GgufFile,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    blocks: bool,
    watched: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> tuple[PreTrainedModel, Loading]:
    """Load a GGUF file. source: the model's class. blocks: whether matrices keep the file's blocks. watched: wraps the
    tensors to report progress."""
    if file.architecture in WHOLE_ALONE:
        plan = transformers.GgufConfig(dequantize=True)
        with alone(file.path) as folder:
            model, loading = source.from_pretrained(
                folder, gguf_file=file.path.name, config=config, dtype=dtype, output_loading_info=True,
                ignore_mismatched_sizes=True, quantization_config=plan,
            )  # fmt: skip
        model = model.to(device)
    else:
        with init_empty_weights(include_buffers=False), no_init_weights():
            model = source.from_config(copy.deepcopy(config), dtype=dtype)
        loading = _Loader(model, file, dtype, device, blocks=blocks).run(watched)
        if not (loading["missing_keys"] or loading["mismatched_keys"]):
            model.to(device)
    if SCALED_FREQUENCIES in file.tensors:
        [factors] = tensors(file, SCALED_FREQUENCIES)
        for module in model.modules():
            for name in ("inv_freq", "original_inv_freq"):
                frequencies = getattr(module, name, None)
                if isinstance(frequencies, Tensor) and frequencies.shape == factors.shape:
                    setattr(module, name, frequencies / factors.to(frequencies.device))
    for key, (name, default) in SAMPLING.items():
        if (value := file.metadata.get(key, default)) is not None:
            setattr(model.generation_config, name, value)
    if file.metadata.get("general.sampling.temp") == 0:
        model.generation_config.do_sample = False
    return model, loading


class _Loader:
    """Fills a model without weights from a file."""

    def __init__(self, model: Any, file: GgufFile, dtype: torch.dtype, device: torch.device, *, blocks: bool) -> None:
        self.model, self.file, self.dtype, self.device, self.blocks = model, file, dtype, device, blocks
        self.processor = tensor_processor(file)(config=model.config.get_text_config().to_dict())
        # The file's names of the tensors → the model's.
        architecture = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == file.architecture)
        table = gguf.get_tensor_name_map(architecture, model.config.get_text_config().num_hidden_layers)
        names: dict[str, str] = {}
        for own in map(self.processor.preprocess_name, model.state_dict()):
            path, _, suffix = own.rpartition(".") if own.endswith((".weight", ".bias")) else (own, "", "")
            within = path.split(".")
            # The model's part that checkpoints of Nemotron-H call "backbone" is "model" in transformers.
            candidates = [path, ".".join(["backbone", *within[1:]])]
            candidates += [".".join(within[start:]) for start in range(1, len(within))]
            if name := next(filter(None, map(table.get_name, candidates)), None):
                # A bias without a suffix in the model has one in the file (LFM2's `expert_bias`).
                suffix = suffix or ("bias" if own.endswith("_bias") and f"{name}.bias" in file.tensors else "")
                names.setdefault(f"{name}.{suffix}" if suffix else name, own)
            else:
                self.processor.perform_fallback_tensor_mapping(names, f".{suffix}" if suffix else "", "", own)
        self.names = names
        self.stacks = self._stacks()
        self.embedding, self.head = model.get_input_embeddings(), model.get_output_embeddings()
        self.tied = self.head is not None and model.config.get_text_config().tie_word_embeddings
        self.parents: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        """The parents of each module with its name there: a module may be in several places."""
        for parent in model.modules():
            for name, child in parent.named_children():
                self.parents.setdefault(child, []).append((parent, name))
        self.mismatched: list[tuple[str, Any, Any]] = []
        self.not_finite: list[str] = []
        self.block_weights: Counter[str] = Counter()
        """The number of weights that stay in blocks, by format."""
        self.experts_in_blocks = experts_in_blocks(file)
        self.experts: dict[str, dict[str, ExpertMatrices]] = {}
        """The matrices of each layer of experts, by the layer's name."""

    def _stacks(self) -> dict[str, list[str]]:
        """Return the tensors whose rows are one linear layer's (Granite's gate and up), by the name of each of them."""
        groups: dict[str, list[str]] = {}
        for name, own in self.names.items():
            if own.endswith(".weight") and f"{name}.weight" in self.file.tensors:
                groups.setdefault(own, []).append(f"{name}.weight")
        stacks: dict[str, list[str]] = {}
        for own, group in groups.items():
            places = [self.file.tensors[name] for name in group]
            module = self.model.get_submodule(own.removesuffix(".weight"))
            shape = (sum(place.shape[0] for place in places), *places[0].shape[1:])
            if (
                len({place.kind for place in places}) == 1
                and type(module) is nn.Linear
                and module.weight.shape == shape
            ):
                stacks |= dict.fromkeys(group, group)
        return stacks

    def run(self, watched: Callable[[Iterable[Any]], Iterable[Any]]) -> Loading:
        unexpected: list[str] = []
        gathered: dict[str, dict[str, Tensor]] = {"tensors": {}}
        """Tensors that are combined from several tensors of the file, such as experts."""
        parts = Counter(self.names.values())
        with self.file.path.open("rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        raws = {
            name: torch.frombuffer(mapped, dtype=torch.uint8, count=place.size, offset=place.start)
            for name, place in self.file.tensors.items()
        }
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            # ggml interleaves a matrix in one thread; each thread takes a matrix, and the model gets them in order.
            read: dict[str, Future[BlockMatrix | ExpertMatrices]] = {
                name: pool.submit(make)
                for name, place in self.file.tensors.items()
                if (make := self._block_matrix(name, place, raws))
            }
            for name, place in watched(list(self.file.tensors.items())):
                matrix = read[name].result() if name in read else None
                if matrix is not None:
                    self._put_blocks(name, place, matrix)
                elif not (name in self.stacks and self.stacks[name][0] in read):
                    result = self.processor.process(
                        weights=_unpack(raws[name], place),
                        name=name,
                        tensor_key_mapping=self.names,
                        parsed_parameters=gathered,
                    )
                    own = self.names.get(name.removesuffix(".weight") if result.name is None else result.name)
                    if result.name is None and own is not None:
                        parts[own] -= 1
                        if not parts[own]:
                            self._put(own, gathered["tensors"].pop(own))
                    elif own is not None:
                        self._put(own, torch.from_numpy(np.ascontiguousarray(result.weights)))
                    elif result.name is not None and name != SCALED_FREQUENCIES:
                        unexpected.append(name)
                if (matrix is None or matrix.copied) and hasattr(mapped, "madvise"):  # the pages are not needed again
                    start = -(-place.start // mmap.PAGESIZE) * mmap.PAGESIZE
                    size = (place.start + place.size - start) // mmap.PAGESIZE * mmap.PAGESIZE
                    if size > 0:
                        mapped.madvise(mmap.MADV_DONTNEED, start, size)
        for own, tensor in gathered["tensors"].items():
            self._put(own, tensor)
        for path, matrices in self.experts.items():
            module = self.model.get_submodule(path)
            self._replace(module, BlockExperts(module, **matrices))
        if self.tied and self.model.get_input_embeddings() is self.embedding:
            self.head.weight = self.embedding.weight
        if self.block_weights:
            formats = ", ".join(f"{kind} {count / 1e6:.0f} million" for kind, count in self.block_weights.most_common())
            rest = str(self.dtype).removeprefix("torch.")
            logger.info("%s: weights keep their blocks in %s; the rest is %s.", self.file.path.name, formats, rest)
        refused = {name for name, _, _ in self.mismatched}
        missing = [name for name, each in self.model.named_parameters() if each.is_meta and name not in refused]
        return {
            "missing_keys": missing, "unexpected_keys": unexpected, "mismatched_keys": self.mismatched,
            "not_finite_keys": self.not_finite,
        }  # fmt: skip

    def _block_matrix(
        self, name: str, place: TensorPlace, raws: Mapping[str, Tensor]
    ) -> Callable[[], BlockMatrix | ExpertMatrices] | None:
        """Return what makes the matrix of a tensor in the file's blocks; None if its layer does not support that."""
        own, library, raw = self.names.get(name, ""), ggml(), raws[name]
        if not self.blocks or library is None:
            return None
        if (stack := self.stacks.get(name)) is not None:
            if place.kind not in FORMATS or name != stack[0]:
                return None
            rows = [raws[each].view(self.file.tensors[each].shape[0], -1) for each in stack]
            return lambda: BlockMatrix(library, torch.cat(rows), place.kind, place.shape[1])
        if name in self.experts_in_blocks:
            path = self.names.get(name.removesuffix(".weight"), "").rpartition(".")[0]
            part = _EXPERTS.sub(r"\g<part>", name)
            if not takes_blocks(self.model.get_submodule(path), part, place.shape):
                return None
            experts, out, columns = place.shape
            return partial(ExpertMatrices, library, raw.view(experts * out, -1), place.kind, columns, experts)
        if place.kind not in FORMATS or not own.endswith(".weight"):
            return None
        module = self.model.get_submodule(own.removesuffix(".weight"))
        order = self._order(name, place.shape[0])
        if order is None or tuple(module.weight.shape) != place.shape:
            return None
        looked_up = isinstance(module, nn.Embedding) and order == slice(None)
        if not looked_up and type(module) is not nn.Linear:
            return None
        return lambda: BlockMatrix(library, raw.view(place.shape[0], -1)[order], place.kind, place.shape[1])

    def _put_blocks(self, name: str, place: TensorPlace, matrix: BlockMatrix | ExpertMatrices) -> None:
        """Install a matrix in the file's blocks. A layer of experts is replaced when all of the file is read."""
        stack = self.stacks.get(name, [name])
        self.block_weights[place.kind] += sum(math.prod(self.file.tensors[each].shape) for each in stack)
        if isinstance(matrix, ExpertMatrices):
            own = self.names[name.removesuffix(".weight")]
            path, part = own.rpartition(".")[0], _EXPERTS.sub(r"\g<part>", name)
            self.experts.setdefault(path, {})[part] = matrix
            products = matrix.multiply(torch.ones(1, 1, place.shape[-1]), torch.arange(place.shape[0])[None])
        else:
            own = self.names.get(name) or self.names[name.removesuffix(".weight")]
            module = self.model.get_submodule(own.removesuffix(".weight"))
            if isinstance(module, nn.Embedding):
                self._replace(module, BlockEmbedding(module, matrix, self.dtype))
                if self.tied and module is self.embedding:
                    self._replace(self.head, BlockLinear(self.head, matrix))
            else:
                self._replace(module, BlockLinear(module, matrix))
            products = matrix.multiply(torch.ones(1, place.shape[1]))
        if not products.isfinite().all():
            self.not_finite.append(own)

    def _order(self, name: str, rows: int) -> Tensor | slice | None:
        """Return the order in which the processor arranges a matrix's rows; None if it changes the matrix otherwise."""
        probe = np.arange(2 * rows).reshape(rows, 2)
        try:
            result = self.processor.process(
                weights=probe.copy(), name=name, tensor_key_mapping=self.names, parsed_parameters={"tensors": {}}
            )
        except ValueError:  # it arranges by the number of columns (BLOOM)
            return None
        if result.name != name or result.weights.shape != probe.shape:
            return None
        order = result.weights[:, 0] // 2
        if not np.array_equal(result.weights, probe[order]):
            return None
        return slice(None) if np.array_equal(result.weights, probe) else torch.from_numpy(order)

    def _replace(self, module: nn.Module, replacement: nn.Module) -> None:
        for parent, name in self.parents.pop(module):
            setattr(parent, name, replacement)

    def _put(self, own: str, tensor: Tensor) -> None:
        """Install a tensor in the model's dtype."""
        path, _, leaf = own.rpartition(".")
        module = self.model.get_submodule(path)
        target = getattr(module, leaf)
        if target.shape != tensor.shape:
            self.mismatched.append((own, tensor.shape, target.shape))
        elif leaf in module._parameters:
            value = tensor.to(self.device, self.dtype)
            module._parameters[leaf] = nn.Parameter(value, requires_grad=False)
        else:
            module._buffers[leaf] = tensor.to(self.device, target.dtype)


def _unpack(raw: Tensor, place: TensorPlace) -> np.ndarray[Any, Any]:
    """Return a tensor's values in float32."""
    if place.kind in PLAIN:
        values = raw.view(PLAIN[place.kind]).float()
    elif place.kind in FORMATS and (library := ggml()) is not None:
        rows = raw.view(-1, len(raw) * place.shape[-1] // math.prod(place.shape))
        values = BlockMatrix(library, rows, place.kind, place.shape[-1], multiplied=False).values()
    else:
        return gguf.dequantize(raw.numpy(), gguf.GGMLQuantizationType[place.kind]).reshape(place.shape)
    return values.view(place.shape).numpy()
