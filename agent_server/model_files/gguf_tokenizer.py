"""Build the tokenizer of a GGUF file from its lists: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

A file says by a name (`tokenizer.ggml.pre`) how its vocabulary splits text into words. The names, and what each means,
are those of llama.cpp (src/llama-vocab.cpp); the regular expressions are those of the tokenizer.json that the files
were made of, which llama.cpp quotes. A name that is not known here is refused, as llama.cpp refuses it: a text that is
split in another way has other tokens than the model learned from.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tokenizers import Tokenizer

from agent_server.model_files.sentencepiece_files import CONTROL, NORMAL, Pieces, byte_level_bpe, sentencepiece_bpe
from agent_server.model_files.served_tokenizer import put_around, without_training_limits

logger = logging.getLogger("agent_server")
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDING
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + ENDING
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDING
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{{0}}"
TEKKEN = CASED.replace("{0}", "") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDING
GPT4O = CASED.replace("{0}", CONTRACTIONS + "?") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDING
MARKED = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
DEEPSEEK3 = (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", MARKED + r"| ?[\p{P}\p{S}]+[\r\n]*" + ENDING)
SPARK = (*DEEPSEEK3[:2], MARKED + r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")
DEEPSEEK_LLM = (
    *(r"[\r\n]", r"\s?[\p{Lu}\p{Ll}\p{Lt}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
    *(r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+"),
)
TINY_AYA = (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O)
YOUTU = (
    r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+",
    CASED.replace("{0}", CONTRACTIONS + "?") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + ENDING,
)
MINICPM5 = (r"\p{N}{1,3}", CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDING)
K2_HORIZON = (
    CONTRACTIONS + "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}|\\p{M}|\u200c|\u200d)+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDING
)
EXAONE_MOE = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
UNNAMED = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
"""llama.cpp's rule for files without a name."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """A rule for splitting text into words. splits: regular expressions, applied in order. nfc: the tokenizer
    normalises text to NFC, which llama.cpp does not do. whole: a word that is a token becomes that token. begins: a BOS
    is added before texts unless the file declares otherwise.
    """

    splits: tuple[str, ...]
    nfc: bool = False
    whole: bool = False
    begins: bool = False


def _named(splitting: Splitting, *names: str) -> dict[str, Splitting]:
    return dict.fromkeys(names, splitting)


SPLITTINGS: dict[str, Splitting] = {
    **_named(
        Splitting((LLAMA3,), whole=True, begins=True),
        *("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"),
    ),
    **_named(Splitting((LLAMA3,)), "dbrx", "smaug-bpe", "chatglm-bpe"),
    **_named(Splitting((LLAMA3,), whole=True), "glm4", "glm5"),
    **_named(Splitting((QWEN2,), nfc=True), "qwen2", "deepseek-r1-qwen", "stablelm2"),
    **_named(Splitting((QWEN2,)), "kormo", "f2llmv2", "megrez", "hunyuan", "solar-open", "grok-2"),
    **_named(Splitting((QWEN35,), nfc=True), "qwen35"),
    **_named(Splitting((TEKKEN,), whole=True, begins=True), "tekken"),
    **_named(Splitting((GPT4O,)), "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    **_named(Splitting(DEEPSEEK3), "deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    **_named(Splitting((r"\p{N}", GPT2)), "starcoder", "refact", "smollm", "codeshell", "minerva-7b", "mellum2"),
    **_named(Splitting((r"\p{N}", GPT2), nfc=True), "command-r", "exaone"),
    **_named(
        Splitting((GPT2,)),
        *("gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "jais", "trillion", "granite-docling", "exaone4"),
    ),
    **_named(Splitting((GPT2,), nfc=True), "mpt", "olmo", "modern-bert"),
    **_named(Splitting(FALCON), "falcon"),
    **_named(Splitting((BAILING,)), "bailingmoe", "bailingmoe2", "llada-moe"),
    **_named(Splitting((SEED,)), "seed-coder"),
    **_named(Splitting((BLOOM,)), "bloom", "gpt3-finnish", "poro-chat"),
    **_named(Splitting((BLOOM, r"\p{N}")), "viking"),
    **_named(Splitting(DEEPSEEK_CODER), "deepseek-coder"),
    **_named(Splitting(DEEPSEEK_LLM), "deepseek-llm"),
    **_named(Splitting(TINY_AYA), "tiny_aya", "cohere2moe"),
    **_named(Splitting(YOUTU), "youtu"),
    **_named(Splitting(SPARK), "spark2_5"),
    **_named(Splitting(("[^\\n]+|[\\n]+", QWEN2)), "laguna"),
    **_named(Splitting(MINICPM5, whole=True), "minicpm5"),
    **_named(Splitting((K2_HORIZON,)), "k2-horizon"),
    **_named(Splitting((EXAONE_MOE,)), "exaone-moe"),
    **_named(Splitting(UNNAMED), "default"),
}
PHI3_KEEPS_SPACES = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def tokenizer_of(metadata: Mapping[str, object]) -> Tokenizer:
    """Return the tokenizer of a file. Raises ValueError with the reason if its kind is unknown, and the errors of
    `tokenizers` for lists that contradict each other."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        name = metadata.get("tokenizer.ggml.pre")
        if name in (None, "", "default"):
            name = "default"
            logger.warning(
                "The file does not say how its tokenizer splits text into words (tokenizer.ggml.pre); llama.cpp's rule "
                "for such files is used, and answers may be worse than those of the model that it was made of."
            )
        splitting = SPLITTINGS.get(str(name))
        if splitting is None:
            raise ValueError(f"the way {name!r} to split text into words (tokenizer.ggml.pre) is not known here")
        normalizer = "NFC" if splitting.nfc else ""
        bpe = byte_level_bpe(_pieces(metadata), splitting.splits, normalizer=normalizer, ignore_merges=splitting.whole)
        tokenizer, begins = bpe, splitting.begins
    elif kind in ("llama", "gemma4"):
        prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", kind == "llama"))
        tokenizer, begins = sentencepiece_bpe(_pieces(metadata), prefix="always" if prefix else "never"), True
    else:
        raise ValueError("of the kinds of tokenizers, gpt2, llama and gemma4 are read")
    begins = bool(metadata.get("tokenizer.ggml.add_bos_token", begins)) or kind == "gemma4"
    ends = bool(metadata.get("tokenizer.ggml.add_eos_token", False))
    begin, end = (_special(tokenizer, metadata, word) for word in ("bos", "eos"))
    put_around(tokenizer, begin if begins else None, end if ends else None)
    return without_training_limits(tokenizer)


