"""Rerankers: models that read a query and a document together and score the pair, as in sentence-transformers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import nn

from agent_server.generation.device import choose_device
from agent_server.generation.loading.pooling import (
    FILES,
    computed_dtype,
    groups_of_like_length,
    read_activation,
    read_modules,
    text_limits,
)
from agent_server.model_files import UnusableFile, load_model_files, model_folder, read_json

RELEVANT = ("relevant", "yes", "true", "entailment", "positive", "duplicate", "1", "label_1")
"""Names of the label of a relevant pair, for models with two labels."""


class EncodedPair(NamedTuple):
    """ids: includes the special tokens between and around the texts. types: which of the two texts a token belongs to.
    cut: whether the texts were truncated."""

    ids: list[int]
    types: list[int]
    cut: bool


class CrossEncoder:
    """A `*ForSequenceClassification` with one logit, or with two of which one is labelled as relevant.

    `encode` may be called from several threads, `score` from one.
    """

    def __init__(self, model: Any, tokenizer: Tokenizer, folder: Path, device: torch.device) -> None:
        """Raises UnusableFile for a model whose labels do not identify a relevance score."""
        self._model = model
        self._tokenizer = tokenizer
        self._device = device
        config = model.config
        saved_path = folder / "config_sentence_transformers.json"
        saved: Mapping[str, Any] = read_json(saved_path) if saved_path.is_file() else {}
        self._relevant = _relevant_label(config, folder)
        self._activation = _activation(config, saved, folder) if config.num_labels == 1 else nn.Sigmoid()
        name, prompts = saved.get("default_prompt_name"), saved.get("prompts") or {}
        if name is not None and name not in prompts:
            raise UnusableFile(f"{saved_path} has no prompt {name!r}, its default.")
        self._prompt = str(prompts[name]) if name is not None else ""
        text_config = config.get_text_config()
        self.longest, self._side = text_limits(folder, text_config)
        self.special_tokens = tokenizer.num_special_tokens_to_add(True)
        """The number of a pair's tokens that belong to neither text."""
        self._padding = getattr(text_config, "pad_token_id", None)
        takes = inspect.signature(model.forward).parameters
        self._has_types = "token_type_ids" in takes and int(getattr(text_config, "type_vocab_size", 0) or 0) > 1
        self._truncation = threading.Lock()
        """A tokenizer's truncation applies to all threads that use it."""

    @classmethod
    def load(cls, source: str, device: str, dtype: str, *, trusted: bool = False) -> CrossEncoder:
        """Load a model. Raises FileNotFoundError, UnusableFile, and transformers' errors for a model that it cannot
        load."""
        import transformers

        folder = model_folder(source, FILES)
        modules = folder / "modules.json"
        if modules.is_file():
            kinds = [str(module.get("type")).rpartition(".")[2] for module in read_modules(modules)]
            if kinds != ["Transformer"]:
                raise UnusableFile(f"{modules} lists {', '.join(kinds)}; a reranker here is one Transformer.")
        config = transformers.AutoConfig.from_pretrained(str(folder), trust_remote_code=trusted)
        architectures = [str(name) for name in config.architectures or ()]
        if not any(name.endswith("ForSequenceClassification") for name in architectures):
            raise UnusableFile(
                f"{folder} is {', '.join(architectures) or 'of no named class'}, which does not score pairs of texts. "
                "Give a model of the kind ForSequenceClassification."
            )
        place = choose_device(device.partition(",")[0])
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            str(folder), dtype=computed_dtype(dtype, place), **({"trust_remote_code": True} if trusted else {})
        )
        tokenizer = load_model_files(str(folder), trusted=trusted).tokenizer
        tokenizer.no_padding()
        return cls(model.eval().to(place), tokenizer, folder, place)

    def encode(self, pairs: Sequence[tuple[str, str]], *, most: int | None = None) -> list[EncodedPair]:
        """Encode pairs. If a pair has more than `most` tokens, its longer text is truncated first."""
        with self._truncation:
            if most is None:
                self._tokenizer.no_truncation()
            else:
                self._tokenizer.enable_truncation(most, strategy="longest_first", direction=self._side)
            encodings = self._tokenizer.encode_batch([(self._prompt + query, document) for query, document in pairs])
        return [EncodedPair(each.ids, each.type_ids, bool(each.overflowing)) for each in encodings]

    @torch.inference_mode()
    def score(self, pairs: Sequence[EncodedPair]) -> list[list[float]]:
        """Return two scores for each pair: after the model's activation, and before it."""
        scores: list[list[float]] = [[]] * len(pairs)
        groups = groups_of_like_length([len(pair.ids) for pair in pairs])
        if self._padding is None:  # transformers finds the end of a row by its padding
            groups = [[place] for group in groups for place in group]
        padding = self._padding or 0
        options: dict[str, Any] = {"use_cache": False} if getattr(self._model.config, "use_cache", False) else {}
        for members in groups:
            group = [pairs[place] for place in members]
            width = max(len(pair.ids) for pair in group)
            padded = [[*pair.ids, *[padding] * (width - len(pair.ids))] for pair in group]
            ids = torch.tensor(padded, device=self._device)
            lengths = torch.tensor([len(pair.ids) for pair in group], device=self._device)
            mask = torch.arange(width, device=self._device)[None] < lengths[:, None]
            if self._has_types:
                types = [[*pair.types, *[0] * (width - len(pair.types))] for pair in group]
                options["token_type_ids"] = torch.tensor(types, device=self._device)
            logits = self._model(input_ids=ids, attention_mask=mask.long(), **options).logits.float()
            # The sigmoid of the difference of two logits is their softmax.
            raw = logits[:, self._relevant] - (logits[:, 1 - self._relevant] if logits.shape[1] == 2 else 0.0)
            rows = torch.stack((self._activation(raw), raw), dim=1).tolist()
            for place, row in zip(members, rows, strict=True):
                scores[place] = row
        return scores


def _relevant_label(config: Any, folder: Path) -> int:
    """Return the index of the logit of relevant pairs. Raises UnusableFile."""
    labels = {int(number): str(name) for number, name in config.id2label.items()}
    if config.num_labels == 1:
        return 0
    if config.num_labels > 2:
        raise UnusableFile(f"{folder} has {config.num_labels} labels; a reranker has one, or two.")
    matching = [number for number, name in labels.items() if name.lower() in RELEVANT]
    if len(matching) != 1:
        raise UnusableFile(
            f"{folder} has the labels {labels[0]!r} and {labels[1]!r}, which do not say which of them is for a pair "
            f"that fits. Name it in id2label of config.json by one of {', '.join(RELEVANT)}."
        )
    return matching[0]


def _activation(config: Any, saved: Mapping[str, Any], folder: Path) -> nn.Module:
    """Return the activation as sentence-transformers chooses it: from its own file or the configuration, and otherwise
    a sigmoid."""
    of_config = getattr(config, "sentence_transformers", None) or {}
    before = getattr(config, "sbert_ce_default_activation_function", None)
    name = saved.get("activation_fn") or of_config.get("activation_fn") or before
    return nn.Sigmoid() if name is None else read_activation(str(name), folder)
