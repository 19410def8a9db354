"""Every JSON schema keyword walked: is it enforced, refused, or left to validation with a warning?

python -m tests.grammar.keywords --write    # puts the table into docs/constrained-decoding.md
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.grammar import Grammar, GrammarBackend
from agent_server.models.prompting.schemas import prepared
from events.grammar.lint import FORMATS, SchemaRefused
from tests.grammar.vocabulary import END, byte_level

DOCUMENT = Path(__file__).parents[2] / "docs" / "constrained-decoding.md"
BEGIN, CLOSE = "<!-- keywords -->\n", "<!-- /keywords -->"
S = {"type": "string"}
I = {"type": "integer"}  # noqa: E741

# keyword → (schema, a value that fits, one that does not)
CASES: dict[str, tuple[Any, Any, Any]] = {
    "type": (S, "a", 1),
    "type (list)": ({"type": ["string", "null"]}, None, 1),
    "enum": ({"enum": ["a", 1]}, 1, "b"),
    "enum (more than 2000 values)": ({"enum": [f"v{n}" for n in range(2001)]}, "v7", 1),
    "const": ({"const": "a"}, "a", "b"),
    "properties": ({"type": "object", "properties": {"a": I}}, {"a": 1}, {"a": "x"}),
    "required": ({"type": "object", "properties": {"a": I}, "required": ["a"]}, {"a": 1}, {}),
    "required (not described)": ({"type": "object", "required": ["a"]}, {"a": 1}, {}),
    "additionalProperties: false": ({"type": "object", "additionalProperties": False}, {}, {"a": 1}),
    "additionalProperties (schema)": ({"type": "object", "additionalProperties": I}, {"a": 1}, {"a": "x"}),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^a": I}, "additionalProperties": False}, {"ab": 1}, {"b": 1},
    ),
    "propertyNames": ({"type": "object", "propertyNames": {"maxLength": 2}}, {"a": 1}, {"abc": 1}),
    "minProperties": ({"type": "object", "minProperties": 1}, {"a": 1}, {}),
    "maxProperties": ({"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 2}),
    "dependentRequired": (
        {"type": "object", "properties": {"a": I, "b": I}, "dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1},
    ),
    "dependentSchemas": (
        {"type": "object", "properties": {"a": I, "b": I}, "dependentSchemas": {"a": {"required": ["b"]}}},
        {"a": 1, "b": 1}, {"a": 1},
    ),
    "unevaluatedProperties": (
        {"type": "object", "properties": {"a": I}, "unevaluatedProperties": False}, {"a": 1}, {"b": 1},
    ),
    "items": ({"type": "array", "items": I}, [1], ["a"]),
    "prefixItems": ({"type": "array", "prefixItems": [I, S]}, [1, "a"], ["a", 1]),
    "minItems": ({"type": "array", "items": I, "minItems": 2}, [1, 2], [1]),
    "maxItems": ({"type": "array", "items": I, "maxItems": 1}, [1], [1, 2]),
    "uniqueItems": ({"type": "array", "items": I, "uniqueItems": True}, [1, 2], [1, 1]),
    "contains": ({"type": "array", "contains": I}, ["a", 1], ["a"]),
    "unevaluatedItems": ({"type": "array", "prefixItems": [I], "unevaluatedItems": False}, [1], [1, 2]),
    "minLength": ({**S, "minLength": 2}, "ab", "a"),
    "maxLength": ({**S, "maxLength": 2}, "ab", "abc"),
    "maxLength (10000)": ({**S, "maxLength": 10000}, "ab", 1),
    "pattern": ({**S, "pattern": "^a+$"}, "aa", "ab"),
    "pattern (not anchored)": ({**S, "pattern": "b"}, "abc", "ac"),
    "pattern with minLength": ({**S, "pattern": "^a+$", "minLength": 2}, "aa", "a"),
    "pattern (not bounded)": ({**S, "pattern": "^(a+)+$"}, "aa", 1),
    "pattern (look-ahead)": ({**S, "pattern": "^(?=a).*$"}, "ab", "b"),
    "minimum": ({**I, "minimum": 3}, 3, 2),
    "maximum": ({**I, "maximum": 3}, 3, 4),
    "maximum (above 64 bits)": ({**I, "maximum": 10**30}, 3, "a"),
    "minimum (above 64 bits)": ({**I, "minimum": 10**30}, 10**31, "a"),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 3}, 3.5, 3),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 3}, 2.5, 3),
    "multipleOf": ({**I, "multipleOf": 3}, 9, 8),
    "anyOf": ({"anyOf": [I, S]}, "a", None),
    "anyOf beside other keywords": (
        {"type": "object", "properties": {"a": I, "b": I}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"b": 1}, {},
    ),
    "oneOf (disjoint)": ({"oneOf": [I, S]}, "a", None),
    "oneOf (disjoint, by $ref)": (
        {"$defs": {"a": {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
                   "b": {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]}},
         "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, {"k": "b"}, {"k": "c"},
    ),
    "oneOf with a discriminator": (
        {"$defs": {"a": {"type": "object", "properties": {"k": {"const": "a"}}},
                   "b": {"type": "object", "properties": {"k": {"const": "b"}}}},
         "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "discriminator": {"propertyName": "k"}},
        {"k": "b"}, {},
    ),
    "oneOf (overlapping)": ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]}, 2, 4),
    "allOf": ({"allOf": [{**I, "minimum": 1}, {**I, "maximum": 3}]}, 2, 4),
    "not": ({"not": S}, 1, "a"),
    "if / then / else": ({**I, "if": {"minimum": 5}, "then": {"multipleOf": 2}}, 6, 7),
    "$ref": ({"$defs": {"a": I}, "type": "array", "items": {"$ref": "#/$defs/a"}}, [1], ["a"]),
    "$ref with neighbours": ({"$defs": {"a": I}, "$ref": "#/$defs/a", "minimum": 3}, 3, 2),
    "$ref (recursive)": (
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}, {"next": {}}, {"n": 1},
    ),
    "$ref (remote)": ({"$ref": "https://example.org/schema"}, 1, None),
    "$ref (endless)": ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, {"a": 1}, {}),
    "$ref (escaped name)": ({"$defs": {"a/b~c%d": I}, "items": {"$ref": "#/$defs/a~1b~0c%25d"}}, [1], ["a"]),
    "$ref ($anchor)": ({"$defs": {"a": {"$anchor": "here", **I}}, "items": {"$ref": "#here"}}, [1], ["a"]),
    "$ref ($id)": (
        {"$id": "https://example.org/a.json", "$defs": {"b": {"$id": "b.json", "$defs": {"c": I}}},
         "items": {"$ref": "b.json#/$defs/c"}}, [1], ["a"],
    ),
    "$dynamicRef": ({"$defs": {"a": {"$dynamicAnchor": "x", **I}}, "$dynamicRef": "#x"}, 1, "a"),
    "format (unknown)": ({**S, "format": "color"}, "red", 1),
    "an unknown keyword": ({**S, "sorted": True}, "a", 1),
    "title, description, default, examples": ({**I, "title": "T", "description": "D", "default": 1}, 2, "a"),
}  # fmt: skip
GOOD = {
    "date": "2026-02-28", "time": "12:30:00Z", "date-time": "2026-02-28T12:30:00Z", "duration": "P1D",
    "email": "a@example.org", "hostname": "example.org", "ipv4": "10.0.0.1", "ipv6": "::1",
    "uuid": "123e4567-e89b-12d3-a456-426614174000", "uri": "https://example.org/a",
}  # fmt: skip
CASES |= {f"format: {name}": ({**S, "format": name}, GOOD[name], "?? no ??") for name in sorted(FORMATS)}


@lru_cache(maxsize=1)
def backend() -> GrammarBackend:
    tokenizer = byte_level()
    return GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [tokenizer.token_to_id(END)])


@lru_cache(8)
def compiled(schema: str) -> Grammar:
    return backend().compile(Constraint(kind="json_schema", value=json.loads(schema)))


def fits(schema: Any, value: Any) -> bool:
    """Whether the grammar of a schema takes a value's JSON, token by token, to its end."""
    matcher = compiled(json.dumps(schema)).matcher()
    text = json.dumps(value, ensure_ascii=False)
    ids = byte_level().encode(text, add_special_tokens=False).ids
    return all(matcher.accept(token) for token in ids) and matcher.accepting


def outcome(keyword: str) -> tuple[str, str]:
    """(what becomes of the keyword, why). Raises AssertionError where it is ignored in silence."""
    schema, good, bad = CASES[keyword]
    try:
        ready = prepared(schema)
    except SchemaRefused as error:
        return "refused", error.message
    assert fits(ready.schema, good), f"{keyword}: {good!r} must be possible"
    rejects = not fits(ready.schema, bad)
    if ready.findings:
        return "validated afterwards", ready.findings[0].reason
    assert rejects, f"{keyword} is ignored in silence: {bad!r} is possible"
    return "enforced", ""


def table() -> str:
    lines = ["| Keyword | With `strict` | Without | Why |", "|---|---|---|---|"]
    for keyword in CASES:
        what, why = outcome(keyword)
        strict = {"enforced": "enforced", "refused": "400"}.get(what, "400")
        without = {"enforced": "enforced", "refused": "400"}.get(what, "warning, validated afterwards")
        lines.append(f"| {keyword} | {strict} | {without} | {why.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
        DOCUMENT.write_text(before + BEGIN + table() + CLOSE + rest.partition(CLOSE)[2], "utf-8")
    else:
        print(table())
