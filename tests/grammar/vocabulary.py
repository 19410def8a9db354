"""Small vocabularies of the two kinds that models have, trained on a few lines of text."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

END = "<|end_of_answer|>"
CORPUS = [
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3, "exact": true, "note": null}}',
    '[{"name":"search","parameters":{"query":"old maps","limit":10}}, {"a": [1, 2, 3.5]}]',
    "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>",
    "The weather in Paris is fine today, as it was yesterday; I will look it up.\n\nThen we shall see.",
    "def call(city: str, days: int) -> None: return [get_weather(city='Paris', days=3)]",
    "<arg_key>city</arg_key><arg_value>Ünïcödé – 東京 🙂</arg_value>",
] * 4


@lru_cache(maxsize=64)
def byte_level(markers: tuple[str, ...] = (), size: int = 640) -> Tokenizer:
    """Byte-level BPE, with `markers` as added tokens that are not special, as many models have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    return _with(tokenizer, markers)


@lru_cache(maxsize=64)
def byte_fallback(markers: tuple[str, ...] = (), size: int = 640) -> Tokenizer:
    """BPE over characters with `▁` for spaces and bytes for what is not known, as sentencepiece models are."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<unk>", *(f"<0x{number:02X}>" for number in range(256))]
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=size, special_tokens=special))
    rebuilt = Tokenizer.from_str(_without_added(tokenizer))
    return _with(rebuilt, markers)


def _without_added(tokenizer: Tokenizer) -> str:
    """Byte tokens are part of the vocabulary, not added tokens."""
    import json

    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] == "<unk>"]
    return json.dumps(spec)


def _with(tokenizer: Tokenizer, markers: Iterable[str]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in dict.fromkeys(markers)])
    return tokenizer
