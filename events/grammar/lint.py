"""What a grammar cannot enforce in a JSON schema, found before anything is generated, and what it must not be given.

The facts are llguidance's (1.9), each seen by walking a compiled grammar over a valid and an invalid instance; a test
does that again for every keyword and writes the table in docs/constrained-decoding.md. A keyword that is
not listed here counts as not enforced, so that none is ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from events.grammar.regexes import check_pattern

MAX_DEPTH = 32
MAX_NODES = 4000
MAX_ENUM = 2000
MAX_COUNT = 10_000
"""Bounds on items and properties above this are left to the validation afterwards."""
MAX_ALTERNATIVES = 64
SAFE = 2**53 - 1

ENFORCED = frozenset(
    {"type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "enum"}
    | {"const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format"}
    | {"minProperties", "maxProperties"}
)
"""Those that llguidance enforces, or says that it cannot in this schema (`agent_server.prompting.schemas` asks it)."""
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "$anchor", "$vocabulary", "contentMediaType", "contentEncoding", "strict"}
    | {"enumNames", "markdownDescription", "errorMessage", "discriminator", "externalDocs", "xml"}
)
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"}
)  # fmt: skip
REASONS = {
    "not": "a grammar has no complement",
    "if": "the grammar has no conditions",
    "then": "the grammar has no conditions",
    "else": "the grammar has no conditions",
    "uniqueItems": "the grammar does not remember the items before",
    "contains": "the grammar does not look at all the items",
    "dependentRequired": "the grammar does not remember which properties came",
    "dependentSchemas": "the grammar does not remember which properties came",
    "propertyNames": "the grammar has no notion of it; use patternProperties",
    "nullable": 'it is OpenAPI; use {"type": [..., "null"]}',
}
SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")


class Finding(msgspec.Struct, frozen=True):
    """A keyword that is not enforced. `path` is a JSON pointer to the object it stands in."""

    path: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.keyword} at {self.path or '/'} is not enforced while generating: {self.reason}."


class SchemaRefused(ValueError):
    """A schema that costs too much to compile, has no end, or refers to what is not in it. `path`: a JSON pointer."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class PreparedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """`schema` is what the grammar is made of; `findings` what it leaves to the validation of the finished value."""

    schema: dict[str, Any]
    findings: tuple[Finding, ...] = ()


def prepare(schema: Any) -> PreparedSchema:
    """Check the size, list what is not enforced, and take out what the grammar cannot have. Raises SchemaRefused."""
    if isinstance(schema, bool):
        return PreparedSchema(schema={} if schema else {"enum": []})
    if not isinstance(schema, Mapping):
        raise SchemaRefused("", "A schema must be an object.")
    findings: list[Finding] = []
    for count, (path, node) in enumerate(walk(schema), 1):
        if count > MAX_NODES:
            raise SchemaRefused("", f"The schema has more than {MAX_NODES} parts; make it smaller.")
        _refuse_hostile(path, node, schema)
        findings += inspect(path, node)
    _refuse_endless(schema)
    return PreparedSchema(schema=_lightened(schema), findings=tuple(findings))


def walk(schema: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Every object that is a schema, with its JSON pointer."""
    if not isinstance(schema, Mapping):
        return
    if depth > MAX_DEPTH:
        raise SchemaRefused(path, f"The schema is nested more than {MAX_DEPTH} deep; flatten it.")
    yield path, schema
    for place, value in subschemas(schema):
        yield from walk(value, path + place, depth + 1)


