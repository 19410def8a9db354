"""A model writes no properties that a schema does not declare, unless the schema says that it may."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.models.prompting.schemas import prepared
from events.grammar.closing import close_objects
from tests.grammar.keywords import fits

S = {"type": "string"}
A, B = {"properties": {"a": S}, "required": ["a"]}, {"properties": {"b": S}, "required": ["b"]}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def closed(schema: Any, is_arguments: bool = True) -> Any:
    ready = prepared(schema)
    close_objects(ready, is_arguments=is_arguments)
    return ready.schema


# smolagents declares the first and refuses what it does not name; the second is an optional model of pydantic
CLOSED = {
    "arguments": (of(a=S), {"a": ""}, {"a": "", "b": 1}),
    "nested": (of(a={"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}) | {"$defs": {"A": of(a=S)}},
               {"a": {"a": ""}}, {"a": {"b": ""}}),
    "one of a list": (of(a={"type": "array", "items": of(a=S)}), {"a": [{}]}, {"a": [{"b": 1}]}),
    "a single allOf": (of(a={"description": "x", "allOf": [of(a=S)]}), {"a": {}}, {"a": {"b": 1}}),
    "no arguments": (of(), {}, {"b": 1}),
}  # fmt: skip
OPEN = {
    "said so": (of(a=S) | {"additionalProperties": True}, {"a": "", "b": 1}),
    "values of a type": (of(a=S) | {"additionalProperties": S}, {"b": ""}),
    "without properties": ({"type": "object"}, {"b": 1}),
    "a nested object of any kind": (of(a={"type": "object", "properties": {}}), {"a": {"b": 1}}),
    "combined": ({"type": "object", "allOf": [A, B]}, {"a": "", "b": ""}),
    "combined by reference": (
        {"type": "object", "allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}}, {"a": "", "b": ""}),
    "combined within": (
        {"type": "object", "allOf": [of(x=A | {"type": "object"}), of(x=B | {"type": "object"})], "required": ["x"]},
        {"x": {"a": "", "b": ""}}),
    "beside alternatives": (of(c=S) | {"anyOf": [A, B]}, {"c": "", "b": ""}),
    "beside a reference": (of(c=S) | {"$ref": "#/$defs/A", "$defs": {"A": A}}, {"c": "", "a": ""}),
    "required and not declared": (of(a=S) | {"required": ["b"]}, {"a": "", "b": 1}),
    "more than are declared": (of(a=S) | {"minProperties": 2}, {"a": "", "b": 1}),
    "patterns of names": (of(a=S) | {"patternProperties": {"^x": S}}, {"a": "", "x": ""}),
    "conditions": (of(a=S) | {"if": A, "then": of(b=S)}, {"a": "", "b": ""}),
    "names": (of(a=S) | {"propertyNames": {"maxLength": 3}}, {"a": "", "b": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_what_is_not_declared_is_not_written(name: str):
    schema, possible, impossible = CLOSED[name]
    assert fits(prepared(schema).schema, impossible), "JSON Schema allows it"
    assert fits(closed(schema), possible) and not fits(closed(schema), impossible)


def test_a_response_format_without_declared_properties_takes_any():
    assert fits(closed(of(), is_arguments=False), {"b": 1})
    for name in CLOSED.keys() - {"no arguments"}:
        schema, possible, impossible = CLOSED[name]
        assert fits(closed(schema, is_arguments=False), possible)
        assert not fits(closed(schema, is_arguments=False), impossible), name


@pytest.mark.parametrize("name", OPEN)
def test_what_a_schema_may_mean_stays_possible(name: str):
    schema, possible = OPEN[name]
    jsonschema.validate(possible, schema)
    assert fits(closed(schema), possible)


NAMES = st.sampled_from("abc")
SCHEMAS = st.recursive(
    st.just(S),
    lambda inner: st.builds(
        lambda properties, required, more: {"type": "object", "properties": properties, "required": required, **more},
        st.dictionaries(NAMES, inner, max_size=3),
        st.lists(NAMES, unique=True, max_size=2),
        st.fixed_dictionaries(
            {}, optional={"allOf": st.lists(inner, min_size=1, max_size=2), "minProperties": st.just(2)}
        ),
    ),
    max_leaves=6,
)
VALUES = st.recursive(st.just(""), lambda inner: st.dictionaries(NAMES, inner, max_size=3), max_leaves=6)


@given(SCHEMAS, VALUES)
def test_only_values_with_undeclared_properties_become_impossible(schema: dict[str, Any], value: object):
    before, after = (jsonschema.Draft202012Validator(each) for each in (prepared(schema).schema, closed(schema)))
    assert before.is_valid(value) or not after.is_valid(value)
    assert after.is_valid(value) or not before.is_valid(value) or _undeclared(before.schema, value)


def _undeclared(schema: Any, value: Any) -> bool:
    """Whether the value has a property that no part of the schema names."""
    parts = [schema]
    for part in parts:
        parts += part.get("allOf", ())
    if not isinstance(value, dict):
        return False
    for name, inner in value.items():
        named = [part["properties"][name] for part in parts if name in part.get("properties", {})]
        if not named or all(_undeclared(each, inner) for each in named):
            return True
    return False
