"""Embedding models: one vector for each text, with the steps that sentence-transformers' files describe."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from tokenizers import Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers
from torch import Tensor, nn
from torch.nn.functional import normalize

from agent_server.generation.checkpoints.checkpoint import PICKLED, SAFETENSORS
from agent_server.generation.device import choose_device, choose_dtype
from agent_server.model_files import UnusableFile, load_model_files, model_folder, read_json

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of the configuration, in the order in which several poolings are concatenated."""
NAMED: dict[str, Pooling] = {mode: mode for mode in MODES.values()}
FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "README.md",
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin",
    "*/config.json",
    "0_*/*",
    "[1-9]_*/*",
)
"""Patterns of the files that are read from the hub, besides those of the tokenizer."""
OWN_PACKAGE = "sentence_transformers."
LIMITS = "sentence_{}_config.json"
KINDS = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
"""Names in the file of the transformer's settings, as older versions wrote it."""
TASK = "feature-extraction"
SENTENCE = "sentence_embedding"


class Dense(nn.Module):
    """A linear layer with an activation. With `use_residual`, the input is added to its output."""

    def __init__(self, config: Mapping[str, Any], activation: nn.Module) -> None:
        super().__init__()
        size, out = int(config["in_features"]), int(config["out_features"])
        self.linear = nn.Linear(size, out, bias=bool(config.get("bias", True)))
        self.activation = activation
        self.adds_input = bool(config.get("use_residual", False))
        if self.adds_input and size != out:
            self.residual = nn.Linear(size, out, bias=False)

    def forward(self, vectors: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.linear(vectors))
        if not self.adds_input:
            return outputs
        return outputs + (self.residual(vectors) if hasattr(self, "residual") else vectors)


class LayerNorm(nn.Module):
    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dimension)

    def forward(self, vectors: Tensor) -> Tensor:
        normed: Tensor = self.norm(vectors)
        return normed


