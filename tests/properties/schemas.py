"""Random bodies from the request schemas of the wires' own packages: openai, anthropic, ag-ui-protocol.

The schemas are what pydantic makes of the packages' request types, so that every field a client can send is met, also
those that no hand-written body holds. Values are mostly of the right kind and odd now and then.
"""

from __future__ import annotations

import functools
import random
import warnings
from typing import Any

from pydantic import TypeAdapter

DEPTH = 6
ODDS = 0.04
WORDS = (
    "",
    "a",
    "user",
    "assistant",
    "tool",
    "m",
    "<|im_start|>",
    "data:image/png;base64,QUJD",
    "https://x.example/y",
    "é",
)
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**63,
    1e308,
    0.5,
    "x",
    "\u0000",
    "\ud800",
    "x" * 3000,
    [],
    {},
    [[]],
    [None] * 300,
)


@functools.cache
def schema_of(name: str) -> dict[str, Any] | None:
    """The JSON schema of a wire's request; None for wires of our own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = _type_of(name)
        return None if kind is None else TypeAdapter(kind).json_schema()


def _type_of(name: str) -> Any:
    if name == "agui":
        from ag_ui.core import RunAgentInput

        return RunAgentInput
    from anthropic.types.message_count_tokens_params import MessageCountTokensParams
    from anthropic.types.message_create_params import MessageCreateParamsStreaming
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as Chat
    from openai.types.completion_create_params import CompletionCreateParamsStreaming
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    return {
        "chat": Chat,
        "responses": ResponseCreateParamsStreaming,
        "completions": CompletionCreateParamsStreaming,
        "anthropic": MessageCreateParamsStreaming,
        "anthropic count": MessageCountTokensParams,
    }.get(name)


def body_of(name: str, rng: random.Random) -> Any:
    """A random body of this wire's schema; None where the wire has none."""
    schema = schema_of(name)
    return None if schema is None else _value(schema, schema.get("$defs", {}), rng, 0)


def _value(schema: Any, known: dict[str, Any], rng: random.Random, depth: int) -> Any:
    if rng.random() < ODDS and depth:
        return rng.choice(ODD)
    if not isinstance(schema, dict):
        return rng.choice(ODD)
    if "$ref" in schema:
        return _value(known[schema["$ref"].rpartition("/")[2]], known, rng, depth)
    for either in ("anyOf", "oneOf"):
        if either in schema:
            return _value(_simple(schema[either], rng, depth), known, rng, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    return _of_type(schema, known, rng, depth)


def _simple(choices: list[Any], rng: random.Random, depth: int) -> Any:
    """One of the choices; deep down one that goes no deeper, where there is one."""
    flat = [each for each in choices if isinstance(each, dict) and each.get("type") in ("string", "null", "integer")]
    return rng.choice(flat if depth > DEPTH and flat else choices)


def _of_type(schema: dict[str, Any], known: dict[str, Any], rng: random.Random, depth: int) -> Any:
    match schema.get("type"):
        case "object":
            return _object(schema, known, rng, depth)
        case "array":
            few = 0 if depth > DEPTH else rng.choice((0, 1, 1, 2, 3))
            return [_value(schema.get("items", {}), known, rng, depth + 1) for _ in range(few)]
        case "string":
            return rng.choice(WORDS)
        case "integer":
            return rng.choice((0, 1, 2, 7, 64, -1, 10**12))
        case "number":
            return rng.choice((0, 0.5, 1, 2, -0.5, 1e9))
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    return rng.choice(ODD)


def _object(schema: dict[str, Any], known: dict[str, Any], rng: random.Random, depth: int) -> dict[str, Any]:
    fields, required = schema.get("properties", {}), set(schema.get("required", ()))
    share = rng.choice((0.05, 0.2, 0.5)) if depth == 0 else 0.3 if depth <= DEPTH else 0.0
    made = {
        name: _value(field, known, rng, depth + 1)
        for name, field in fields.items()
        if (name in required and rng.random() > ODDS) or rng.random() < share
    }
    if not fields:
        made[rng.choice(WORDS)] = _value(schema.get("additionalProperties"), known, rng, depth + 1)
    return made
