"""OpenAI's Embeddings: texts or token ids in, one vector for each out."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from adapters.body import DEFAULT_LIMITS, Limits, integer, optional, read_object, string, wrong
from adapters.request_fields import (
    INTEGER,
    STRING,
    Field,
    accepted,
    honoured,
    one_of,
    read_fields,
    refused,
)
from adapters.request_options import truncation_length
from adapters.sse import json_bytes

MAX_INPUTS = 2048
"""OpenAI's limit."""
EmbeddingInput = str | tuple[int, ...]
FIELDS: dict[str, Field] = {
    "input": honoured("text, token ids, or a list of either", {"type": ["string", "array"]}),
    "model": honoured("the embedding model's name", STRING),
    "dimensions": honoured("keeps the vector's first numbers, normalised to length 1", INTEGER),
    "encoding_format": honoured('"float", or "base64" of little-endian float32', one_of("float", "base64")),
    "user": accepted("embeddings are not kept"),
    # what other open servers accept
    "truncate_prompt_tokens": honoured("keeps the first tokens; -1: as many as fit", INTEGER),
    "prompt_name": honoured("one of the model's prompts, put before each text; without it the model's default", STRING),
    "add_special_tokens": refused("the tokenizer says which the model was trained with", neutral=(True,)),
    "priority": accepted("inputs are embedded in the order of the request"),
    "request_id": accepted("the server names its requests itself"),
    "normalize": refused("the checkpoint determines it"),
}


class EmbeddingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """truncate: tokens kept of each input; -1 for as many as fit; None to truncate or refuse a longer input as the
    model's files say. prompt: the name of a prompt of the model; None for its default."""

    inputs: tuple[EmbeddingInput, ...]
    model: str | None = None
    dimensions: int | None = None
    encoding: Literal["float", "base64"] = "float"
    truncate: int | None = None
    prompt: str | None = None


def parse(body: bytes, *, limits: Limits = DEFAULT_LIMITS) -> EmbeddingQuery:
    """Read an Embeddings body. Raises RequestError."""
    values = read_fields(read_object(body, limits), FIELDS)
    dimensions = optional(integer, "dimensions", values.get("dimensions"))
    if dimensions is not None and dimensions < 1:
        raise wrong("dimensions", "must be at least 1")
    encoding: Any = values.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise wrong("encoding_format", 'must be "float" or "base64"')
    return EmbeddingQuery(
        inputs=read_inputs(values.get("input"), "input"),
        model=optional(string, "model", values.get("model")),
        dimensions=dimensions,
        encoding=encoding,
        truncate=optional(truncation_length, "truncate_prompt_tokens", values.get("truncate_prompt_tokens")),
        prompt=optional(string, "prompt_name", values.get("prompt_name")),
    )


def read_inputs(value: object, at: str) -> tuple[EmbeddingInput, ...]:
    """Read one input or a list of inputs. Raises RequestError."""
    if not isinstance(value, list) or (value and all(type(item) is int for item in value)):
        return (_input(value, at),)
    if not 0 < len(value) <= MAX_INPUTS:
        raise wrong(at, f"must have from 1 to {MAX_INPUTS} items")
    return tuple(_input(item, f"{at}.{i}") for i, item in enumerate(value))


def _input(value: object, at: str) -> EmbeddingInput:
    if isinstance(value, str):
        if not value:
            raise wrong(at, "must not be empty")
        return value
    if isinstance(value, list) and value and all(type(item) is int and 0 <= item < 2**31 for item in value):
        return tuple(value)
    raise wrong(at, "must be text or token ids")


def embedding_body(
    vectors: Sequence[Sequence[float]],
    tokens: int,
    model: str,
    query: EmbeddingQuery,
    warnings: Sequence[str] = (),
) -> bytes:
    """Encode the embeddings. tokens: of all inputs together. warnings: omitted from the body if empty."""
    encode = _base64 if query.encoding == "base64" else list
    data = [{"object": "embedding", "index": i, "embedding": encode(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    extra = {"warnings": list(warnings)} if warnings else {}
    return json_bytes({"object": "list", "data": data, "model": model, "usage": usage, **extra})


def _base64(vector: Sequence[float]) -> str:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