class Normalize(nn.Module):
    """Scale vectors to the length 1."""

    def forward(self, vectors: Tensor) -> Tensor:
        return normalize(vectors, dim=-1)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of an embedding model.

    transformer: the folder with the model and its tokenizer. pooling: several are concatenated. layers: applied to the
    pooled vectors in order. longest: the limit of a text in tokens, by the transformer's settings. cuts: whether longer
    texts are truncated, as in sentence-transformers. prompts: texts to put before an input, by name. pools_prompt:
    whether a prompt's own tokens are pooled.
    """

    transformer: Path
    pooling: tuple[Pooling, ...]
    layers: tuple[nn.Module, ...] = ()
    longest: int | None = None
    cuts: bool = False
    lowercase: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    pools_prompt: bool = True


def read_steps(folder: Path) -> Steps:
    """Read the steps of a model. Raises UnusableFile for steps that are not supported."""
    listing = folder / "modules.json"
    if not listing.is_file():
        architectures = _optional(folder / "config.json").get("architectures") or ()
        generates = any(str(name).endswith("ForCausalLM") for name in architectures)
        return Steps(folder, ("lasttoken",) if generates else ("mean",), (Normalize(),) if generates else ())
    modules: list[tuple[str, Path]] = []
    for module in read_modules(listing):
        whole = str(module.get("type"))
        kind = whole.rpartition(".")[2]
        # Classes of the model's own are not supported, whatever their name.
        if not whole.startswith(OWN_PACKAGE) or kind not in ("Transformer", "Pooling", *LAYERS):
            raise UnusableFile(f"{listing} asks for {whole}, which is not supported.")
        modules.append((kind, folder / str(module.get("path", ""))))
    kinds = [kind for kind, _ in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & set(kinds[2:]):
        raise UnusableFile(f"{listing} lists {', '.join(kinds)}; a Transformer and its Pooling must come first.")
    transformer, pooling = modules[0][1], read_json(modules[1][1] / "config.json")
    # max_seq_length and do_lower_case of the transformer.
    paths = (transformer / LIMITS.format(kind) for kind in KINDS)
    limits = next((read_json(path) for path in paths if path.is_file()), {})
    if (task := limits.get("transformer_task", TASK)) != TASK:
        raise UnusableFile(
            f"{transformer} is a sentence-transformers model for {task}, which does not compute text embeddings."
        )
    saved = _optional(folder / "config_sentence_transformers.json")
    prompts = {str(name): text for name, text in (saved.get("prompts") or {}).items() if isinstance(text, str)}
    default = saved.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise UnusableFile(f"{folder / 'config_sentence_transformers.json'} has no prompt {default!r}, its default.")
    return Steps(
        transformer,
        _pooling(pooling, modules[1][1] / "config.json"),
        tuple(_layer(kind, path) for kind, path in modules[2:] if kind != "Dropout"),
        longest=limits.get("max_seq_length"),
        cuts=True,
        lowercase=bool(limits.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt=default,
        pools_prompt=bool(pooling.get("include_prompt", True)),
    )


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def read_modules(listing: Path) -> list[Mapping[str, Any]]:
    """Return the modules of a `modules.json` in order. Raises UnusableFile."""
    try:
        modules = json.loads(listing.read_text("utf-8"))
        return sorted(modules, key=lambda module: int(module["idx"]))
    except (ValueError, TypeError, KeyError) as error:
        raise UnusableFile(f"{listing} is not a list of modules ({error}); download it again.") from error


def _pooling(config: Mapping[str, Any], path: Path) -> tuple[Pooling, ...]:
    """Return the poolings that a configuration requests. Raises UnusableFile."""
    named = config.get("pooling_mode")
    if named:
        requested, modes = [str(mode) for mode in ([named] if isinstance(named, str) else named)], NAMED
    else:
        flags = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
        modes = MODES
        requested = sorted(flags, key=lambda name: list(MODES).index(name) if name in MODES else -1)
        requested = requested or ["pooling_mode_mean_tokens"]
    if unknown := [mode for mode in requested if mode not in modes]:
        raise UnusableFile(f"{path} asks for the pooling {unknown[0]}; {', '.join(modes)} can be computed.")
    return tuple(modes[mode] for mode in requested)


def read_activation(whole: str, path: Path) -> nn.Module:
    """Return the activation that a file names by its import path. Raises UnusableFile if it is not one of torch."""
    package, _, name = whole.rpartition(".")
    activation = getattr(nn, name, None)
    if not package.startswith("torch.nn") or not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise UnusableFile(f"{path} asks for the activation {name}, which is not one of torch.nn.")
    module: nn.Module = activation()
    return module


TANH = "torch.nn.Tanh"
LAYERS: dict[str, Callable[[Path, Mapping[str, Any]], nn.Module]] = {
    "Dense": lambda path, config: Dense(
        config, read_activation(str(config.get("activation_function") or TANH), path / "config.json")
    ),
    "LayerNorm": lambda path, config: LayerNorm(int(config["dimension"])),
    "Normalize": lambda path, config: Normalize(),
    "Dropout": lambda path, config: nn.Identity(),
}
"""The layers that may follow the pooling. Dropout has no effect outside of training."""


def _layer(kind: str, path: Path) -> nn.Module:
    config = _optional(path / "config.json")
    for key in ("module_input_name", "module_output_name"):
        if (config.get(key) or SENTENCE) != SENTENCE:
            raise UnusableFile(f"{path / 'config.json'} applies {kind} to {config[key]}, which is not supported.")
    try:
        layer = LAYERS[kind](path, config)
    except KeyError as error:
        raise UnusableFile(f"{path / 'config.json'} does not give {error}; copy the whole model.") from error
    if layer.state_dict():
        try:
            layer.load_state_dict(_weights(path))
        except RuntimeError as error:
            raise UnusableFile(f"The weights in {path} do not fit its config.json: {str(error).strip()}") from error
    return layer.eval()


def _weights(path: Path) -> dict[str, Tensor]:
    if (path / SAFETENSORS).is_file():
        from safetensors.torch import load_file

        weights: dict[str, Tensor] = load_file(path / SAFETENSORS)
        return weights
    if (path / PICKLED).is_file():
        loaded: dict[str, Tensor] = torch.load(path / PICKLED, map_location="cpu", weights_only=True)
        return loaded
    raise UnusableFile(f"{path} has no weights ({SAFETENSORS} or {PICKLED}); copy the whole model.")


def pool(states: Tensor, starts: Tensor, lengths: Tensor, modes: Sequence[Pooling]) -> Tensor:
    """Pool each text's tokens from its start on.

    states: `[texts, tokens, size]`, each text padded on the right; starts, lengths: `[texts]`, in tokens. Returns
    `[texts, size × modes]`.
    """
    positions = torch.arange(states.shape[1], device=states.device)[None]
    outside = ((positions < starts[:, None]) | (positions >= lengths[:, None]))[..., None]
    rows = torch.arange(len(states), device=states.device)
    inside = states.masked_fill(outside, 0.0)
    count = (lengths - starts)[:, None].clamp(min=1)
    pooled: list[Tensor] = []
    for mode in modes:
        match mode:
            case "cls":
                pooled.append(states[rows, torch.where(starts < lengths, starts, 0)])
            case "lasttoken":
                pooled.append(states[rows, lengths - 1])
            case "max":
                pooled.append(states.masked_fill(outside, -torch.inf).amax(1))
            case "mean":
                pooled.append(inside.sum(1) / count)
            case "mean_sqrt_len_tokens":
                pooled.append(inside.sum(1) / count.sqrt())
            case "weightedmean":
                weights = (positions[..., None] + 1.0).masked_fill(outside, 0.0)
                pooled.append((inside * weights).sum(1) / weights.sum(1).clamp(min=1e-9))
    return torch.cat(pooled, -1)


STEP_TOKENS = 4096
"""Tokens, including padding, that are computed together; a longer text is computed alone."""
UNLIMITED = 2**31
"""A tokenizer without a limit has a larger model_max_length."""
ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""The classes that compute only the encoder of encoder-decoder models."""
Ids = Sequence[int]


