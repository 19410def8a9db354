"""Find what a grammar cannot enforce in a JSON Schema, before anything is generated. Only the keyword itself is left
out, with a finding; the rest of the schema is kept.

The rules are those of llguidance 1.9. Each was verified by walking a compiled grammar over a valid and an invalid
instance; a test repeats that for every keyword and writes the table in docs/constrained-decoding.md. A keyword that is
not listed here counts as not enforced, so that none is ignored silently.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from events.grammar.disjoint import SchemaComparison
from events.grammar.regexes import check_pattern
from events.parsing.schema import type_of
from events.references import Place, References, escape

MAX_DEPTH = 32
MAX_NODES = 4000
MAX_LEVELS = 600
"""Levels of all definitions together. The compiler follows references recursively, one call per level, and a stack
overflow ends the process: it happened at 1,100 levels with a thread's stack of 8 MB."""
MAX_ENUM = 2000
MAX_COUNT = 10_000
"""Higher bounds on items and properties are left to the validation of the finished value."""
MAX_ALTERNATIVES = 128
SAFE = 2**53 - 1
"""The largest integer that every JSON reader keeps exact (RFC 8259, section 6)."""
MAX_CHAIN = 100
"""The most consecutive references, and nested required properties, that are followed."""

ENFORCED = frozenset(
    {"type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "enum"}
    | {"const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "definitions", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "multipleOf", "minItems", "maxItems", "minLength", "maxLength", "pattern", "format"}
    | {"minProperties", "maxProperties"}
)
"""Keywords that llguidance enforces, or rejects with an error if it cannot in this schema;
`agent_server.models.prompting.schemas` compiles the schema to find out."""
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment"}
    | {
        "$schema",
        "$id",
        "$anchor",
        "$dynamicAnchor",
        "$recursiveAnchor",
        "$vocabulary",
        "contentMediaType",
        "contentEncoding",
        "strict",
    }
    | {"enumNames", "markdownDescription", "errorMessage", "nullable", "discriminator", "externalDocs", "xml"}
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
    "propertyNames": "the grammar has no notion of it beside other names; use patternProperties",
}
SCHEMA_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependencies")
_SCHEMA_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
_INT64 = 2**63 - 1024
"""The largest double within 64 bits: the compiler reads bounds as doubles and counts in int64."""
_LARGEST_DOUBLE = 1.7976931348623157e308
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
UNRELATED = {"patternProperties": "additionalProperties", "properties": "additionalProperties", "prefixItems": "items"}
"""A keyword → the keyword for the remaining properties or items, whose meaning changes if the first is left out."""


class Finding(msgspec.Struct, frozen=True):
    """A keyword that is not enforced. path: JSON pointer to the object that contains it."""

    path: str
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.keyword} at {self.path or '/'} is not enforced while generating: {self.reason}."


class SchemaRefused(ValueError):
    """The value is not a schema, or is nested too deeply to be walked. path: JSON pointer."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message


class PreparedSchema(msgspec.Struct, frozen=True, kw_only=True):
    """A schema that a grammar can enforce.

    schema: its references are all `#/$defs/NAME`. findings: what is left to the validation of the finished value.
    paths: `id` of each object in `schema` that is a schema → its JSON pointer in the original.
    """

    schema: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    paths: dict[int, str] = {}


def prepare(schema: Any) -> PreparedSchema:
    """Take out of a schema what a grammar cannot enforce, and list it. Raises SchemaRefused if it is not a schema."""
    if isinstance(schema, bool):
        return PreparedSchema(schema={} if schema else {"enum": []})
    if not isinstance(schema, Mapping):
        raise SchemaRefused("", "A schema must be an object.")
    return _Preparation(schema).prepared()


def walk(schema: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield every object that is a schema, with its JSON pointer. Raises SchemaRefused above MAX_DEPTH."""
    if not isinstance(schema, Mapping):
        return
    if depth > MAX_DEPTH:
        raise SchemaRefused(path, f"The schema is nested more than {MAX_DEPTH} deep; flatten it.")
    yield path, schema
    for place, value in subschemas(schema):
        yield from walk(value, path + place, depth + 1)


