"""Nodes for one argument's value in the styles other than JSON: raw text between tags, Python literals, objects with
bare keys, nested elements.

The allowed types come from the same function that the parser uses (`events.parsing.schema.types`). `unwritten` reports
what these nodes cannot express.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from events.formats import layout
from events.formats.output_format import Arguments
from events.grammar.lint import Finding
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, free, optional, pattern, repeated, sequence
from events.parsing.schema import ANY, types

Schema = Mapping[str, Any]
MAX_DEPTH = 8
_STRING = frozenset({"string"})
_LITERAL_LIKE = r"(?s)\s*([\[{\"'].*|[0-9+\-.eE_]+|true|false|True|False|null|None)\s*|\s*"
"""Text that a parser reads as another type than string, for values that may have several types."""
FORMAT_PATTERNS: dict[str, str] = {
    "date": r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])",
    "time": r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(Z|[+\-]([01]\d|2[0-3]):[0-5]\d)",
    "date-time": (
        r"(19|20)\d\d-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d"
        r"(\.\d{1,6})?(Z|[+\-]([01]\d|2[0-3]):[0-5]\d)"
    ),
    "uuid": r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "email": r"[A-Za-z0-9_+\-]{1,32}(\.[A-Za-z0-9_+\-]{1,32}){0,3}@[A-Za-z0-9]{1,32}(\.[A-Za-z0-9]{1,32}){1,4}",
    "ipv4": r"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)",
}
"""Patterns for formats of strings that are written without quotes. Each matches a subset of the format: the 29th to
31st of a month are excluded, since a pattern that knows the length of months costs too much."""


_SINGLE_QUOTED = r"'(?:[^'\\\x00-\x1f]|\\[\\'nt])*'"
"""A Python string as `repr` writes it, with no other escapes than these."""


class Member:
    """One property of an object schema, with its references resolved."""

    def __init__(self, name: str, schema: Schema, required: bool) -> None:
        self.name = name
        self.schema = schema
        self.required = required


_PYTHON_WORDS = (("boolean", "True"), ("boolean", "False"), ("null", "None"))
Write = Callable[[Member], Node]


def resolve(schema: Any, root: Schema) -> Schema:
    """Follow at most MAX_DEPTH local references ("#/$defs/x"). An unknown one gives {}, which allows any value."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        reference = str(schema["$ref"])
        if not reference.startswith("#/"):
            schema = root if reference == "#" else {}
            continue
        schema = root
        for part in reference[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            schema = schema.get(key, {}) if isinstance(schema, Mapping) else {}
    return schema if isinstance(schema, Mapping) else {}


def members(schema: Schema, root: Schema) -> Iterator[Member]:
    """Yield the properties in their declared order, which the grammar enforces, then required ones without a schema."""
    schema = resolve(schema, root)
    required = schema.get("required")
    names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    properties = schema.get("properties")
    described: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    for name, value in described.items():
        if value is not False:
            yield Member(name, resolve(value, root), name in names)
    extra = schema.get("additionalProperties")
    for name in names:
        if name not in described and extra is not False:
            yield Member(name, resolve(extra, root), True)


_BARE = re.compile(r"""[^\s:,{}\[\]"'<>|\\/]+""")
"""Keys of objects with bare keys, and names of elements: they are written without quotes."""


def writable(style: Arguments, name: str) -> bool:
    """Return whether the format can write a property's name: it contains none of the format's markers and no white
    space at its ends, which parsers trim."""
    if style.style == "python":
        return name.isidentifier()
    if style.style in ("object", "nested"):
        return _BARE.fullmatch(name) is not None
    marks = (style.name_prefix, style.name_suffix, style.type_prefix, style.value_prefix, style.value_suffix, style.end)
    return name == name.strip() != "" and not any(mark.strip() in name for mark in marks if mark.strip())


def with_definitions(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return a property's schema together with the root's definitions, so that its references resolve."""
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**schema, **definitions}


class ValueWriter:
    """Writes value nodes for one format. root: the tool's whole schema, in which references are resolved."""

    def __init__(self, style: Arguments, alphabet: Alphabet, root: Schema) -> None:
        self.style = style
        self.alphabet = alphabet
        self.root = root

    def members(self, schema: Schema) -> list[Member]:
        """Return the properties whose names the format can write; `unwritten` reports the others."""
        return [member for member in members(schema, self.root) if writable(self.style, member.name)]

    def json(self, schema: Schema) -> Node:
        return self.alphabet.json(with_definitions(schema, self.root))

    def kinds(self, schema: Schema) -> frozenset[str]:
        """Return the JSON types that the parser allows for a value of this schema."""
        return types(schema, self.root)

    def closed(self, schema: Schema, end: str) -> Node:
        """Return a value of the "tagged" style up to and including `end`: raw text for strings, JSON for other types.
        If the schema allows both, text that looks like JSON must be JSON of the schema."""
        kinds = self.kinds(schema)
        if "string" not in kinds:
            # JSON, or Python's words for its constants, which templates write as well.
            bare = "enum" not in schema and "const" not in schema
            words = [constant(word) for kind, word in _PYTHON_WORDS if kind in kinds and bare]
            spelled = either(self.json(schema), *words)
            return self.alphabet.closed(end, content=spelled)
        if kinds == _STRING:
            return self._text(schema, end)
        if kinds == ANY:
            return self.alphabet.closed(end)
        rest = self._not_strings(schema, kinds)
        others = self.json(rest) if rest is not None else None
        choices = [self.alphabet.closed(end, content=others)] if others else []
        for part in string_parts(schema, self.root):
            bounded = self.bounded(part) or free()
            guarded = (
                bounded if bounded["type"] not in ("any_text", "regex") else {**bounded, "not_pattern": _LITERAL_LIKE}
            )
            choices.append(self.alphabet.closed(end, content=guarded))
        return either(*choices) if choices else self.alphabet.closed(end)

    def typed(self, schema: Schema, end: str) -> dict[str, Node]:
        """Return the nodes of a value whose type is declared in front of it, by type word: strings as raw text, other
        types as JSON."""
        kinds, named = self.kinds(schema), self.style.type_words == "names"
        texts = [self._text(part, end) for part in string_parts(schema, self.root)] if "string" in kinds else []
        strings = {"string" if named else "true": either(*texts)} if texts else {}
        if named:
            others = sorted(kinds - {"string"} - ({"integer"} if "number" in kinds else set()))
            parts = [("number" if kind == "integer" else kind, of_type(schema, self.root, kind)) for kind in others]
        else:
            parts = [("false", self._not_strings(schema, kinds))]
        closed = {word: self.alphabet.closed(end, content=self.json(part)) for word, part in parts if part}
        return {**strings, **closed}

    def _not_strings(self, schema: Schema, kinds: frozenset[str]) -> Schema | None:
        """Return the part of a schema that excludes strings; None if there is none or the schema allows any value."""
        if kinds in (_STRING, ANY):
            return None
        return schema if "string" not in kinds else without_strings(schema, self.root)

    def _text(self, schema: Schema, end: str) -> Node:
        bounded = self.bounded(schema)
        return self.alphabet.closed(end, content=bounded) if bounded else self.alphabet.closed(end)

    def bounded(self, schema: Schema) -> Node | None:
        """Return the node of a string schema's raw text: fixed values, a pattern, or a length; None for any text."""
        const = [schema["const"]] if "const" in schema else []
        values = schema["enum"] if isinstance(schema.get("enum"), list) else const
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            return either(*(constant(text) for text in texts))
        if isinstance(schema.get("pattern"), str):
            return pattern(whole(schema["pattern"]))
        if schema.get("format") in FORMAT_PATTERNS:
            return pattern(FORMAT_PATTERNS[schema["format"]])
        least, most = _count(schema, "minLength"), _count(schema, "maxLength")
        if not least and most is None:
            return None
        return pattern(f"(?s:.){{{least or 0},{'' if most is None else most}}}")

    def python(self, schema: Schema) -> Node:
        """Return a Python literal. JSON's strings, numbers and containers are valid Python as well."""
        kinds = self.kinds(schema)
        if "enum" not in schema and "const" not in schema:
            if kinds == {"boolean"}:
                return either(constant("True"), constant("False"))
            if kinds == {"null"}:
                return constant("None")
            if kinds == _STRING and self.bounded(schema) is None:
                return either(self.json(schema), pattern(_SINGLE_QUOTED))
        return self.json(schema)

    def bare(self, schema: Schema, depth: int = 0) -> Node:
        """Return a value of the "object" style: bare keys, and strings in the format's own quotes."""
        if not self.style.quote:
            return self.json(schema)
        fixed = (
            schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
        )
        if fixed:
            quote = self.alphabet.literal(self.style.quote)
            return either(
                *(
                    sequence(quote, constant(value), quote) if isinstance(value, str) else constant(json.dumps(value))
                    for value in fixed
                )
            )
        alternatives = schema.get("anyOf") or schema.get("oneOf")
        if isinstance(alternatives, list):
            return either(*(self.bare(resolve(each, self.root), depth + 1) for each in alternatives))
        kinds = self.kinds(schema) - ({"integer"} if "number" in self.kinds(schema) else set())
        kinds = kinds - {"object", "array"} if depth >= MAX_DEPTH else kinds
        return either(*(self._bare_kind(kind, schema, depth) for kind in sorted(kinds)))

    def _bare_kind(self, kind: str, schema: Schema, depth: int) -> Node:
        match kind:
            case "string":
                quote = self.style.quote
                return sequence(self.alphabet.literal(quote), self.alphabet.closed(quote, content=self.bounded(schema)))
            case "object":
                extra = schema.get("additionalProperties")
                if self.members(schema):
                    inner = self.listed(schema, lambda m: self.bare_member(m, depth + 1), constant(","))
                elif extra is False or schema.get("properties"):
                    inner = EMPTY
                else:
                    below = depth + 1 if isinstance(extra, Mapping) and extra else MAX_DEPTH
                    key = pattern("[A-Za-z_][A-Za-z0-9_]{0,30}")
                    member = sequence(key, constant(":"), self.bare(resolve(extra, self.root), below))
                    inner = _items(member, constant(","), {})
                return sequence(constant("{"), inner, constant("}"))
            case "array":
                items = schema.get("items")
                below = MAX_DEPTH if not isinstance(items, Mapping) else depth + 1
                item = self.bare(resolve(items, self.root), below)
                return sequence(constant("["), _items(item, constant(","), schema), constant("]"))
        return self.json({**schema, "type": kind})

    def bare_member(self, member: Member, depth: int = 0) -> Node:
        return sequence(constant(f"{member.name}:"), self.bare(member.schema, depth))

    def element(self, name: str, schema: Schema, depth: int = 0) -> Node:
        """Return `<name>VALUE</name>` of the "nested" style."""
        opening, closing = layout.element(self.style, name)
        kinds = self.kinds(schema)
        ends = self.alphabet.literal(closing)
        if depth < MAX_DEPTH and kinds == {"object"} and schema.get("properties"):
            # At least one member; or an empty object, which is written as JSON.
            properties = self.members(schema)
            may_be_empty = not any(member.required for member in properties)
            if may_be_empty and properties:
                schema = {**schema, "required": [properties[0].name]}
            some = self.listed(schema, lambda m: self.element(m.name, m.schema, depth + 1), EMPTY)
            inside = either(constant("{}"), some) if may_be_empty else some
        elif depth < MAX_DEPTH and kinds == {"array"} and isinstance(schema.get("items"), Mapping):
            item = self.element(self.style.item, resolve(schema["items"], self.root), depth + 1)
            some = _items(item, EMPTY, {"minItems": 1, **{k: schema[k] for k in ("maxItems",) if k in schema}})
            least = _count(schema, "minItems") or 0
            inside = _items(item, EMPTY, schema) if least else either(constant("[]"), some)
        else:
            prefix, bounded = self.style.element_prefix, self.bounded(schema)
            if not prefix or kinds != _STRING:
                text = self.closed(schema, closing)
            elif bounded is not None and bounded["type"] != "regex":
                text = sequence(bounded, ends)
            else:  # in formats with a prefix, any closing tag ends the text
                text = self.alphabet.closed(closing, content=bounded, excludes=[f"{prefix}</", f"{prefix}<"])
            return sequence(self.alphabet.literal(opening), text)
        return sequence(self.alphabet.literal(opening), inside, ends)

    def listed(self, schema: Schema, write: Write, separator: Node) -> Node:
        """Return the members in order, with the separator between any two; those that are not required are optional."""
        nodes = [(member.required, write(member)) for member in self.members(schema)]
        # From the last member to the first. after: what may follow a member; first: what may come before any member.
        after = first = EMPTY
        for required, node in reversed(nodes):
            alone = sequence(node, after)
            behind = sequence(separator, node)
            first = (
                alone if required else either(alone, first) if separator != EMPTY else sequence(optional(node), after)
            )
            after = sequence(behind, after) if required else sequence(optional(behind), after)
        return first


def unwritten(style: Arguments, schema: Schema) -> Iterator[Finding]:
    """Yield the keywords of a schema that the grammar does not enforce for arguments that are not written as JSON."""
    top = resolve(schema, schema)
    for keyword in ("anyOf", "oneOf", "allOf", "patternProperties", "minProperties", "maxProperties"):
        if keyword in top:
            yield Finding("", keyword, "arguments of this format are written one by one")
    raw = style.style in ("tagged", "nested") or bool(style.quote)
    for member in members(top, schema):
        path = f"/properties/{member.name}"
        for part in string_parts(member.schema, schema) if raw else ():
            if "enum" in part or "const" in part:
                continue
            bounds = [keyword for keyword in ("minLength", "maxLength") if keyword in part]
            if "pattern" in part:
                others = [*bounds, *(["format"] if "format" in part else [])]
                yield from (Finding(path, keyword, "it stands beside pattern") for keyword in others)
            elif (kind := part.get("format")) in FORMAT_PATTERNS:
                yield from (Finding(path, keyword, "it stands beside format") for keyword in bounds)
            elif kind is not None:
                yield Finding(path, "format", f"{str(kind)[:40]!r} is not known where strings have no quotes")
            for keyword in ("anyOf", "allOf", "oneOf"):
                if keyword in part:
                    yield Finding(path, keyword, "the combination is not written where strings have no quotes")
        if style.style != "json" and not writable(style, member.name):
            reason = "this format cannot write the property's name, and leaves it out"
            yield Finding(path, "properties", reason)


def string_parts(schema: Schema, root: Schema) -> list[Schema]:
    """Return the alternatives of a schema that are strings, each with its own bounds."""
    if isinstance(schema.get("enum"), list):
        texts = [value for value in schema["enum"] if isinstance(value, str)]
        return [{"enum": texts}] if texts else []
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            parts = [part for each in schema[keyword] for part in string_parts(resolve(each, root), root)]
            return [part for part in parts if part]
    return [schema] if "string" in types(schema, root) else []


def without_strings(schema: Schema, root: Schema) -> dict[str, Any] | None:
    """Return the part of a schema that excludes strings; None if it cannot be expressed, or nothing is left."""
    declared = schema.get("type")
    if isinstance(schema.get("enum"), list):
        values = [value for value in schema["enum"] if not isinstance(value, str)]
        return {"enum": values} if values else None
    if isinstance(declared, list):
        return {**schema, "type": [name for name in declared if name != "string"]}
    for keyword in ("anyOf", "oneOf"):
        if isinstance(schema.get(keyword), list):
            rest = [resolve(each, root) for each in schema[keyword]]
            options = [each for each in rest if "string" not in types(each, root)]
            return {keyword: options} if options else None
    return None


def of_type(schema: Schema, root: Schema, kind: str) -> Schema | None:
    """Return the part of a schema that is of one JSON type; integers count as numbers. None if nothing is left."""
    kinds = {kind, "integer"} if kind == "number" else {kind}
    if isinstance(schema.get("enum"), list):
        values = [value for value in schema["enum"] if kinds & types({"const": value}, root)]
        return {"enum": values} if values else None
    if "const" in schema:
        return schema
    for keyword in ("anyOf", "oneOf"):
        if "type" not in schema and isinstance(schema.get(keyword), list):
            options = [resolve(each, root) for each in schema[keyword]]
            parts = [part for each in options if kinds & types(each, root) and (part := of_type(each, root, kind))]
            return {keyword: parts} if parts else None
    return {**schema, "type": kind}


def _items(item: Node, separator: Node, schema: Schema) -> Node:
    """Return as many items as the array's `minItems` and `maxItems` allow."""
    least, most = _count(schema, "minItems") or 0, _count(schema, "maxItems")
    if most == 0:
        return EMPTY
    following = repeated(sequence(separator, item), max(least - 1, 0), None if most is None else most - 1)
    some = sequence(item, following)
    return some if least else optional(some)


def _count(schema: Schema, keyword: str) -> int | None:
    value = schema.get(keyword)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def whole(expression: str) -> str:
    """Return a pattern for the whole string from a JSON Schema pattern, which may match anywhere in it."""
    before = "" if expression.startswith("^") else "(?s:.*)"
    after = "" if expression.endswith("$") and not expression.endswith(r"\$") else "(?s:.*)"
    inner = expression.removeprefix("^")
    inner = inner[:-1] if not after else inner
    return f"{before}(?:{inner}){after}"


def quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
