"""Schemas that cost too much are refused quickly, and findings say where."""

import pytest

from agent_server.models.prompting.schemas import prepared, refusal
from agent_server.models.prompting.validation import problems_of
from events.formats import registry
from events.grammar.argument_values import ValueWriter, unwritten
from events.grammar.disjoint import SchemaComparison
from events.grammar.lark import MAX_RULES, Unwritable, lark
from events.grammar.lint import MAX_DEPTH, MAX_LEVELS, SchemaRefused, prepare
from events.grammar.nodes import Alphabet, constant
from events.grammar.regexes import check_pattern
from tests.grammar.keywords import fits


def deep(levels):
    schema = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


# what is left out → (the schema, where, which keyword)
LEFT_OUT = {
    "deep": (deep(MAX_DEPTH + 1), "/properties/x" + "/properties/a" * MAX_DEPTH, "schema"),
    "very deep": (deep(400), "/properties/x" + "/properties/a" * MAX_DEPTH, "schema"),
    "many properties": ({"properties": {f"p{n}": {"type": "string"} for n in range(5000)}}, "", "schema"),
    "a large enum": ({"enum": list(range(5000))}, "/properties/x", "enum"),
    "many alternatives": ({"anyOf": [{"const": n} for n in range(500)]}, "/properties/x", "anyOf"),
    "remote reference": ({"$ref": "http://169.254.169.254/latest"}, "/properties/x", "$ref"),
    "file reference": ({"$ref": "file:///etc/passwd"}, "/properties/x", "$ref"),
    "itself": ({"$ref": "#/properties/x"}, "/properties/x", "$ref"),
    "a circle": ({"allOf": [{"$ref": "#/properties/x"}]}, "/properties/x/allOf/0", "$ref"),
    "never ends": ({"type": "object", "properties": {"a": {"$ref": "#/properties/x"}}, "required": ["a"]},
                   "/properties/x/properties/a", "$ref"),
    "never ends (list)": ({"type": "array", "items": {"$ref": "#/properties/x"}, "minItems": 1},
                          "/properties/x/items", "$ref"),
    "nested repetition": ({"type": "string", "pattern": "^(a+)+$"}, "/properties/x", "pattern"),
    "optional between": ({"type": "string", "pattern": r"^(\w+\s?)*$"}, "/properties/x", "pattern"),
    "alternatives that repeat": ({"type": "string", "pattern": "^(a*|b*)*$"}, "/properties/x", "pattern"),
    "far behind": ({"type": "string", "pattern": "^(a|b)*a(a|b){25}$"}, "/properties/x", "pattern"),
    "unrolled": ({"type": "string", "pattern": "^(a{100}){100}$"}, "/properties/x", "pattern"),
    "long": ({"type": "string", "pattern": "a" * 5000}, "/properties/x", "pattern"),
    "no pattern": ({"type": "string", "pattern": "([a"}, "/properties/x", "pattern"),
    "a bound above all doubles": ({"type": "number", "minimum": 10**400}, "/properties/x", "minimum"),
    "a bound above 64 bits": ({"type": "integer", "minimum": 10**30}, "/properties/x", "minimum"),
    "a bound above the compiler's": ({"type": "number", "minimum": 0, "maximum": 1e19}, "/properties/x", "maximum"),
    "a fine multipleOf": ({"type": "number", "multipleOf": 1e-30}, "/properties/x", "multipleOf"),
    "a large multipleOf": ({"type": "integer", "multipleOf": 10**30}, "/properties/x", "multipleOf"),
    "many items": ({"type": "array", "maxItems": 10**30}, "/properties/x", "maxItems"),
    "long texts": ({"type": "string", "maxLength": 10**30}, "/properties/x", "maxLength"),
    "a negative count": ({"type": "array", "minItems": -1}, "/properties/x", "minItems"),
    "unique items": ({"type": "array", "uniqueItems": True}, "/properties/x", "uniqueItems"),
    "an unknown format": ({"type": "string", "format": "color"}, "/properties/x", "format"),
    "patterns of names that overlap": (
        {"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}},
         "additionalProperties": False}, "/properties/x", "patternProperties",
    ),
    "a bound that is text": ({"type": "integer", "maximum": "3"}, "/properties/x", "maximum"),
    "nothing": ({"type": "string", "pattern": None}, "/properties/x", "pattern"),
    "required as in draft 3": ({"type": "string", "required": True}, "/properties/x", "required"),
    "a type of other languages": ({"type": "any"}, "/properties/x", "type"),
    "no schema": ("string", "/properties", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_cannot_be_enforced_unbinds_nothing_else(name):
    schema, path, keyword = LEFT_OUT[name]
    ready = prepared({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}, "x": schema},
                      "required": ["n"], "additionalProperties": False})  # fmt: skip
    assert (path, keyword) in [(finding.path, finding.keyword) for finding in ready.findings]
    assert fits(ready.schema, {"n": 1})
    for wrong in ({"n": "1"}, {"n": 10}, {}, {"n": 1, "y": 1}):
        assert not fits(ready.schema, wrong), wrong


