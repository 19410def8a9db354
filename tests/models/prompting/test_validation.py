"""Validating what a model wrote against a tool's schema."""

import asyncio
import json

import jsonschema
import pytest
import re2

from agent_server.models.prompting import validation
from agent_server.models.prompting.cpu_limit import CPU_LIMIT
from agent_server.models.prompting.schemas import moved, prepared
from agent_server.models.prompting.validation import FORMATS, mismatch, problems_of, validate


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


def doubling(keyword: str, levels: int = 30) -> dict[str, object]:
    """A small schema of 2**levels schemas: each definition uses the next one twice."""
    uses = [{keyword: [{"$ref": f"#/$defs/{level + 1}"}] * 2} for level in range(levels)]
    names = dict(zip(map(str, range(levels)), uses, strict=True))
    return {"$ref": "#/$defs/0", "$defs": {**names, str(levels): {"required": ["missing"] * (keyword != "allOf")}}}


UNEVALUATED = {"unevaluatedProperties": False, **doubling("allOf")}
"""The keyword before the others, so that what it visits is visited first."""


@pytest.mark.parametrize("schema", [doubling("allOf"), doubling("anyOf"), doubling("oneOf"), UNEVALUATED])
async def test_definitions_that_double_neither_stop_the_loop_nor_take_a_thread_forever(
    schema: dict[str, object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(validation, "SECONDS", 0.2)
    task = asyncio.create_task(validate('{"a": 1}', schema))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert await task is None and turns > 10
    assert "is not validated, because that takes more than 0.2 seconds" in caplog.text
    assert await mismatch({"a": 1}, schema) is None


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


@pytest.mark.parametrize(
    "schema",
    [
        {"patternProperties": {"^(a|a)*$": {}}},
        {"patternProperties": {"^(a|a)*$": {}}, "additionalProperties": {}},
        {"patternProperties": {"^(a|a)*$": {}}, "unevaluatedProperties": False},
        {"allOf": [{"propertyNames": {"pattern": "^(a|a)*[!]$"}}]},
        {"propertyNames": {**DRAFT_7, "pattern": "^(a|a)*[!]$", "minLength": 1}},
        {"properties": {"b": {"$ref": "#/$defs/b"}}, "$defs": {"b": {**DRAFT_7, "pattern": "^(b|b)*[!]$"}}},
        {**DRAFT_7, "properties": {"c": {"$ref": "#"}}, "propertyNames": {"pattern": "^((a|a)*[!]|b|c)$"}},
    ],
)
def test_no_pattern_of_a_client_is_matched_with_backtracking(
    schema: dict[str, object], monkeypatch: pytest.MonkeyPatch
):
    for module in ("_keywords", "_legacy_keywords", "_utils"):  # where jsonschema matches with Python's `re`
        monkeypatch.setattr(f"jsonschema.{module}.re", None)
    value = {"a" * 40 + "!": 1, "b": "b" * 40 + "!", "c": {"a" * 40 + "!": 1}}
    problems_of(json.dumps(value), json.dumps(schema))


def test_properties_that_no_pattern_covers_are_additional():
    schema = {"properties": {"a": {}}, "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}
    assert problems_of('{"a": "1", "x-b": 2}', json.dumps(schema)) is None
    found = problems_of('{"x-b": "2", "c": 1}', json.dumps(schema))
    assert found is not None and len(found.problems) == 2
    assert "('c' was unexpected)" in str(found) and "x-b: '2' is not of type 'integer'" in str(found)
    typed = json.dumps({**schema, "additionalProperties": {"type": "string"}})
    assert problems_of('{"c": "1"}', typed) is None and problems_of('{"c": 1}', typed) is not None


def test_schemas_that_take_too_long_to_compile_are_not_enforced():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert prepared(schema).findings == ()
    with CPU_LIMIT.of(0.0):
        ready = prepared(schema)
    assert ready.schema == {"type": "object"}
    assert [str(each) for each in ready.findings] == [
        "schema at / is not enforced while generating: compiling the schemas of the request takes too long."
    ]


def test_what_is_cached_of_schemas_and_patterns_is_bounded_by_its_size():
    for number in range(4):
        schema = {"title": f"{number}" * (validation.MAX_CACHED // 3), "properties": {"a": {"type": "string"}}}
        assert problems_of('{"a": 1}', json.dumps(schema)) is not None
    assert len(validation._validators) == 2
    large = [rf"^[\p{{L}}\p{{N}}_-]{{1,200}}{letter}$" for letter in "abcdefghij"]
    for pattern in large:
        assert problems_of('{"a": "z"}', json.dumps({"properties": {"a": {"pattern": pattern}}})) is not None
    assert validation._programs.cost <= validation.MAX_PROGRAM_BYTES < len(large) * max(validation.PROGRAM_BYTES)
    assert re2._Regexp._make.cache_info().currsize == 0


def test_patterns_that_python_cannot_parse_are_checked():
    schema = json.dumps({"properties": {"a": {"pattern": r"^\p{L}+$"}, "b": {"type": "integer"}}})
    assert problems_of('{"a": "né", "b": 1}', schema) is None
    found = problems_of('{"a": "n1", "b": "1"}', schema)
    assert found is not None and [path for path, _ in found.problems] == ["/a", "/b"]


MALFORMED = [
    {"type": "any"},
    {"type": "string", "required": True},
    {"required": ["x", "x"], "additionalProperties": None, "uniqueItems": "true"},
    {"contains": {"type": "string"}, "minContains": "1"},
    {"enum": None, "title": 5, "$comment": 4, "examples": "x", "readOnly": "x"},
    {"nullable": True, "pattern": 5, "description": {"a": 1}},
    {"anyOf": ["string"], "not": [], "if": "x", "$anchor": "1 2", "$id": 5},
    {"$dynamicRef": "#nowhere"},
    {"properties": None, "items": "x", "$defs": [], "$vocabulary": 5},
    "string",
    None,
]


@pytest.mark.parametrize("malformed", MALFORMED, ids=str)
def test_a_part_that_is_no_json_schema_leaves_the_rest_in_force(malformed: object):
    for schema in (
        {"properties": {"a": malformed, "b": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "integer"}}, "$defs": {"a": malformed}},
        {"allOf": [{"properties": {"a": malformed}}, {"properties": {"b": {"type": "integer"}}}]},
    ):
        assert problems_of('{"a": "x", "b": 1}', json.dumps(schema)) is None
        found = problems_of('{"a": "x", "b": "1"}', json.dumps(schema))
        assert found is not None and [path for path, _ in found.problems] == ["/b"]


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        (
            {"dependencies": {"a": {"dependencies": {"b": ["c"]}}, "x": False}},
            {"a": 1, "b": 1, "c": 1},
            {"a": 1, "b": 1},
        ),
        ({"dependencies": {"x": False}, "dependentRequired": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"items": [{"type": "integer"}, {"$ref": "#/items/0"}]}, [1, 2], [1, "2"]),
        ({"definitions": {"A": {"$id": "#a", "type": "integer"}}, "$ref": "#a"}, 1, "1"),
    ],
    ids=["names", "schemas", "beside the new keyword", "a reference into a tuple", "an anchor"],
)
@pytest.mark.parametrize("dialect", [{}, {"$schema": "http://json-schema.org/draft-07/schema#"}], ids=["", "draft 7"])
def test_what_earlier_drafts_wrote_otherwise_is_in_force(schema, right, wrong, dialect):
    schema = {**dialect, **schema}
    assert problems_of(json.dumps(right), json.dumps(schema)) is None
    assert problems_of(json.dumps(wrong), json.dumps(schema)) is not None