def subschemas(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """What stands in a schema where a schema must stand, with its JSON pointer from there."""
    for keyword in SCHEMA_MAPS:
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            yield f"/{keyword}/{_escape(str(name))}", value
    for keyword in (*_SCHEMA_LISTS, *_SCHEMAS):
        inner = schema.get(keyword)
        if isinstance(inner, list):  # of `items`, before 2020-12, too
            yield from ((f"/{keyword}/{i}", value) for i, value in enumerate(inner))
        elif inner is not None:
            yield f"/{keyword}", inner


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refuse_hostile(path: str, node: Mapping[str, object], root: Mapping[str, object]) -> None:
    reference = node.get("$ref", node.get("$dynamicRef"))
    if reference is not None and not (isinstance(reference, str) and _target(reference, root) is not None):
        raise SchemaRefused(path, "$ref must point into the schema itself, like #/$defs/name.")
    values = node.get("enum")
    if isinstance(values, list) and len(values) > MAX_ENUM:
        raise SchemaRefused(path, f"enum may have at most {MAX_ENUM} values.")
    for keyword in ("anyOf", "oneOf", "allOf"):
        if len(_list(node.get(keyword))) > MAX_ALTERNATIVES:
            raise SchemaRefused(path, f"{keyword} may have at most {MAX_ALTERNATIVES} schemas.")
    inner = node.get("patternProperties")
    for pattern in (node.get("pattern"), *(inner if isinstance(inner, Mapping) else ())):
        problem = check_pattern(pattern) if isinstance(pattern, str) else None
        if problem:
            raise SchemaRefused(path, problem)


def _target(reference: str, root: object) -> object:
    """What a local reference points at, None if there is nothing."""
    if reference == "#":
        return root
    if not reference.startswith("#/"):
        return None
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and key.isdigit() and int(key) < len(root):
            root = root[int(key)]
        elif isinstance(root, Mapping) and key in root:
            root = root[key]
        else:
            return None
    return root if isinstance(root, Mapping | bool) else None


def _refuse_endless(root: Mapping[str, object]) -> None:
    """Refuse a schema whose every instance must contain another instance of the same schema: none is finite."""
    state: dict[int, bool] = {}

    def visit(node: object) -> None:
        if not isinstance(node, Mapping):
            return
        known = state.get(id(node))
        if known is False:
            raise SchemaRefused("", "The schema requires itself inside itself, so no finite value fits it.")
        if known is None:
            state[id(node)] = False
            for inner in _needed(node, root):
                visit(inner)
            state[id(node)] = True

    for _, node in walk(root):
        visit(node)


def _needed(node: Mapping[str, Any], root: Mapping[str, object]) -> Iterator[Any]:
    """What every instance of a schema contains, or is an instance of as well."""
    if isinstance(node.get("$ref"), str):
        yield _target(node["$ref"], root)
    yield from _list(node.get("allOf"))
    for keyword in ("anyOf", "oneOf"):
        if len(_list(node.get(keyword))) == 1:
            yield node[keyword][0]
    properties = node.get("properties")
    if isinstance(properties, Mapping) and node.get("type") == "object":
        yield from (properties[name] for name in _list(node.get("required")) if name in properties)
    if node.get("type") == "array" and isinstance(node.get("minItems"), int) and node["minItems"] > 0:
        yield _list(node["prefixItems"])[0] if _list(node.get("prefixItems")) else node.get("items")


def inspect(path: str, node: Mapping[str, object]) -> Iterator[Finding]:
    """What is not enforced in this one object."""
    for keyword in node:
        if keyword not in ENFORCED and keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            yield Finding(path, keyword, REASONS.get(keyword, "the grammar has no notion of it"))
    if (kind := node.get("format")) is not None and kind not in FORMATS:
        yield Finding(path, "format", f"{str(kind)[:40]!r} is not a format that the grammar knows")
    if isinstance(pattern := node.get("pattern"), str) and LOOKAROUND.search(pattern):
        yield Finding(path, "pattern", "look-around, word boundaries and back references cannot be compiled")
    if isinstance(inner := node.get("patternProperties"), Mapping) and any(map(LOOKAROUND.search, inner)):
        yield Finding(path, "patternProperties", "look-around and back references cannot be compiled")
    for keyword in _COUNTS:
        if _high(node.get(keyword)):
            yield Finding(path, keyword, f"a bound above {MAX_COUNT} is not worth its grammar")


LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])|(?<!\\)(?:\\\\)*\\(?:[1-9bBAZzG]|k<)")


def _lightened(node: Any, keyword: str = "") -> Any:
    """The schema without what the grammar cannot have."""
    if keyword in ("const", "enum", "default", "examples", "required", "type"):
        return node
    if isinstance(node, list):
        return [_lightened(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    if keyword in ("properties", "$defs", "definitions", "patternProperties"):
        return {name: _lightened(value) for name, value in node.items()}
    return _bounded({key: _lightened(value, key) for key, value in node.items() if _kept(key, value)})


def _bounded(node: dict[str, object]) -> dict[str, object]:
    """A whole number within what every JSON reader keeps exact: without bounds, digits can go on until max_tokens."""
    if node.get("type") != "integer":
        return _without_edges(node)
    if node.get("type") != "integer" or "enum" in node or "const" in node:
        return node
    low = {} if "minimum" in node or "exclusiveMinimum" in node else {"minimum": -SAFE}
    high = {} if "maximum" in node or "exclusiveMaximum" in node else {"maximum": SAFE}
    return {**node, **low, **high}


def _without_edges(node: dict[str, object]) -> dict[str, object]:
    """A number between a whole number that it must not be and the next: llguidance (1.9) allows the whole number as
    well, so it is held a thousandth of the way off."""
    low, high = _number(node, "exclusiveMinimum"), _number(node, "exclusiveMaximum")
    above = _number(node, "maximum") if high is None else high
    below = _number(node, "minimum") if low is None else low
    if low is not None and above is not None and low == int(low) and low < above < low + 1:
        rest = {key: value for key, value in node.items() if key != "exclusiveMinimum"}
        return {**rest, "minimum": round(low + (above - low) / 1000, 9)}
    if high is not None and below is not None and high == int(high) and high - 1 < below < high:
        rest = {key: value for key, value in node.items() if key != "exclusiveMaximum"}
        return {**rest, "maximum": round(high - (high - below) / 1000, 9)}
    return node


def _number(node: Mapping[str, object], keyword: str) -> float | None:
    value = node.get(keyword)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _kept(keyword: str, value: object) -> bool:
    if keyword == "format":
        return value in FORMATS
    if keyword == "pattern":
        return isinstance(value, str) and not LOOKAROUND.search(value)
    if keyword == "patternProperties":
        return isinstance(value, Mapping) and not any(map(LOOKAROUND.search, value))
    return keyword in ENFORCED and not (keyword in _COUNTS and _high(value))


def _high(value: object) -> bool:
    return isinstance(value, int) and value > MAX_COUNT


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
