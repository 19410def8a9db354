"""What a schema says about the type of a value."""

from __future__ import annotations

from typing import Any

import pytest

from events.parsing.schema import ANY, item_schema, property_schema, types


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "float"}, {"number"}),
        ({"type": "Int"}, {"integer"}),
        ({"type": ["str", "None"]}, {"string", "null"}),
        ({"type": "dict"}, {"object"}),
        ({"type": "list"}, {"array"}),
        ({"type": "bool"}, {"boolean"}),
        ({"type": "any"}, ANY),
        ({"type": [1, "colour"]}, ANY),
        ({"type": "integer"}, {"integer"}),
        ({"enum": ["a", 1]}, {"string", "integer"}),
    ],
)
def test_types_by_whatever_name(schema: Any, expected: set[str]):
    assert types(schema) == expected


def test_the_names_in_a_reference_are_escaped():
    root = {"$defs": {"sea/tide~level %": {"type": "integer"}}}
    assert types({"$ref": "#/$defs/sea~1tide~0level %25"}, root) == {"integer"}


def test_a_property_is_found_behind_references_and_in_every_alternative():
    port = {"properties": {"at": {"type": "string"}, "name": {"type": "string"}}}
    root = {
        "$defs": {"Port": port, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}]}},
        "oneOf": [{"$ref": "#/$defs/Port"}, {"properties": {"at": {"type": "array", "items": {"type": "number"}}}}],
    }
    assert types(property_schema(root, "at", root), root) == {"string", "array"}
    assert item_schema(property_schema(root, "at", root), root) == {"type": "number"}
    assert types(property_schema({"$ref": "#/$defs/Port"}, "name", root), root) == {"string"}
    assert property_schema({"$ref": "#/$defs/Loop"}, "name", root) is None
