"""What a grammar cannot enforce in a JSON schema, found before anything is generated, and what it must not be given.

The facts are xgrammar 0.2.8's, each seen by walking a compiled grammar over a valid and an invalid instance; a test
does that again for every keyword and writes the table in docs/constrained-decoding.md. A keyword that nobody has
listed counts as not enforced, so that none is ignored in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

MAX_DEPTH = 32
MAX_NODES = 4000
MAX_ENUM = 2000
MAX_PATTERN = 512
MAX_REPEAT = 4096
LONG = 64
"""Bounds above this many characters or items cost the compiler seconds and are left to the validation afterwards."""

ENFORCED = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "enum", "const", "anyOf"}
    | {"$ref", "$defs", "definitions", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minItems", "maxItems", "minLength", "maxLength", "pattern", "format"}
)
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {"$schema", "$id", "$anchor", "$vocabulary", "contentMediaType", "contentEncoding", "nullable", "strict"}
    | {"enumNames", "markdownDescription", "errorMessage", "discriminator", "externalDocs", "xml"}
)
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference"}
    | {"uri-template", "json-pointer", "relative-json-pointer"}
)
_SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_SIBLINGS = ENFORCED - {"$defs", "definitions", "type"}
_LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]|\\b|\\B")
_BOUNDED = re.compile(r"\{(\d+)(?:,(\d*))?\}")


class Finding(msgspec.Struct, frozen=True):
    """A keyword that is not enforced. `path` is a JSON pointer to the object it stands in."""

    path: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.keyword} at {self.path or '/'} is not enforced while generating: {self.reason}."


class SchemaRefused(ValueError):
    """A schema that costs too much to compile, or refers to what is not in it. `path` is a JSON pointer."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """`schema` is what the grammar is made of; `findings` what it leaves to the validation of the finished value."""

    schema: Any
    findings: tuple[Finding, ...] = ()


def prepare(schema: Any) -> Prepared:
    """Check the size, list what is not enforced, and take out what would cost seconds. Raises SchemaRefused."""
    if isinstance(schema, bool):
        return Prepared(schema={} if schema else {"enum": []})
    if not isinstance(schema, Mapping):
        raise SchemaRefused("", "A schema must be an object.")
    findings: list[Finding] = []
    for count, (path, node) in enumerate(walk(schema), 1):
        if count > MAX_NODES:
            raise SchemaRefused("", f"The schema has more than {MAX_NODES} parts; make it smaller.")
        _refuse_hostile(path, node, schema)
        findings += inspect(path, node)
    return Prepared(schema=_lightened(schema), findings=tuple(findings))


def walk(schema: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every object that is a schema, with its JSON pointer."""
    if not isinstance(schema, Mapping):
        return
    if depth > MAX_DEPTH:
        raise SchemaRefused(path, f"The schema is nested more than {MAX_DEPTH} deep; flatten it.")
    yield path, schema
    for keyword in _SCHEMA_MAPS:
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            yield from walk(value, f"{path}/{keyword}/{_escape(str(name))}", depth + 1)
    for keyword in _SCHEMA_LISTS:
        inner = schema.get(keyword)
        for i, value in enumerate(inner) if isinstance(inner, list) else ():
            yield from walk(value, f"{path}/{keyword}/{i}", depth + 1)
    for keyword in _SCHEMAS:
        yield from walk(schema.get(keyword), f"{path}/{keyword}", depth + 1)


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _refuse_hostile(path: str, node: Mapping[str, Any], root: Mapping[str, Any]) -> None:
    reference = node.get("$ref")
    if isinstance(reference, str) and not _resolves(reference, root):
        raise SchemaRefused(path, "Every $ref must point into the schema itself, like #/$defs/name.")
    values = node.get("enum")
    if isinstance(values, list) and len(values) > MAX_ENUM:
        raise SchemaRefused(path, f"enum may have at most {MAX_ENUM} values.")
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        check_pattern(path, pattern)


def check_pattern(path: str, pattern: str) -> None:
    """Refuse what blows up when it is unrolled; no regular expression is ever run on it here."""
    if len(pattern) > MAX_PATTERN:
        raise SchemaRefused(path, f"pattern may have at most {MAX_PATTERN} characters.")
    product = 1
    for least, most in _BOUNDED.findall(pattern):
        product *= max(int(most or least or 1), 1)
        if product > MAX_REPEAT:
            raise SchemaRefused(path, f"pattern repeats more than {MAX_REPEAT} times when it is unrolled.")
    if pattern.count("(") > 64:
        raise SchemaRefused(path, "pattern has more than 64 groups.")


def _resolves(reference: str, root: Any) -> bool:
    if reference == "#":
        return True
    if not reference.startswith("#/"):
        return False
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, list) and key.isdigit() and int(key) < len(root):
            root = root[int(key)]
        elif isinstance(root, Mapping) and key in root:
            root = root[key]
        else:
            return False
    return True


def inspect(path: str, node: Mapping[str, Any]) -> Iterator[Finding]:
    """What is not enforced in this one object."""
    for keyword in node:
        if keyword not in ENFORCED and keyword not in ANNOTATIONS and not keyword.startswith("x-"):
            yield Finding(path, keyword, "the grammar has no notion of it")
    yield from _beside(path, node)
    yield from _strings(path, node)
    for keyword in ("maxItems", "minItems", "maxLength", "minLength"):
        if _long(node.get(keyword)):
            yield Finding(path, keyword, f"a bound above {LONG} would cost seconds to compile")
    properties = node.get("properties")
    missing = [name for name in _list(node.get("required")) if name not in (properties or {})]
    if missing:
        yield Finding(path, "required", "it names what properties does not describe")


def _beside(path: str, node: Mapping[str, Any]) -> Iterator[Finding]:
    chief = next((keyword for keyword in ("$ref", "anyOf") if keyword in node), None)
    for keyword in node if chief else ():
        if keyword in _SIBLINGS and keyword != chief:
            yield Finding(path, keyword, f"it stands beside {chief}")


def _strings(path: str, node: Mapping[str, Any]) -> Iterator[Finding]:
    pattern, kind = node.get("pattern"), node.get("format")
    if isinstance(pattern, str):
        if not (pattern.startswith("^") and pattern.endswith("$")):
            yield Finding(path, "pattern", "a pattern that is not anchored with ^ and $ is taken for the whole string")
        if _LOOKAROUND.search(pattern):
            yield Finding(path, "pattern", "look-around, word boundaries and back references cannot be compiled")
    if isinstance(kind, str) and kind not in FORMATS:
        yield Finding(path, "format", f"{kind[:40]!r} is not a format that the grammar knows")
    if pattern is not None or kind in FORMATS:
        for keyword in ("minLength", "maxLength"):
            if keyword in node:
                yield Finding(path, keyword, "it stands beside pattern or format")


def _lightened(node: Any, keyword: str = "") -> Any:
    """The schema without bounds that cost seconds and patterns that cannot be compiled."""
    if keyword in ("const", "enum", "default", "examples"):
        return node
    if isinstance(node, list):
        return [_lightened(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    if keyword in ("properties", "$defs", "definitions"):
        return {name: _lightened(value) for name, value in node.items()}
    return {key: _lightened(value, key) for key, value in node.items() if not _too_heavy(key, value)}


def _too_heavy(keyword: str, value: Any) -> bool:
    if keyword in ("maxLength", "minLength", "maxItems", "minItems"):
        return _long(value)
    return keyword == "pattern" and isinstance(value, str) and _LOOKAROUND.search(value) is not None


def _long(value: Any) -> bool:
    return isinstance(value, int) and value > LONG


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
