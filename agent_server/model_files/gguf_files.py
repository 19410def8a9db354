"""A model in one GGUF file, llama.cpp's format: its metadata, tokenizer and chat templates.

Other files in its folder are not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from agent_server.model_files.gguf_header import TensorPlace, read_header
from agent_server.model_files.gguf_tokenizer import tokenizer_of
from agent_server.model_files.served_tokenizer import without_training_limits
from agent_server.model_files.usable_files import ModelFiles, UnusableFile, readable

TOKENS = "tokenizer.ggml.tokens"
TEMPLATE, TEMPLATES, NAMED_TEMPLATE = (
    "tokenizer.chat_template",
    "tokenizer.chat_templates",
    "tokenizer.chat_template.{}",
)
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""transformers' names of the special tokens, with the words for their ids in the format."""
ENDS = ("eos", "eot", "eom")
"""The words for the ends of text, of a turn and of a message. Each of these tokens ends a generation."""
CONTROL = 3
"""The type of a control token, among tokenizer.ggml.token_type."""
TURN_ENDS = frozenset(
    {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|endoftext|>", "<|end_of_text|>", "<EOT>"}
    | {
        "_<EOT>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<|eom_id|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
    }
)
"""Control tokens that end a generation although files do not declare it, as in llama.cpp (src/llama-vocab.cpp)."""
MESSAGE_END = "<|end|>"
GOES_ON = (
    frozenset({"<|return|>", "<|call|>"}),
    frozenset({"<|flush|>", "<|call|>"}),
    frozenset({"<|flush|>", "<|calls|>"}),
)
"""Control tokens of models in whose answers MESSAGE_END ends only a message, after which the next one follows (gpt-oss,
Solar Open), as in llama.cpp."""
NO_MODELS = {
    "adapter": "a LoRA adapter, not a model; adapters are served from peft's folders, with --lora or --adapter",
    "mmproj": "the picture encoder of a model, not the model; give the file with its text part",
    "imatrix": "a table for quantising a model, not the model",
}


class GgufFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file's metadata, and the places of its tensors."""

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorPlace]

    @property
    def architecture(self) -> str:
        return str(self.metadata["general.architecture"])

    def setting(self, key: str) -> object:
        """Return a value under the architecture's prefix; None if the file has none."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @property
    def weights(self) -> int:
        return sum(math.prod(each.shape) for each in self.tensors.values())


def read_gguf(path: Path) -> GgufFile:
    """Read the header of a file and check that it is complete and a model's. Raises UnusableFile."""
    readable(path)
    state = path.stat()
    return _read(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=1)
def _read(path: Path, size: int, changed: int) -> GgufFile:
    """Read a header, cached because loading a model needs it several times, and a vocabulary takes most of a second."""
    header = read_header(path)
    metadata = header.metadata
    kind = str(metadata.get("general.type", "model"))
    if kind in NO_MODELS or metadata.get("general.architecture") == "clip":
        raise UnusableFile(f"{path} holds {NO_MODELS.get(kind, NO_MODELS['mmproj'])}.")
    parts = metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UnusableFile(
            f"{path} is one of {parts} parts of a model: join them with "
            "`llama-gguf-split --merge FIRST-PART WHOLE.gguf` and serve the whole."
        )
    if "general.architecture" not in metadata:
        raise UnusableFile(f"{path} does not say of which architecture it is; download it again.")
    return GgufFile(path=path, metadata=metadata, tensors=header.tensors)


# the tokenizer and the templates


def gguf_model_files(path: Path) -> ModelFiles:
    """Return the tokenizer, chat templates and special tokens of a file. Raises UnusableFile."""
    file = read_gguf(path)
    tokenizer = _tokenizer(file)
    tokens = _list(file, TOKENS)
    special: dict[str, str] = {}
    for name, word in SPECIAL.items():
        number = file.metadata.get(f"tokenizer.ggml.{word}_token_id")
        if isinstance(number, int) and 0 <= number < len(tokens):
            special[name] = str(tokens[number])
    context = file.setting("context_length")
    return ModelFiles(
        tokenizer=tokenizer,
        templates=_templates(file.metadata),
        special_tokens=special,
        stop_token_ids=stop_ids(file),
        context_length=context if isinstance(context, int) else None,
    )


def gguf_templates(path: Path) -> dict[str, str]:
    """Return the chat templates in a file by name; empty if it has none. Raises UnusableFile."""
    return _templates(read_gguf(path).metadata)


def _templates(metadata: Mapping[str, object]) -> dict[str, str]:
    named = metadata.get(TEMPLATES)
    names = {str(name): NAMED_TEMPLATE.format(name) for name in (named if isinstance(named, list) else ())}
    templates = {name: metadata.get(key) for name, key in {**names, "default": TEMPLATE}.items()}
    return {name: text for name, text in templates.items() if isinstance(text, str)}


def stop_ids(file: GgufFile) -> tuple[int, ...]:
    """Return the tokens that end a generation: those that the file declares, and the control tokens in TURN_ENDS."""
    named = [file.metadata.get(f"tokenizer.ggml.{word}_token_id") for word in ENDS]
    tokens, types = _list(file, TOKENS), _list(file, "tokenizer.ggml.token_type")
    controls = {
        str(token): number for number, (token, kind) in enumerate(zip(tokens, types, strict=False)) if kind == CONTROL
    }
    ids = [number for number in named if isinstance(number, int)]
    ids += [number for token, number in controls.items() if token in TURN_ENDS]
    if any(tokens_of_model <= controls.keys() for tokens_of_model in GOES_ON):
        ids = [number for number in ids if number != controls.get(MESSAGE_END)]
    return tuple(dict.fromkeys(ids))


def _list(file: GgufFile, key: str) -> list[object]:
    value = file.metadata.get(key)
    return value if isinstance(value, list) else []


def _tokenizer(file: GgufFile) -> Tokenizer:
    """Return the tokenizer from the file's tokenizer.json if it has one, else from its lists."""
    whole = file.metadata.get("tokenizer.huggingface.json")
    try:
        if isinstance(whole, str):
            return without_training_limits(Tokenizer.from_str(whole))
        return tokenizer_of(file.metadata)
    except Exception as error:  # tokenizers raises plain ones
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = file.metadata.get("tokenizer.ggml.model", "none")
        raise UnusableFile(
            f"{file.path} has a tokenizer (of the kind {kind}) that cannot be read: {reason}; serve the folder that it "
            "was made of, or let llama.cpp's server compute it and give its URL with --engine."
        ) from error