class EncodedText(NamedTuple):
    """ids: the tokens to compute. start: the first token that is pooled. length: tokens before truncation."""

    ids: list[int]
    start: int
    length: int


class VectorModel:
    """A model on its device, with its tokenizer. `encode` may be called from several threads, `embed` from one."""

    def __init__(self, model: Any, tokenizer: Tokenizer, steps: Steps, device: torch.device) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._steps = steps
        self._device = device
        config = model.config.get_text_config()
        self.vocab_size = int(config.vocab_size)
        self.longest, self._side = text_limits(steps.transformer, config, steps.longest)
        self.dimensions = tuple(getattr(config, "matryoshka_dimensions", None) or ())
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        self._layers = [layer.to(device) for layer in steps.layers]
        self._added = tokenizer.num_special_tokens_to_add(False)
        self.size = len(self.embed([EncodedText([self._padding], 0, 1)])[0])

    @classmethod
    def load(cls, source: str, device: str, dtype: str, *, trusted: bool = False) -> VectorModel:
        """Load a model. Raises FileNotFoundError, UnusableFile, and transformers' errors for a model that it cannot
        load."""
        import transformers

        steps = read_steps(model_folder(source, FILES))
        folder = str(steps.transformer)
        tokenizer = load_model_files(folder, trusted=trusted).tokenizer
        if steps.lowercase:
            before = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
            tokenizer.normalizer = Normalizers([Lowercase(), *before])
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
        model_class = getattr(transformers, ENCODERS.get(config.model_type, "AutoModel"))
        place = choose_device(device.partition(",")[0])
        options = {"trust_remote_code": True} if trusted else {}
        model = model_class.from_pretrained(folder, dtype=computed_dtype(dtype, place), **options)
        return cls(model.eval().to(place), tokenizer, steps, place)

    @property
    def cuts(self) -> bool:
        """Whether texts that are too long are truncated by default."""
        return self._steps.cuts

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(self._steps.prompts)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None, most: int | None = None) -> list[EncodedText]:
        """Encode texts with the tokenizer's special tokens, which are kept if a text is truncated to `most` tokens.

        prompt: the name of one of `prompts`; None for the model's default.
        """
        name = self._steps.default_prompt if prompt is None else prompt
        before = self._steps.prompts[name] if name is not None else ""
        start = 0
        if before and not self._steps.pools_prompt:
            # The number of the prompt's tokens, including the special ones before it but not those after it.
            ids = self._tokenizer.encode(before).ids
            special = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
            start = len(ids) - (ids[-1] in special)
        encoded: list[EncodedText] = []
        for encoding in self._tokenizer.encode_batch([before + text for text in texts], add_special_tokens=False):
            length = len(encoding) + self._added
            if most is not None and length > most:
                encoding.truncate(max(0, most - self._added), direction=self._side)
            ids = list(self._tokenizer.post_process(encoding).ids)
            encoded.append(EncodedText(ids[:most] if most is not None else ids, min(start, len(ids)), length))
        return encoded

    @torch.inference_mode()
    def embed(self, texts: Sequence[EncodedText]) -> list[list[float]]:
        """Compute one vector for each text, in the order of the texts. Texts of similar length are computed
        together."""
        vectors: list[list[float]] = [[]] * len(texts)
        options = {"use_cache": False} if getattr(self._model.config, "use_cache", False) else {}
        for members in groups_of_like_length([len(text.ids) for text in texts]):
            group = [texts[number] for number in members]
            width = max(len(text.ids) for text in group)
            padded = [[*text.ids, *[self._padding] * (width - len(text.ids))] for text in group]
            ids = torch.tensor(padded, device=self._device)
            lengths = torch.tensor([len(text.ids) for text in group], device=self._device)
            starts = torch.tensor([text.start for text in group], device=self._device)
            mask = torch.arange(width, device=self._device)[None] < lengths[:, None]
            states = self._model(input_ids=ids, attention_mask=mask.long(), **options).last_hidden_state.float()
            pooled = pool(states, starts, lengths, self._steps.pooling)
            for layer in self._layers:
                pooled = layer(pooled)
            for number, vector in zip(members, pooled.tolist(), strict=True):
                vectors[number] = vector
        return vectors