def _pieces(metadata: Mapping[str, object]) -> Pieces:
    tokens = [str(token) or f"[EMPTY_{number}]" for number, token in enumerate(_list(metadata, "tokens"))]
    if not tokens:
        raise ValueError("it lists no tokens")
    kinds = [int(str(kind)) for kind in _list(metadata, "token_type")] or [NORMAL] * len(tokens)
    scores = [float(str(score)) for score in _list(metadata, "scores")] or [0.0] * len(tokens)
    merges: list[tuple[str, str]] | None = None
    if "tokenizer.ggml.merges" in metadata:
        merges = []
        for merge in map(str, _list(metadata, "merges")):
            cut = merge.find(" ", 1)  # the first part may be a space itself
            merges.append((merge[:cut], merge[cut + 1 :]))
    # Phi-3's control tokens absorb the white space after them although its files do not declare it.
    right_stripped: frozenset[str] = frozenset()
    name = str(metadata.get("general.name", "")).lower()
    if "phi-3" in name or "phi3" in name:
        controls = {token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL}
        right_stripped = frozenset({*controls, "</s>"} - PHI3_KEEPS_SPACES)
    return Pieces(tokens, kinds, scores, merges, right_stripped)


def _special(tokenizer: Tokenizer, metadata: Mapping[str, object], word: str) -> str | None:
    number = metadata.get(f"tokenizer.ggml.{word}_token_id")
    token = tokenizer.id_to_token(number) if isinstance(number, int) and number >= 0 else None
    return None if token is None else str(token)


def _list(metadata: Mapping[str, object], name: str) -> list[object]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, list) else []