def test_the_rest_of_a_schema_is_kept_where_a_keyword_is_left_out():
    schema = {"type": "integer", "minimum": 3, "maximum": 10**30, "multipleOf": 10**30}
    kept = prepared({"type": "array", "items": schema}).schema
    assert fits(kept, [3]) and not fits(kept, [2]) and not fits(kept, ["3"])
    names = {"type": "object", "patternProperties": {"^(?=a)": {"type": "integer"}}, "additionalProperties": False}
    assert fits(prepared(names).schema, {"abc": 1}), "what the left out names allowed is not forbidden"
    assert not fits(prepared({"enum": [f"v{n}" for n in range(5000)]}).schema, 7), "the values' type is kept"


def test_what_is_no_schema_is_refused():
    with pytest.raises(SchemaRefused):
        prepared([1, 2])


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


@pytest.mark.parametrize(
    "level",
    [
        lambda inner: inner,
        lambda inner: {"type": "object", "properties": {"a": inner, "b": inner}},
        lambda inner: {"type": "array", "items": {"anyOf": [inner, {"type": "null"}]}},
    ],
    ids=["references alone", "properties", "items"],
)
def test_definitions_within_definitions_do_not_overflow_the_compilers_stack(level):
    """The compiler recurses into each; 3,000 of them ended the process with a segmentation fault."""
    chain = {f"d{n}": level({"$ref": f"#/$defs/d{n + 1}"}) for n in range(3000)}
    ready = prepare({"$ref": "#/$defs/d0", "$defs": {**chain, "d3000": {"type": "string"}}})
    assert f"more than {MAX_LEVELS} levels" in str(ready.findings[0])
    assert sum(each != {} for each in ready.schema["$defs"].values()) < MAX_LEVELS
    refusal(ready.schema)  # which ends at all


def test_many_definitions_side_by_side_are_all_enforced():
    wide = {f"d{n}": {"type": "object", "properties": {"a": {"$ref": "#/$defs/leaf"}}} for n in range(250)}
    properties = {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(250)}
    ready = prepare({"type": "object", "properties": properties, "$defs": {**wide, "leaf": {"type": "string"}}})
    assert ready.findings == () and len(ready.schema["$defs"]) == 251


def test_a_clients_grammar_has_a_bounded_number_of_rules_and_references():
    def written(text):
        return lark({"type": "grammar", "grammar": text, "syntax": "lark"})

    chain = "".join(f"r{n}: r{n + 1}\n" for n in range(MAX_RULES))
    assert "r998: r999" in written("start: r0\n" + chain[: chain.index(f"r{MAX_RULES - 1}: ")])
    definitions = ",".join(f'"d{n}": {{"$ref": "#/$defs/d{n + 1}"}}' for n in range(MAX_RULES))
    for text in (f"start: r0\n{chain}", f'start: %json {{"$ref": "#/$defs/d0", "$defs": {{{definitions}}}}}'):
        with pytest.raises(Unwritable, match=f"{MAX_RULES} rules"):
            written(text)


def test_a_whole_number_beyond_a_double_is_an_integer():
    prepared = prepare({"oneOf": [{"const": 10**400}, {"type": "string"}]})
    assert prepared.findings == ()


def nested_objects(name: str, leaf: dict[str, object], *, levels: int = 10, width: int = 20) -> dict[str, object]:
    """Definitions of which each has `width` properties of the next one: 16 KB that have width**levels parts."""
    names = [f"p{number}" for number in range(width)]
    definitions: dict[str, object] = {f"{name}{levels}": leaf}
    for level in range(levels):
        properties = {key: {"$ref": f"#/$defs/{name}{level + 1}"} for key in names}
        definitions[f"{name}{level}"] = {"type": "object", "properties": properties, "required": names}
    return definitions


def test_alternatives_with_countless_parts_are_compared_in_bounded_time():
    definitions = nested_objects("a", {"const": 1}) | nested_objects("b", {"const": 2})
    ready = prepare({"oneOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": definitions})
    assert [each.keyword for each in ready.findings] == ["oneOf"]


def test_alternatives_are_compared_as_long_as_the_bound_allows():
    definitions = nested_objects("a", {"const": 1}, levels=2) | nested_objects("b", {"const": 2}, levels=2)
    first, second = {"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}
    assert SchemaComparison(definitions).disjoint(first, second)
    assert not SchemaComparison(definitions, most=10).disjoint(first, second)
