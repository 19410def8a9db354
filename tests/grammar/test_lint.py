"""Schemas that cost too much are refused quickly, and findings say where."""

import pytest

from agent_server.prompting.schemas import prepared, problems_of
from events.formats import registry
from events.grammar.lint import MAX_DEPTH, SchemaRefused, prepare
from events.grammar.nodes import Alphabet, constant
from events.grammar.regexes import check_pattern
from events.grammar.value_nodes import ValueWriter, unwritten


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


HOSTILE = {
    "deep": deep(MAX_DEPTH + 1),
    "very deep": deep(400),
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(5000)}},
    "a large enum": {"enum": list(range(5000))},
    "many alternatives": {"anyOf": [{"const": n} for n in range(500)]},
    "remote reference": {"$ref": "http://169.254.169.254/latest"},
    "file reference": {"$ref": "file:///etc/passwd"},
    "itself": {"$ref": "#"},
    "a circle": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
    "never ends": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "never ends (list)": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "nested repetition": {"type": "string", "pattern": "^(a+)+$"},
    "optional between": {"type": "string", "pattern": r"^(\w+\s?)*$"},
    "alternatives that repeat": {"type": "string", "pattern": "^(a*|b*)*$"},
    "far behind": {"type": "string", "pattern": "^(a|b)*a(a|b){25}$"},
    "unrolled": {"type": "string", "pattern": "^(a{100}){100}$"},
    "long": {"type": "string", "pattern": "a" * 5000},
    "not a schema": [1, 2],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_at_once(name):
    with pytest.raises(SchemaRefused) as refused:
        prepared(HOSTILE[name])
    assert refused.value.message.endswith(".")


@pytest.mark.parametrize(
    "pattern",
    [r"^[A-Z]{2}\d{2}$", r"^([a-z]+-)*[a-z]+$", r"^https?://[^/]+/.*[.](png|jpg)$", r"^\d+(\.\d+)*$", r"^.{1,200}$"],
)
def test_ordinary_patterns_are_not_refused(pattern):
    assert check_pattern(pattern) is None
    assert prepared({"type": "string", "pattern": pattern}).findings == ()


def test_a_schema_that_recurs_and_can_end_is_fine():
    tree = {
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}},
    }
    assert prepared(tree).findings == ()


def test_a_finding_names_the_keyword_and_its_place():
    schema = {"type": "object", "properties": {"a/b": {"type": "array", "items": {"not": {"const": 1}}}}}
    (finding,) = prepare(schema).findings
    assert (finding.keyword, finding.path) == ("not", "/properties/a~1b/items")
    assert str(finding).startswith("not at /properties/a~1b/items is not enforced while generating: ")


def test_what_cannot_be_enforced_leaves_the_rest_enforced():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}, "required": ["a"]}
    lightened = prepare(schema).schema
    assert lightened["required"] == ["a"] and lightened["properties"]["a"]["type"] == "integer"
    assert "not" not in lightened["properties"]["a"]


def test_validation_says_where_and_what():
    schema = '{"type": "object", "properties": {"a": {"items": {"type": "integer"}}}, "required": ["b"]}'
    found = problems_of('{"a": [1, "x"]}', schema)
    assert found is not None
    assert dict(found.problems).keys() == {"", "/a/1"}
    assert problems_of('{"a": [1], "b": 2}', schema) is None
    assert problems_of('{"a": [1', schema).problems[0][1] == "The arguments are not valid JSON."


def test_validation_does_not_backtrack_and_fetches_nothing():
    assert problems_of('{"a": "' + "a" * 40 + '!"}', '{"properties": {"a": {"pattern": "^(a+)+$"}}}') is not None
    assert problems_of("{}", '{"$ref": "http://127.0.0.1:9/schema"}') is None
    assert problems_of('{"' + "a" * 40 + '!": 1}', '{"patternProperties": {"^(a+)+$": {}}}') is None


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"exclusiveMinimum": 0, "exclusiveMaximum": 0.3}, {"minimum": 0.0003, "exclusiveMaximum": 0.3}),
        ({"exclusiveMinimum": 5, "maximum": 5.3}, {"minimum": 5.0003, "maximum": 5.3}),
        ({"minimum": -5.3, "exclusiveMaximum": -5}, {"minimum": -5.3, "maximum": -5.0003}),
        ({"exclusiveMinimum": 0, "maximum": 1}, {"exclusiveMinimum": 0, "maximum": 1}),
        ({"exclusiveMinimum": 0.5, "maximum": 0.75}, {"exclusiveMinimum": 0.5, "maximum": 0.75}),
    ],
)
def test_numbers_between_a_whole_number_and_the_next_stay_off_the_edge(bounds, expected):
    assert prepare({"type": "number", **bounds}).schema == {"type": "number", **expected}


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("qwen3_coder", "a>b"),
        ("qwen3_coder", "</parameter>"),
        ("minimax_m2", 'a"b'),
        ("deepseek_v32", 'a"b'),
        ("glm45", "x</arg_key>"),
        ("gemma4", "a:b"),
        ("minimax_m3", "a b"),
        ("lfm2", "max-results"),
    ],
)
def test_a_name_that_the_format_cannot_write_is_left_out_and_said(format, name):
    tools = registry.named(format).tools
    schema = {"type": "object", "properties": {name: {"type": "integer"}, "city": {"type": "integer"}}}
    assert [finding.path for finding in unwritten(tools.arguments, schema)] == [f"/properties/{name}"]
    written = ValueWriter(tools.arguments, Alphabet({}), schema).listed(
        schema, lambda m: constant(m.name), constant(",")
    )
    assert "city" in str(written) and name not in str(written)