def subschemas(schema: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield the values at positions where JSON Schema expects a schema, with their JSON pointers relative to it."""
    for keyword in SCHEMA_MAPS:
        inner = schema.get(keyword)
        for name, value in inner.items() if isinstance(inner, Mapping) else ():
            yield f"/{keyword}/{escape(str(name))}", value
    for keyword in (*_SCHEMA_LISTS, *_SCHEMAS):
        inner = schema.get(keyword)
        if isinstance(inner, list):  # also `items` before draft 2020-12
            yield from ((f"/{keyword}/{i}", value) for i, value in enumerate(inner))
        elif inner is not None:
            yield f"/{keyword}", inner


class _Preparation:
    """The preparation of one schema. A definition is prepared when a reference names it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._references = References(root)
        self._findings: list[Finding] = []
        self._paths: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._waiting: list[tuple[str, Any, Place]] = []
        self._definitions: dict[str, Any] = {}
        self._tags: dict[int, str] = {}
        self._tagged_copies: list[dict[str, Any]] = []  # kept alive, since `_paths` is keyed by id
        self._count = self._deepest = 0

    def prepared(self) -> PreparedSchema:
        top = self._node(self._root, "", self._references.top, 0)
        levels = 0
        while self._waiting:
            name, contents, place = self._waiting.pop()
            levels += 1 + self._deepest
            self._deepest = 0
            if contents is self._root:
                self._definitions[name] = top
            elif levels < MAX_LEVELS:
                self._definitions[name] = self._node(contents, self._references.pointer(contents), place, 0)
            else:
                self._definitions[name] = {}
                self._find("", "schema", f"its definitions have more than {MAX_LEVELS} levels together; flatten them")
        schema = {**top, "$defs": self._definitions} if self._definitions else top
        self._paths[id(schema)] = ""
        if id(top) in self._tags:
            self._tags[id(schema)] = self._tags[id(top)]
        self._end_loops(every(schema))
        self._end_circles(every(schema))
        # Write `oneOf` as `anyOf`, which is equivalent if no value is valid for two of its schemas.
        nodes = every(schema)
        for node in nodes:
            if id(node) in self._tags:
                for keyword in {"oneOf", "anyOf"} & node.keys():
                    node[keyword] = [self._require_tag(each, self._tags[id(node)]) for each in node[keyword]]
        comparison = SchemaComparison(self._definitions)
        for node in nodes:
            if "oneOf" not in node:
                continue
            options = node.pop("oneOf")
            pairs = ((i, j) for j in range(len(options)) for i in range(j))
            overlap = next(((i, j) for i, j in pairs if not comparison.disjoint(options[i], options[j])), None)
            if overlap is not None:
                reason = f"a value may fit its schemas {overlap[0]} and {overlap[1]} at once; it is taken for anyOf"
                self._find(self._paths.get(id(node), ""), "oneOf", reason)
            if "anyOf" in node:
                node["allOf"] = [*node.get("allOf", ()), {"anyOf": options}]
            else:
                node["anyOf"] = options
        return PreparedSchema(schema=schema, findings=tuple(dict.fromkeys(self._findings)), paths=self._paths)

    def _find(self, path: str, keyword: str, reason: str) -> None:
        self._findings.append(Finding(path, keyword, reason))

    def _node(self, original: Any, path: str, place: Place, depth: int) -> Any:
        if isinstance(original, bool):
            return original
        if not isinstance(original, Mapping):
            name = path.rpartition("/")[2] or "schema"
            self._find(path.rpartition("/")[0], name, f"{_short(original)} is not a schema")
            return {}
        self._count += 1
        self._deepest = max(self._deepest, depth)
        if depth > MAX_DEPTH:
            self._find(path, "schema", f"it is nested more than {MAX_DEPTH} deep; flatten it")
        elif self._count > MAX_NODES:
            self._find(
                "", "schema", f"it has more than {MAX_NODES} parts, and those behind are not read; make it smaller"
            )
        else:
            inner = self._references.inside(original, place) if path else place
            schema = original
            names = schema.get("propertyNames")
            if isinstance(names, Mapping) and names.keys() - ANNOTATIONS == {"$ref"}:
                # pydantic writes an enum of keys as a reference, which `modern` needs resolved.
                target = self._references.target(names["$ref"], inner)
                schema = schema if target is None else {**schema, "propertyNames": target[0]}
            node = self._keywords(modern(schema), path, inner, depth)
            self._paths[id(node)] = path
            discriminator = original.get("discriminator")
            tag = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
            if isinstance(tag, str):
                self._tags[id(node)] = tag
            return node
        return {"type": original["type"]} if original.get("type") in TYPES else {}

    def _keywords(self, schema: Mapping[str, Any], path: str, place: Place, depth: int) -> dict[str, Any]:
        node: dict[str, Any] = {}
        dropped: set[str] = set()
        for keyword, value in schema.items():
            reason = _reason(keyword, value)
            if keyword != "$ref" and keyword in _REFERENCES and not self._references.static(value):
                reason = "what it points at depends on the schemas around it"
            elif keyword in _REFERENCES and reason is None:
                target = self._references.target(value, place)
                if target is not None and isinstance(target[0], Mapping | bool):
                    contents, inner_place = target
                    if id(contents) not in self._names:
                        self._names[id(contents)] = f"d{len(self._names)}"
                        self._waiting.append((self._names[id(contents)], contents, inner_place))
                    node["$ref"] = f"#/$defs/{self._names[id(contents)]}"
                else:
                    reason = f"{_short(value)} points at nothing within the schema, and nothing is fetched"
            if reason is not None:
                self._find(path, keyword, reason)
                dropped.add(keyword)
            elif keyword in ENFORCED and keyword not in ("$ref", "$defs", "definitions"):
                inside = f"{path}/{keyword}"
                if keyword in SCHEMA_MAPS:
                    node[keyword] = {
                        name: self._node(each, f"{inside}/{escape(str(name))}", place, depth + 1)
                        for name, each in value.items()
                    }
                elif keyword in _SCHEMA_LISTS:
                    node[keyword] = [
                        self._node(each, f"{inside}/{i}", place, depth + 1) for i, each in enumerate(value)
                    ]
                elif keyword in _SCHEMAS:
                    node[keyword] = self._node(value, inside, place, depth + 1)
                else:
                    node[keyword] = int(value) if isinstance(value, float) and keyword in _WHOLE else value
        for keyword in dropped & UNRELATED.keys():
            if node.get(UNRELATED[keyword], True) is not True:
                del node[UNRELATED[keyword]]
                self._find(path, UNRELATED[keyword], f"it stands beside {keyword}, which is not enforced")
        kinds = {kind for keyword in dropped & {"enum", *_ALTERNATIVES} for kind in _kinds(keyword, schema[keyword])}
        if kinds and not node.keys() & {"type", "$ref"}:
            node["type"] = sorted(kinds) if len(kinds) > 1 else min(kinds)
        return self._limit_bounds(node, path)

    def _limit_bounds(self, node: dict[str, Any], path: str) -> dict[str, Any]:
        """Limit numeric bounds to what the compiler can represent, and bound integers to what every JSON reader keeps
        exact: without bounds, a model can write digits until max_tokens."""
        kinds = node.get("type")
        whole = "integer" in kinds and "number" not in kinds if isinstance(kinds, list) else kinds == "integer"
        unbounded = False
        for keyword in (*_LOW, *_HIGH):
            value = _number(node, keyword)
            if value is None or abs(value) < (_INT64 if whole else _LARGEST_DOUBLE):
                continue
            del node[keyword]
            if (value < 0) != (keyword in _LOW):
                unbounded = True
                self._find(path, keyword, f"{_short(value)} is more than the grammar counts to")
            elif whole:
                node.update({"minimum": -_INT64} if keyword in _LOW else {"maximum": _INT64})
        if not whole:
            return _without_edges(node)
        for keyword in (*_LOW, *_HIGH):
            if (value := _number(node, keyword)) is not None:
                # The nearest bound that a double represents exactly and that is not wider.
                double = float(value)
                if double != value:
                    if (double < value) == (keyword in _LOW):
                        double = math.nextafter(double, math.inf if keyword in _LOW else -math.inf)
                    value = int(double)
                node[keyword] = value
        if unbounded or "enum" in node or "const" in node:
            return node
        least = [value for each in _LOW if (value := _number(node, each)) is not None]
        most = [value for each in _HIGH if (value := _number(node, each)) is not None]
        low = {} if least else {"minimum": -SAFE if min(most, default=0) >= -SAFE else -_INT64}
        high = {} if most else {"maximum": SAFE if max(least, default=0) <= SAFE else _INT64}
        return {**node, **low, **high}

    def _end_loops(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Remove references by which a schema refers to itself at the same position of the value (`a: {$ref: a}`). They
        allow no value that is not allowed without them."""
        done: dict[int, bool] = {}

        def follow(node: Any, depth: int) -> bool:
            """Return False if `node` is already being followed."""
            if not isinstance(node, dict) or done.get(id(node)):
                return True
            if id(node) in done or depth > MAX_CHAIN:
                return False
            done[id(node)] = False
            if "$ref" in node and not follow(self._definitions[node["$ref"].removeprefix("#/$defs/")], depth + 1):
                del node["$ref"]
                node["enum"] = []
                self._find(self._paths.get(id(node), ""), "$ref", "the schema is defined by nothing but itself")
            for keyword in _ALTERNATIVES:
                for each in _list(node.get(keyword)):
                    follow(each, depth + 1)
            done[id(node)] = True
            return True

        for node in nodes:
            follow(node, 0)

    def _end_circles(self, nodes: Sequence[dict[str, Any]]) -> None:
        """Remove references by which every instance of a schema must contain another instance of it, so that none is
        finite."""
        ends: dict[int, bool] = {}

        def can_end(node: Any, depth: int) -> bool:
            if not isinstance(node, dict):
                return True
            if id(node) in ends or depth > MAX_CHAIN:
                return ends.get(id(node), False)
            ends[id(node)] = False  # while it is followed: coming back here is a circle
            if "$ref" in node and not can_end(self._definitions[node["$ref"].removeprefix("#/$defs/")], depth + 1):
                del node["$ref"]
                self._find(self._paths.get(id(node), ""), "$ref", "it requires itself inside itself, which has no end")
            ends[id(node)] = all(can_end(inner, depth + 1) for inner in _contained_schemas(node))
            return ends.pop(id(node)) and ends.setdefault(id(node), True)

        for node in nodes:
            can_end(node, 0)

    def _require_tag(self, option: Any, tag: str) -> Any:
        """Require the discriminator's property in one schema of a union, as OpenAPI does."""
        target = option
        for _ in range(MAX_CHAIN):
            if not isinstance(target, dict) or "$ref" not in target:
                break
            target = self._definitions[target["$ref"].removeprefix("#/$defs/")]
        if not isinstance(target, dict) or tag not in target.get("properties", {}) or tag in target.get("required", ()):
            return option
        tagged = {**option, "required": [*option.get("required", ()), tag]}
        self._paths[id(tagged)] = self._paths.get(id(option), "")
        self._tagged_copies.append(tagged)
        return tagged


def every(schema: Any) -> list[dict[str, Any]]:
    """Return every object that is a schema within a schema, at any depth, each once."""
    nodes: dict[int, dict[str, Any]] = {}
    waiting: list[Any] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and id(node) not in nodes:
            nodes[id(node)] = node
            waiting += [value for _, value in subschemas(node)]
    return list(nodes.values())


def modern(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a schema object to draft 2020-12. zod and older generators write earlier drafts and OpenAPI 3.0."""
    changes: dict[str, Any] = {}
    if isinstance(node.get("items"), list) and "prefixItems" not in node:  # a tuple, before 2020-12
        changes = {"prefixItems": node["items"], "items": node.get("additionalItems", True), "additionalItems": None}
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(node.get(exclusive), bool):  # draft 4
            limit = _number(node, bound)
            excludes = node[exclusive] and limit is not None
            changes |= {bound: None, exclusive: limit} if excludes else {exclusive: None}
    if isinstance(dependencies := node.get("dependencies"), Mapping):  # before 2019-09: names or a schema for each name
        for keyword, is_kind in (("dependentRequired", list), ("dependentSchemas", (dict, bool))):
            if some := {name: value for name, value in dependencies.items() if isinstance(value, is_kind)}:
                given = node.get(keyword)
                changes |= {keyword: {**some, **(given if isinstance(given, Mapping) else {})}}
        changes["dependencies"] = None
    if isinstance(name := node.get("$id"), str) and name.startswith("#"):  # before 2019-09
        changes |= {"$id": None, "$anchor": name[1:]}
    if "propertyNames" in node:
        changes |= _named_properties(node)
    if changes:
        node = {key: value for key, value in {**node, **changes}.items() if changes.get(key, value) is not None}
    if node.get("nullable") is not True:
        return node
    # OpenAPI 3.0's `nullable`.
    rest = {key: value for key, value in node.items() if key != "nullable"}
    kind = rest.get("type")
    if isinstance(kind, str) and not rest.keys() & {"enum", "const", "$ref", *_ALTERNATIVES}:
        return {**rest, "type": [kind, "null"]}
    around: dict[str, Any] = {key: rest.pop(key) for key in ("$defs", "definitions", "$id", "$anchor") if key in rest}
    return {"anyOf": [rest, {"type": "null"}], **around}


def _named_properties(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes that express `propertyNames` by keywords that grammars know; {} if another keyword restricts
    names as well, or there is no equivalent."""
    names = node["propertyNames"]
    if names is True or (isinstance(names, Mapping) and names.keys() - ANNOTATIONS <= {"type"}
                         and names.get("type", "string") == "string"):  # any name will do  # fmt: skip
        return {"propertyNames": None}
    if not isinstance(names, Mapping) or {"properties", "patternProperties"} & node.keys():
        return {}
    value = node.get("additionalProperties", True)
    rules, values = names.keys() - ANNOTATIONS - {"type"}, names.get("enum", [names.get("const")])
    if rules == {"pattern"}:
        return {"propertyNames": None, "patternProperties": {names["pattern"]: value}, "additionalProperties": False}
    if rules == {"minLength"} and malformed("minLength", names["minLength"]) is None:
        least = rf"^[\s\S]{{{int(names['minLength'])},}}$"
        return {"propertyNames": None, "patternProperties": {least: value}, "additionalProperties": False}
    if rules in ({"enum"}, {"const"}) and _is_texts(values):
        return {"propertyNames": None, "properties": dict.fromkeys(values, value), "additionalProperties": False}
    return {}


def _contained_schemas(node: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the schemas, other than its `$ref`, of which every instance of a schema is or contains an instance."""
    yield from _list(node.get("allOf"))
    for keyword in ("anyOf", "oneOf"):
        if len(_list(node.get(keyword))) == 1:
            yield node[keyword][0]
    properties = node.get("properties")
    if isinstance(properties, Mapping) and node.get("type") == "object":
        yield from (properties[name] for name in _list(node.get("required")) if name in properties)
    if node.get("type") == "array" and node.get("minItems", 0) > 0:
        yield _list(node["prefixItems"])[0] if _list(node.get("prefixItems")) else node.get("items")


LOOKAROUND = re.compile(r"\(\?(?:[=!]|<[=!])|(?<!\\)(?:\\\\)*\\(?:[1-9bBAZzG]|k<)")


def malformed(keyword: str, value: Any) -> str | None:
    """Return why a keyword's value is invalid JSON Schema; None if it is valid or the keyword is not known."""
    shape = _SHAPES.get(keyword)
    return None if shape is None or shape[0](value) else f"{_short(value)} is not {shape[1]}"


def _reason(keyword: str, value: Any) -> str | None:
    """Return why a keyword is not enforced; None if it is, unless the compiler rejects it later."""
    if keyword.startswith("x-") or keyword in ANNOTATIONS:
        return None
    if keyword not in ENFORCED and keyword not in _REFERENCES:
        return REASONS.get(keyword, "the grammar has no notion of it")
    if (problem := malformed(keyword, value)) is not None:
        return problem
    if keyword == "format" and value not in FORMATS:
        return f"{_short(value)} is not a format that the grammar knows"
    if keyword in ("pattern", "patternProperties"):
        for pattern in [value] if keyword == "pattern" else value:
            if LOOKAROUND.search(pattern):
                return "look-around, word boundaries and back references cannot be compiled"
            if (refusal := check_pattern(pattern)) is not None:
                return refusal.rstrip(".")
        return None
    if keyword in _COUNTS and value > MAX_COUNT:
        return f"a bound above {MAX_COUNT} is not worth its grammar"
    if keyword == "enum" and len(value) > MAX_ENUM:
        return f"it has {len(value)} values, and at most {MAX_ENUM} are enforced"
    if keyword in _ALTERNATIVES and len(value) > MAX_ALTERNATIVES:
        return f"it has {len(value)} schemas, and at most {MAX_ALTERNATIVES} are enforced"
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    return value in TYPES if isinstance(value, str) else _is_texts(value) and bool(value) and set(value) <= set(TYPES)


_WHOLE = ("minLength", "maxLength", *_COUNTS)
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": (_is_type, "a type of JSON Schema"),
    "required": (_is_texts, "a list of names"),
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of values"),
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    **{keyword: (lambda value: isinstance(value, str), "a text") for keyword in ("pattern", "format")},
    **dict.fromkeys((*_LOW, *_HIGH), (_is_number, "a number")),
    **dict.fromkeys(
        _WHOLE,
        (lambda value: _is_number(value) and value >= 0 and value == value // 1, "a whole number of 0 or more"),
    ),
    **{keyword: (lambda value: isinstance(value, Mapping), "an object of schemas") for keyword in SCHEMA_MAPS},
    **{
        keyword: (lambda value: isinstance(value, list) and bool(value), "a list of schemas")
        for keyword in _SCHEMA_LISTS
    },
}


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:60] + "..."


def _kinds(keyword: str, value: Any) -> set[str]:
    """Return the types of the values that `enum`, `anyOf` or `oneOf` allow; empty if that is not known."""
    if not isinstance(value, list) or keyword == "allOf":
        return set()
    if keyword == "enum":
        return {type_of(each) for each in value}
    kinds = [each.get("type") if isinstance(each, Mapping) else None for each in value]
    return {str(kind) for kind in kinds} if all(isinstance(kind, str) and kind in TYPES for kind in kinds) else set()


def _without_edges(node: dict[str, Any]) -> dict[str, Any]:
    """Replace an exclusive whole bound by an inclusive one a thousandth of the range away, if the allowed numbers are
    between it and the next whole number: llguidance 1.9 would allow the bound itself."""
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


def _number(node: Mapping[str, Any], keyword: str) -> float | None:
    value = node.get(keyword)
    return value if _is_number(value) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
