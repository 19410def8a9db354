"""Validating what a model wrote against a tool's schema."""

import json

import jsonschema
import pytest

from agent_server.models.prompting.schemas import FORMATS, mismatch, moved, problems_of


def test_a_time_may_have_the_leap_second_that_grammars_write():
    assert FORMATS.conforms("23:59:60Z", "time")
    assert FORMATS.conforms("10:10:60.0943-20:53", "time")
    assert not FORMATS.conforms("10:10:61Z", "time")
    assert not FORMATS.conforms("24:10:60Z", "time")


@pytest.mark.parametrize(
    ("items", "unique"),
    [
        ([1, 2, "1", True, None, 0, False, [1], [2], {}], True),
        ([1, 1.0], False),
        ([{"a": 1, "b": [2.0]}, {"b": [2], "a": 1}], False),
        ([{"a": 1}, {"a": True}], True),
        ([["a"], ["a"]], False),
    ],
)
async def test_items_are_unique_as_json_values_are_and_found_in_one_pass(items, unique, monkeypatch):
    monkeypatch.delattr("jsonschema._keywords.uniq")  # it compares each with every other
    schema = {"type": "array", "uniqueItems": True}
    assert (problems_of(json.dumps(items), json.dumps(schema)) is None) == unique
    assert (await mismatch(items, schema) is None) == unique
    assert problems_of("[1, 1]", json.dumps({"uniqueItems": False})) is None


def test_a_schema_that_is_moved_into_another_refers_to_what_it_did():
    schema = {
        "type": "object",
        "$defs": {"part": {"type": "object", "properties": {"of": {"$ref": "#/$defs/part"}, "n": {"type": "integer"}}}},
        "properties": {"part": {"$ref": "#/$defs/part"}, "again": {"$ref": "#"}, "fixed": {"const": {"$ref": "#/x"}}},
    }
    whole = {"properties": {"edited": moved(schema, "#/properties/edited")}}
    jsonschema.validate({"edited": {"again": {"part": {"of": {"n": 1}}}, "fixed": {"$ref": "#/x"}}}, whole)
    for wrong in ({"part": {"of": {"n": "1"}}}, {"again": {"part": 1}}, {"fixed": {"$ref": "#/properties/edited/x"}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"edited": wrong}, whole)
    assert schema["properties"]["part"] == {"$ref": "#/$defs/part"}
    own = {"$id": "https://example.org/part", "$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}
    assert moved(own, "#/properties/edited") == own