def groups_of_like_length(lengths: Sequence[int]) -> list[list[int]]:
    """Return the indices of texts with these lengths, in groups whose padded tokens fit into a step."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    for place in order:
        if groups and lengths[place] * (len(groups[-1]) + 1) <= STEP_TOKENS:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def text_limits(
    tokenizer_folder: Path, config: Any, longest: int | None = None
) -> tuple[int | None, Literal["left", "right"]]:
    """Return the tokens of the longest text that a model takes, and the side on which longer ones are truncated.

    The length is limited by the model's positions, and by `longest` or the tokenizer's settings; None means no limit.
    """
    path = tokenizer_folder / "tokenizer_config.json"
    saved = read_json(path) if path.is_file() else {}
    # A tokenizer without a limit has a very large number.
    most = saved.get("model_max_length")
    tokenizer_limit = int(most) if isinstance(most, int | float) and 0 < most < UNLIMITED else None
    # RoBERTa and its relatives start counting positions after the padding's id.
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        positions = int(positions) - int(config.pad_token_id or 0) - 1
    lengths = [longest or tokenizer_limit, positions]
    side: Literal["left", "right"] = "left" if saved.get("truncation_side") == "left" else "right"
    return min((length for length in lengths if length), default=None), side


def computed_dtype(dtype: str, place: torch.device) -> torch.dtype | Literal["auto"]:
    """Return the dtype to compute in. On a GPU, "auto" is the dtype of the checkpoint, since half precision would
    change results in the fourth digit."""
    return "auto" if dtype == "auto" and place.type != "cpu" else choose_dtype(dtype, place)
