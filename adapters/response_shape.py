"""The shape that an answer must have, as OpenAI (`response_format`, `text.format`), vLLM (`structured_outputs`),
llama.cpp (a `schema` inside `json_object`) and Anthropic (`output_config.format`) write it.

What constrains nothing is refused: a schema that is missing, or misspelled, would otherwise be ignored in silence.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import islice

import msgspec

from adapters.body import wrong
from adapters.values import boolean, mapping, optional, sequence, string
from events.grammar.lint import MAX_NODES, SCHEMA_MAPS, SchemaRefused, subschemas, walk
from events.options import ResponseFormat

TYPES = frozenset({"null", "boolean", "object", "array", "number", "string", "integer"})
"""JSON Schema 2020-12, validation, section 6.1.1."""


def response_format(path: str, value: object) -> ResponseFormat | None:
    """Chat's `response_format` and Responses' `text.format`; {"type": "text"} is no constraint."""
    shape = mapping(path, value)
    match shape.get("type"):
        case "text":
            return None
        case "json_object":
            return _json_object(path, shape)
        case "json_schema":
            return _json_schema(path, shape)
        case "structural_tag":
            return ResponseFormat(kind="structural_tag", value=shape)
    raise wrong(f"{path}.type", "must be one of text, json_object, json_schema, structural_tag")


def _json_object(path: str, shape: dict[str, object]) -> ResponseFormat:
    """llama.cpp's clients write a schema beside this type; it is honoured."""
    if shape.get("schema") is not None:
        return ResponseFormat(kind="json_schema", value=json_schema(f"{path}.schema", shape["schema"]))
    if shape.get("json_schema") is not None:
        raise wrong(f"{path}.json_schema", 'needs the type "json_schema"')
    return ResponseFormat(kind="json_object")


def _json_schema(path: str, shape: dict[str, object]) -> ResponseFormat:
    nested = shape.get("json_schema")
    where = f"{path}.json_schema" if nested is not None else path
    inner = mapping(where, nested) if nested is not None else shape
    if inner.get("schema") is None:
        raise wrong(f"{where}.schema", "is required")
    name = optional(string, f"{where}.name", inner.get("name"))
    strict = optional(boolean, f"{where}.strict", inner.get("strict"))
    schema = json_schema(f"{where}.schema", inner["schema"])
    return ResponseFormat(kind="json_schema", value=schema, name=name, strict=bool(strict))


def json_schema(path: str, value: object) -> dict[str, object] | bool:
    """A JSON schema whose types all exist and whose parts are schemas. How large and how deep it may be is checked
    where its grammar is made."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, dict):
        raise wrong(path, "must be a JSON schema")
    with contextlib.suppress(SchemaRefused):
        for pointer, node in islice(walk(value), MAX_NODES):
            _check_parts(path + pointer.replace("/", "."), node)
    return value


def _check_parts(path: str, node: Mapping[str, object]) -> None:
    _check_type(path, node.get("type", []))
    for keyword in SCHEMA_MAPS:
        if not isinstance(node.get(keyword, {}), dict):
            raise wrong(f"{path}.{keyword}", "must be an object of JSON schemas")
    for pointer, part in subschemas(node):
        if not isinstance(part, dict | bool):
            raise wrong(path + pointer.replace("/", "."), "must be a JSON schema")


def _check_type(path: str, kinds: object) -> None:
    for kind in kinds if isinstance(kinds, list) else [kinds]:
        if not isinstance(kind, str) or kind not in TYPES:
            raise wrong(f"{path}.type", f"must be one of {', '.join(sorted(TYPES))}")


def structured_outputs(path: str, value: object) -> ResponseFormat | None:
    """vLLM's `structured_outputs`: exactly one of json, json_object, regex, choice, grammar, structural_tag."""
    given = {key: item for key, item in mapping(path, value).items() if item is not None and key in _STRUCTURED}
    if len(given) != 1:
        raise wrong(path, f"must have exactly one of {', '.join(_STRUCTURED)}")
    key, item = next(iter(given.items()))
    return _STRUCTURED[key](f"{path}.{key}", item)


def guided(key: str) -> Callable[[str, object], ResponseFormat | None]:
    """vLLM's older fields, one for each entry of `structured_outputs`; a schema may be written as text."""

    def read(path: str, value: object) -> ResponseFormat | None:
        if key == "json" and isinstance(value, str):
            try:
                value = msgspec.json.decode(value)
            except (msgspec.DecodeError, RecursionError):
                raise wrong(path, "must be a JSON schema") from None
        return _STRUCTURED[key](path, value)

    return read


def llama_shape(values: Mapping[str, object]) -> ResponseFormat | None:
    """llama.cpp's fields: `json_schema`, and `grammar` in its own notation (GBNF), of which "" is none."""
    schema, grammar = values.get("json_schema"), values.get("grammar")
    if schema is not None:
        return ResponseFormat(kind="json_schema", value=json_schema("json_schema", schema))
    return ResponseFormat(kind="grammar", value=string("grammar", grammar)) if grammar else None


def _choices(path: str, value: object) -> ResponseFormat:
    options = [string(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value))]
    if not options:
        raise wrong(path, "must offer at least one choice")
    return ResponseFormat(kind="choice", value=options)


_STRUCTURED: dict[str, Callable[[str, object], ResponseFormat | None]] = {
    "json": lambda path, value: ResponseFormat(kind="json_schema", value=json_schema(path, mapping(path, value))),
    "json_object": lambda path, value: ResponseFormat(kind="json_object") if boolean(path, value) else None,
    "regex": lambda path, value: ResponseFormat(kind="regex", value=string(path, value)),
    "choice": _choices,
    "grammar": lambda path, value: ResponseFormat(kind="grammar", value=string(path, value)),
    "structural_tag": lambda path, value: ResponseFormat(kind="structural_tag", value=mapping(path, value)),
}
