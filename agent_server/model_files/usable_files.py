"""What a model's files give, and how one of them is read: whole, or with a sentence that says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """templates: by name, "default" and where the model has one "tool_use". special_tokens: bos_token, eos_token and
    the like, as text. stop_token_ids: end-of-sequence ids of the generation configuration, the model's and the
    tokenizer's. context_length: in tokens, None where no file says. response_template: the checkpoint's own
    description of its output, {} where it has none."""

    tokenizer: Tokenizer
    templates: Mapping[str, str] = {}
    special_tokens: Mapping[str, str] = {}
    stop_token_ids: tuple[int, ...] = ()
    context_length: int | None = None
    response_template: Mapping[str, object] = {}


class UnusableFile(ValueError):
    """A file that is not what its name says; the message is one sentence that names it and says what to do."""


LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""How a pointer file begins: https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md"""


def readable(path: Path) -> None:
    """Raise UnusableFile if a file is not there, empty, or a pointer that Git LFS left in its place."""
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
    """The object in a file. Raises UnusableFile, also where there is no such file."""
    readable(path)
    try:
        value = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UnusableFile(f"{path} is not JSON ({error}); download it again.") from error
    if not isinstance(value, dict):
        raise UnusableFile(f"{path} holds no JSON object; download it again.")
    return value


def read_text(path: Path) -> str:
    """Raises UnusableFile for what is no text."""
    readable(path)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"{path} is not a text in UTF-8; download it again.") from error
