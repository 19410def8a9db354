"""The types of values according to a tool's parameter schema, determined before a value begins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from events.references import References

Schema = Any
"""A JSON schema as parsed JSON, or None if unknown."""

ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_DEPTH = 8
_OTHER_WORDS = {
    "string": ("str", "text", "char", "varchar", "date", "datetime", "bytes"),
    "integer": ("int", "int32", "int64", "long", "short", "uint", "unsigned", "bigint"),
    "number": ("float", "float32", "float64", "double", "decimal", "num", "numeric"),
    "boolean": ("bool",),
    "object": ("dict", "map", "mapping", "json"),
    "array": ("list", "arr", "tuple", "set", "sequence"),
    "null": ("none", "nonetype"),
}
_WORDS = {word: name for name, words in _OTHER_WORDS.items() for word in words} | {name: name for name in ANY}
"""Names that people use for JSON schema's types: its own, and those of Python and of databases."""


def property_schema(schema: Schema, key: str, root: Schema = None, depth: int = 0) -> Schema:
    """Return the schema of an object's property; if several alternatives of the object have it, all of their
    schemas."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    properties = schema.get("properties")
    own = properties.get(key) if isinstance(properties, Mapping) else None
    if own:
        return own
    options = [property_schema(option, key, root, depth + 1) for option in _options(schema)]
    schemas = [each for each in options if each is not None]
    if schemas:
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    extra = schema.get("additionalProperties")
    return own if own is not None or not isinstance(extra, Mapping) else extra


def item_schema(schema: Schema, root: Schema = None, depth: int = 0) -> Schema:
    """Return the schema of a list's items."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return None
    if isinstance(schema.get("items"), Mapping):
        return schema["items"]
    for option in _options(schema):
        if (items := item_schema(option, root, depth + 1)) is not None:
            return items
    return None


def resolved(schema: Schema, root: Schema) -> Schema:
    """Resolve a local `$ref` of the schema (`#/$defs/Name`, `#anchor`), up to eight times in a row."""
    for _ in range(_DEPTH):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        reference = schema["$ref"]
        target: Any = root if reference.startswith("#") else None
        for step in reference.removeprefix("#").split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        if target is not None and (reference == "#" or reference.startswith("#/")):
            schema = target
            continue
        # An anchor, an id, or a pointer through a list.
        if not isinstance(root, Mapping):
            return None
        references = References(root)
        resolution = references.target(reference, references.top)
        schema = None if resolution is None else resolution[0]
    return schema


def types(schema: Schema, root: Schema = None, depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a value may have; all types if the schema does not restrict them."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        return ANY
    declared = schema.get("type")
    if isinstance(declared, str | list):
        names = [declared] if isinstance(declared, str) else declared
        json_names = (_WORDS.get(name.strip().lower()) for name in names if isinstance(name, str))
        named_types = frozenset(name for name in json_names if name)
        return named_types or ANY
    values = [schema["const"]] if "const" in schema else _list(schema.get("enum"))
    if values:
        return frozenset(map(type_of, values))
    for keyword in ("anyOf", "oneOf"):
        if options := _list(schema.get(keyword)):
            return frozenset().union(*(types(option, root, depth + 1) for option in options))
    if options := _list(schema.get("allOf")):
        return frozenset.intersection(*(types(option, root, depth + 1) for option in options)) or ANY
    if "properties" in schema:
        return frozenset({"object"})
    return frozenset({"array"}) if "items" in schema else ANY


def _options(schema: Mapping[str, object]) -> list[object]:
    return [option for keyword in ("anyOf", "oneOf", "allOf") for option in _list(schema.get(keyword))]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def type_of(value: object) -> str:
    """Return the JSON type of a value; "integer" for an int."""
    for kind, name in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "null" if value is None else "object"
