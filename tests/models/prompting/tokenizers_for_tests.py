"""Tokenizers of the kinds found in the wild, made here: no file is needed and no two split text alike."""

from __future__ import annotations

from collections.abc import Callable

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "</s>", "[INST]", "[/INST]", "<｜User｜>", '<|"|>']
PLAIN_ADDED = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tools>", "  ", "\n\n\n"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog <|im_start|> user assistant system tool_call",
    '{"name": "get_weather", "arguments": {"city": "Paris"}} think about it\n\n',
    "für <b>Überraschungen</b> 東京 ｜ [INST] text [/INST] 0123456789",
]


def _add(tokenizer: Tokenizer, *, normalized: bool = False) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=normalized) for text in PLAIN_ADDED])
    return tokenizer


def byte_level() -> Tokenizer:
    """Qwen's and Llama 3's kind: bytes, no prefix space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS * 20, trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    return _add(tokenizer)


def sentence_pieces() -> Tokenizer:
    """Llama 2's and Mistral's kind: a space before the first word only, unknown characters as bytes."""
    vocabulary = {"<unk>": 0, "▁": 1} | {f"<0x{byte:02X}>": byte + 2 for byte in range(256)}
    for letter in sorted(set("".join(CORPUS)) - {" ", "\n"}):
        vocabulary.setdefault(letter, len(vocabulary))
    merges = [("t", "h"), ("th", "e"), ("▁", "the")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _add(tokenizer)


def unigram_with_markers() -> Tokenizer:
    """A vocabulary whose own pieces spell control tokens, and whose added tokens match after lower-casing."""
    pieces = [("<unk>", 0.0)] + [(text, -1.0) for text in ("<|im_end|>", "<think>", "</s>", "<tool_call>", "the")]
    pieces += [(letter, -5.0) for letter in sorted(set("".join(CORPUS).lower()) | {" ", "\n"})]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.decoder = decoders.Fuse()
    return _add(tokenizer, normalized=True)


def words() -> Tokenizer:
    """One piece for each word, the crudest kind."""
    known = sorted({word for text in CORPUS for word in text.split()} | set(CONTROL))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0} | {w: i + 1 for i, w in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _add(tokenizer)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte_level": byte_level,
    "sentence_pieces": sentence_pieces,
    "unigram_with_markers": unigram_with_markers,
    "words": words,
}
