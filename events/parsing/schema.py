"""What a tool's parameter schema says about the type of a value, decided before the value opens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Any
"""A JSON schema as parsed JSON, or None where nothing is known."""

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_DEPTH = 8


def property_schema(schema: Schema, key: str) -> Schema:
    """The schema of an object's property."""
    if not isinstance(schema, Mapping):
        return None
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and key in properties:
        return properties[key]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for option in _list(schema.get(keyword)):
            if (found := property_schema(option, key)) is not None:
                return found
    extra = schema.get("additionalProperties")
    return extra if isinstance(extra, Mapping) else None


def item_schema(schema: Schema) -> Schema:
    """The schema of a list's items."""
    if not isinstance(schema, Mapping):
        return None
    if isinstance(schema.get("items"), Mapping):
        return schema["items"]
    for keyword in ("anyOf", "oneOf", "allOf"):
        for option in _list(schema.get(keyword)):
            if (found := item_schema(option)) is not None:
                return found
    return None


def resolved(schema: Schema, root: Schema) -> Schema:
    """`schema` with a local `$ref` followed (`#/$defs/Name`), up to eight times."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        target: Any = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        schema = target
    return schema


def types(schema: Schema, root: Schema = None, depth: int = 0) -> frozenset[str]:
    """The JSON types that a value may have; every type where the schema does not say."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return ANY
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & ANY or ANY
    if isinstance(declared, list):
        return frozenset(name for name in declared if isinstance(name, str)) & ANY or ANY
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if values:
        return frozenset(map(_type_of, values))
    for keyword in ("anyOf", "oneOf"):
        if options := _list(schema.get(keyword)):
            return frozenset().union(*(types(option, root, depth + 1) for option in options))
    if options := _list(schema.get("allOf")):
        return frozenset.intersection(*(types(option, root, depth + 1) for option in options)) or ANY
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
