"""Models that answer with one vector for a text: how the checkpoint says that a text's vectors become one.

What a checkpoint says stands in the files of sentence-transformers: `modules.json` lists the steps,
`1_Pooling/config.json` the pooling. A checkpoint without them is pooled by its last token where it generates text, else
by the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from agent_server.generation.device import choose_device, choose_dtype
from agent_server.model_files import UnusableFile, load_model_files, model_folder, read_json

Pooling = Literal["cls", "mean", "last", "max"]
MODES: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
NAMED: dict[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last", "max": "max"}
STEP_TOKENS = 4096
"""Tokens, padding counted, that are computed together; a longer text is computed alone."""
Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Steps:
    """What follows the model: pooling, and whether vectors are scaled to the length 1. longest: tokens of a text."""

    pooling: Pooling
    normalized: bool
    longest: int | None = None


def read_steps(folder: Path, config: Any) -> Steps:
    """Raises UnusableFile for steps that are not computed here."""
    if not (folder / "modules.json").is_file():
        generates = any(name.endswith("ForCausalLM") for name in config.architectures or ())
        return Steps("last" if generates else "mean", normalized=generates)
    import json

    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    kinds = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
    if unknown := sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"}):
        raise UnusableFile(f"{folder / 'modules.json'} asks for {unknown[0]}, which is not computed here.")
    pooling = _pooling(folder / kinds["Pooling"] / "config.json") if "Pooling" in kinds else "mean"
    limits = folder / "sentence_bert_config.json"
    longest = read_json(limits).get("max_seq_length") if limits.is_file() else None
    return Steps(pooling, "Normalize" in kinds, longest)


def _pooling(path: Path) -> Pooling:
    said = read_json(path)
    named = said.get("pooling_mode")
    asked = (
        [str(named)]
        if named
        else [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    )
    known = NAMED if named else MODES
    if len(asked) != 1 or asked[0] not in known:
        shown = " and ".join(asked) or "none"
        raise UnusableFile(f"{path} asks for the pooling {shown}; one of {', '.join(known)} can be computed.")
    return known[asked[0]]


class VectorModel:
    """A model on its device, with its tokenizer. Not for several threads at once."""

    def __init__(self, model: Any, tokenizer: Any, steps: Steps, device: torch.device) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._steps = steps
        self._device = device
        config = model.config.get_text_config()
        self.size = int(config.hidden_size)
        self.vocab_size = int(config.vocab_size)
        lengths = [steps.longest, _positions(config)]
        self.longest = min((length for length in lengths if length), default=None)
        self._padding = int(config.pad_token_id or 0)

    @classmethod
    def load(cls, source: str, device: str, dtype: str, *, trusted: bool = False) -> VectorModel:
        """Raises FileNotFoundError, UnusableFile and what transformers raises for a model that it cannot load."""
        import transformers

        folder = model_folder(source)
        tokenizer = load_model_files(source, trusted=trusted).tokenizer
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trusted)
        steps = read_steps(folder, config)
        place = choose_device(device.partition(",")[0])
        model = transformers.AutoModel.from_pretrained(
            source, dtype=choose_dtype(dtype, place), trust_remote_code=trusted
        )
        return cls(model.eval().to(place), tokenizer, steps, place)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """With the special tokens that the tokenizer adds."""
        return [list(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))]

    @torch.inference_mode()
    def embed(self, texts: Sequence[Ids]) -> list[list[float]]:
        """One vector for each. Texts of like length are computed together; the result is in their own order."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        vectors: list[list[float]] = [[]] * len(texts)
        for group in _groups([len(texts[number]) for number in order]):
            members = order[group]
            for number, vector in zip(members, self._together([texts[n] for n in members]), strict=True):
                vectors[number] = vector
        return vectors

    def _together(self, texts: Sequence[Ids]) -> list[list[float]]:
        width = max(map(len, texts))
        ids = torch.tensor([[*text, *[self._padding] * (width - len(text))] for text in texts], device=self._device)
        lengths = torch.tensor(list(map(len, texts)), device=self._device)
        mask = torch.arange(width, device=self._device)[None] < lengths[:, None]
        options = {"use_cache": False} if getattr(self._model.config, "use_cache", False) else {}
        states = self._model(input_ids=ids, attention_mask=mask.long(), **options).last_hidden_state.float()
        pooled = pool(states, lengths, self._steps.pooling)
        found: list[list[float]] = (normalize(pooled, dim=-1) if self._steps.normalized else pooled).tolist()
        return found


def pool(states: Tensor, lengths: Tensor, pooling: Pooling) -> Tensor:
    """states: `[texts, tokens, size]`, each text padded on the right; lengths: `[texts]`. Returns `[texts, size]`."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        return states[torch.arange(len(states), device=states.device), lengths - 1]
    outside = torch.arange(states.shape[1], device=states.device)[None, :, None] >= lengths[:, None, None]
    if pooling == "max":
        return states.masked_fill(outside, -torch.inf).amax(1)
    return states.masked_fill(outside, 0.0).sum(1) / lengths[:, None]


def _groups(lengths: Sequence[int]) -> list[slice]:
    """Parts of a rising sequence of lengths whose padded tokens stay within a step."""
    groups: list[slice] = []
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or lengths[end] * (end + 1 - start) > STEP_TOKENS:
            groups.append(slice(start, end))
            start = end
    return groups


def _positions(config: Any) -> int | None:
    """Tokens that the model has positions for. RoBERTa and its kin count theirs from behind the padding's."""
    count = getattr(config, "max_position_embeddings", None)
    if count is None or config.model_type not in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        return count
    return int(count) - int(config.pad_token_id or 0) - 1
