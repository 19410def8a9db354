"""Models that answer with one vector for a text. What follows the model itself is in `sentence_steps`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Encoding, Tokenizer
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as Normalizers

from agent_server.generation.device import choose_device, choose_dtype
from agent_server.generation.loading.sentence_steps import FILES, Steps, pool, read_steps
from agent_server.model_files import load_model_files, model_folder, read_json

STEP_TOKENS = 4096
"""Tokens, padding counted, that are computed together; a longer text is computed alone."""
UNLIMITED = 2**31
"""A tokenizer without a limit has a larger number of tokens as its model_max_length."""
ENCODERS = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
"""Of models with an encoder and a decoder: what computes the encoder alone."""
Ids = Sequence[int]


class EncodedText(NamedTuple):
    """ids: of what is computed. start: the first token that is pooled. length: tokens before the text was cut."""

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
        saved = _tokenizer_settings(steps.transformer)
        lengths = [steps.longest or _limit(saved.get("model_max_length")), _positions(config)]
        self._side = "left" if saved.get("truncation_side") == "left" else "right"
        self.longest = min((length for length in lengths if length), default=None)
        self.dimensions = tuple(getattr(config, "matryoshka_dimensions", None) or ())
        self._padding = int(getattr(config, "pad_token_id", None) or 0)
        self._layers = [layer.to(device) for layer in steps.layers]
        self._added = tokenizer.num_special_tokens_to_add(False)
        self.size = len(self.embed([EncodedText([self._padding], 0, 1)])[0])

    @classmethod
    def load(cls, source: str, device: str, dtype: str, *, trusted: bool = False) -> VectorModel:
        """Raises FileNotFoundError, UnusableFile and what transformers raises for a model that it cannot load."""
        import transformers

        steps = read_steps(model_folder(source, FILES))
        folder = str(steps.transformer)
        tokenizer = load_model_files(folder, trusted=trusted).tokenizer
        if steps.lowercase:
            before = [tokenizer.normalizer] if tokenizer.normalizer is not None else []
            tokenizer.normalizer = Normalizers([Lowercase(), *before])
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trusted)
        made = getattr(transformers, ENCODERS.get(config.model_type, "AutoModel"))
        place = choose_device(device.partition(",")[0])
        # a GPU computes as the checkpoint was saved: half precision would change vectors in their fourth digit
        computed = "auto" if dtype == "auto" and place.type != "cpu" else choose_dtype(dtype, place)
        options = {"trust_remote_code": True} if trusted else {}
        model = made.from_pretrained(folder, dtype=computed, **options)
        return cls(model.eval().to(place), tokenizer, steps, place)

    @property
    def cuts(self) -> bool:
        """Whether texts that are too long are cut unless a request says otherwise."""
        return self._steps.cuts

    @property
    def prompts(self) -> tuple[str, ...]:
        return tuple(self._steps.prompts)

    def encode(self, texts: Sequence[str], *, prompt: str | None = None, most: int | None = None) -> list[EncodedText]:
        """With the special tokens that the tokenizer adds, which stay where a text is cut to `most` tokens. prompt: the
        name of one of `prompts`; None for the model's default."""
        name = self._steps.default_prompt if prompt is None else prompt
        before = self._steps.prompts[name] if name is not None else ""
        start = self._prompt_length(before) if before and not self._steps.pools_prompt else 0
        bare = self._tokenizer.encode_batch([before + text for text in texts], add_special_tokens=False)
        return [self._cut(encoding, most, start) for encoding in bare]

    def _cut(self, encoding: Encoding, most: int | None, start: int) -> EncodedText:
        length = len(encoding) + self._added
        if most is not None and length > most:
            encoding.truncate(max(0, most - self._added), direction=self._side)
        ids = list(self._tokenizer.post_process(encoding).ids)
        return EncodedText(ids[:most] if most is not None else ids, min(start, len(ids)), length)

    def _prompt_length(self, prompt: str) -> int:
        """A prompt's tokens with the special ones before it, without those behind it."""
        ids = self._tokenizer.encode(prompt).ids
        special = {number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        return len(ids) - (ids[-1] in special)

    @torch.inference_mode()
    def embed(self, texts: Sequence[EncodedText]) -> list[list[float]]:
        """One vector for each. Texts of like length are computed together; the result is in their own order."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number].ids))
        vectors: list[list[float]] = [[]] * len(texts)
        for group in _groups([len(texts[number].ids) for number in order]):
            members = order[group]
            for number, vector in zip(members, self._together([texts[n] for n in members]), strict=True):
                vectors[number] = vector
        return vectors

    def _together(self, texts: Sequence[EncodedText]) -> list[list[float]]:
        width = max(len(text.ids) for text in texts)
        padded = [[*text.ids, *[self._padding] * (width - len(text.ids))] for text in texts]
        ids = torch.tensor(padded, device=self._device)
        lengths = torch.tensor([len(text.ids) for text in texts], device=self._device)
        starts = torch.tensor([text.start for text in texts], device=self._device)
        mask = torch.arange(width, device=self._device)[None] < lengths[:, None]
        options = {"use_cache": False} if getattr(self._model.config, "use_cache", False) else {}
        states = self._model(input_ids=ids, attention_mask=mask.long(), **options).last_hidden_state.float()
        vectors = pool(states, starts, lengths, self._steps.pooling)
        for layer in self._layers:
            vectors = layer(vectors)
        found: list[list[float]] = vectors.tolist()
        return found


def _groups(lengths: Sequence[int]) -> list[slice]:
    """Parts of a rising sequence of lengths whose padded tokens stay within a step."""
    groups: list[slice] = []
    start = 0
    for end in range(1, len(lengths) + 1):
        if end == len(lengths) or lengths[end] * (end + 1 - start) > STEP_TOKENS:
            groups.append(slice(start, end))
            start = end
    return groups


def _tokenizer_settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else {}


def _limit(most: object) -> int | None:
    """Tokens of a text by the tokenizer's settings; None without a limit."""
    return int(most) if isinstance(most, int | float) and 0 < most < UNLIMITED else None


def _positions(config: Any) -> int | None:
    """Tokens that the model has positions for. RoBERTa and its kin count theirs from behind the padding's."""
    count = getattr(config, "max_position_embeddings", None)
    if count is None or config.model_type not in ("roberta", "xlm-roberta", "camembert", "mpnet"):
        return count
    return int(count) - int(config.pad_token_id or 0) - 1
