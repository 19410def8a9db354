"""The contents of a model's files, and functions that read a file completely or raise a one-sentence error about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model's tokenizer and settings.

    templates: chat templates by name, "default" and possibly "tool_use". special_tokens: bos_token, eos_token and the
    like, as text. stop_token_ids: end-of-sequence ids from the generation configuration, the model's configuration and
    the tokenizer's. context_length: in tokens, None if no file declares it. response_template: the checkpoint's own
    description of its output, {} if it has none.
    """

    tokenizer: Tokenizer
    templates: Mapping[str, str] = {}
    special_tokens: Mapping[str, str] = {}
    stop_token_ids: tuple[int, ...] = ()
    context_length: int | None = None
    response_template: Mapping[str, object] = {}


class UnusableFile(ValueError):
    """A file is missing, damaged or of another kind. The message is one sentence that names it and says what to do."""


LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The first bytes of a pointer file: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md"""


def readable(path: Path) -> None:
    """Raise UnusableFile if a file is missing, empty, or a pointer file of Git LFS."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(len(LFS_POINTER))
    except OSError as error:
        raise UnusableFile(f"{path} cannot be read: {error.strerror or error}.") from error
    if not begin:
        raise UnusableFile(f"{path} is empty; download it again.")
    if begin == LFS_POINTER:
        raise UnusableFile(f"{path} is a pointer of Git LFS instead of the file: run `git lfs pull` in {path.parent}.")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file. Raises UnusableFile, also if the file is missing."""
    readable(path)
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UnusableFile(f"{path} is not JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise UnusableFile(f"{path} holds no JSON object; download it again.")
    return value


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UnusableFile if it is not UTF-8."""
    readable(path)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{path} is not a text in UTF-8; download it again.") from error
