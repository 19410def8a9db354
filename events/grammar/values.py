"""One argument's value as a node, in the styles that are not JSON: raw text between tags, Python literals, bare-key
objects, nested elements. What a node cannot express (lengths, formats, combinations) is the lint's to report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from events.formats.output_format import Arguments
from events.grammar.nodes import EMPTY, Alphabet, Node, constant, either, optional, pattern, sequence, star

Schema = Mapping[str, Any]
Kind = Literal["string", "number", "boolean", "null", "array", "object", "json"]
MAX_DEPTH = 8
_SIMPLE: dict[Any, Kind] = {
    "string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null",
    "array": "array", "object": "object",
}  # fmt: skip


class Member:
    """One property of an object schema: its name, its resolved schema, and whether it must be there."""

    def __init__(self, name: str, schema: Schema, required: bool) -> None:
        self.name = name
        self.schema = schema
        self.required = required


def resolve(schema: Any, root: Schema) -> Schema:
    """The schema behind local references ("#/$defs/x"), at most MAX_DEPTH of them; an unknown one is anything."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            break
        schema = _pointer(root, str(schema["$ref"]))
    return schema if isinstance(schema, Mapping) else {}


def _pointer(root: Any, reference: str) -> Any:
    if not reference.startswith("#/"):
        return {}
    for part in reference[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        root = root.get(key, {}) if isinstance(root, Mapping) else {}
    return root


def members(schema: Schema, root: Schema) -> Iterator[Member]:
    """The properties in their declared order, which is the order that the grammar fixes."""
    required = set(schema.get("required") or ())
    properties = schema.get("properties")
    for name, value in properties.items() if isinstance(properties, Mapping) else ():
        yield Member(name, resolve(value, root), name in required)


def kind_of(schema: Schema) -> Kind:
    """What the schema's values are, where it says so plainly; "json" where it does not."""
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        return "string" if all(isinstance(value, str) for value in values) else "json"
    declared = schema.get("type")
    return _SIMPLE.get(declared, "json") if isinstance(declared, str) else "json"


def with_definitions(schema: Schema, root: Schema) -> dict[str, Any]:
    """A property's schema that still finds what it refers to once it stands alone."""
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**schema, **definitions}


class ValueWriter:
    """Writes value nodes for one format. `root` is the tool's whole schema."""

    def __init__(self, style: Arguments, alphabet: Alphabet, root: Schema) -> None:
        self.style = style
        self.alphabet = alphabet
        self.root = root

    def json(self, schema: Schema) -> Node:
        return self.alphabet.json(with_definitions(schema, self.root))

    def closed(self, schema: Schema, end: str) -> Node:
        """A value in the "tagged" style with what closes it: raw text for strings, else JSON."""
        if kind_of(schema) != "string":
            return sequence(self.json(schema), self.alphabet.literal(end))
        bounded = self.choices(schema)
        return sequence(bounded, self.alphabet.literal(end)) if bounded else self.alphabet.until(end)

    def choices(self, schema: Schema) -> Node | None:
        """The fixed or patterned text of a string schema; None where any text will do."""
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
        if values:
            return either(*(constant(str(value)) for value in values))
        return pattern(schema["pattern"]) if anchored(schema.get("pattern")) else None

    def python(self, schema: Schema) -> Node:
        """A Python literal; JSON's strings, numbers and containers are Python's too."""
        match kind_of(schema):
            case "boolean":
                return either(constant("True"), constant("False"))
            case "null":
                return constant("None")
        return self.json(schema)

    def bare(self, schema: Schema, depth: int = 0) -> Node:
        """A value in the "object" style: bare keys, strings between the format's own quotes."""
        kind = kind_of(schema)
        if kind == "string" and self.style.quote:
            return self._quoted(schema)
        if depth < MAX_DEPTH and kind == "object" and schema.get("properties"):
            inner = self.listed(schema, lambda m: self.bare_member(m, depth + 1), constant(","))
            return sequence(constant("{"), inner, constant("}"))
        if depth < MAX_DEPTH and kind == "array":
            item = self.bare(resolve(schema.get("items", {}), self.root), depth + 1)
            return sequence(constant("["), _repeated(item, constant(","), schema), constant("]"))
        return self.json(schema)

    def bare_member(self, member: Member, depth: int = 0) -> Node:
        return sequence(self.alphabet.literal(f"{member.name}:"), self.bare(member.schema, depth))

    def _quoted(self, schema: Schema) -> Node:
        quote = self.style.quote
        bounded = self.choices(schema)
        opening = self.alphabet.literal(quote)
        if bounded is not None:
            return sequence(opening, bounded, opening)
        return sequence(opening, self.alphabet.until(quote))

    def element(self, name: str, schema: Schema, depth: int = 0) -> Node:
        """`<name>VALUE</name>` of the "nested" style."""
        prefix = self.style.element_prefix
        opening, closing = f"{prefix}<{name}>", f"{prefix}</{name}>"
        kind = kind_of(schema)
        if depth < MAX_DEPTH and kind == "object" and schema.get("properties"):
            inner = self.listed(schema, lambda m: self.element(m.name, m.schema, depth + 1), EMPTY)
            return sequence(self.alphabet.literal(opening), inner, self.alphabet.literal(closing))
        if depth < MAX_DEPTH and kind == "array":
            item = self.element(self.style.item, resolve(schema.get("items", {}), self.root), depth + 1)
            inner = _repeated(item, EMPTY, schema)
            return sequence(self.alphabet.literal(opening), inner, self.alphabet.literal(closing))
        return sequence(self.alphabet.literal(opening), self.closed(schema, closing))

    def listed(self, schema: Schema, write: Any, separator: Node) -> Node:
        """The members in order, optional ones optional, the separator between any two that are there."""
        return self._rest(list(members(schema, self.root)), write, separator, first=True)

    def _rest(self, left: list[Member], write: Any, separator: Node, *, first: bool) -> Node:
        if not left:
            return EMPTY
        member, *others = left
        node = write(member)
        after = self._rest(others, write, separator, first=False)
        if member.required:
            return sequence(node if first else sequence(separator, node), after)
        if not first or separator == EMPTY:
            return sequence(optional(sequence(separator, node)), after)
        without = self._rest(others, write, separator, first=True)
        return either(sequence(node, after), without)


def _repeated(item: Node, separator: Node, schema: Schema) -> Node:
    """Items of an array; at least one where `minItems` asks for any."""
    some = sequence(item, star(sequence(separator, item)))
    return some if schema.get("minItems") else optional(some)


def anchored(expression: Any) -> bool:
    """Whether a pattern holds for the whole string; a JSON schema's pattern matches anywhere, the backend's fully."""
    return isinstance(expression, str) and expression.startswith("^") and expression.endswith("$")


def quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
