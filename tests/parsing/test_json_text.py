"""JSON as models write it, made valid as it arrives; values between tags, typed by the schema."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.parsing.json_text import JsonText
from events.parsing.schema import ANY, types
from events.parsing.typed_value import TypedValue, value_types
from tests.formats.reading import cuts


def text_of(written: str, pieces: list[str] | None = None, **settings) -> str:
    value, held = JsonText(**settings), ""
    for piece in pieces or [written]:
        held += piece
        held = held[value.consume(held, 0) :]
    value.consume(held, 0, True)
    value.close()
    return value.take()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON), st.booleans(), st.sampled_from([None, 1]), st.integers(0, 99))
def test_json_passes_verbatim(value, ascii_only: bool, indent: int | None, seed: int):
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert text_of(written) == written
    assert text_of(written, cuts(written, seed, 4) or [""]) == written


@given(st.dictionaries(st.text(), JSON), st.integers(0, 99))
def test_python_literals_become_json(value, seed: int):
    written = repr(value)
    assert json.loads(text_of(written, cuts(written, seed, 4))) == value


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 99))
def test_whatever_is_written_comes_out_as_json_and_the_same_from_every_split(written: str, seed: int):
    written = '{"k": ' + written
    whole = text_of(written)
    json.loads(whole)
    assert text_of(written, list(written)) == text_of(written, cuts(written, seed, 5)) == whole


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('{"a": 1, "b": [1, 2,],}', {"a": 1, "b": [1, 2]}),
        ("{a: 1, 'b': \"it's\"}", {"a": 1, "b": "it's"}),
        ('{"a": "\\d \\x41 line\nend"}', {"a": "\\d A line\nend"}),
        ('{"a": +1, "b": .5, "c": 1_000, "d": 0x10, "e": 1.}', {"a": 1, "b": 0.5, "c": 1000, "d": 16, "e": 1.0}),
        ('{"a": True, "b": None, "c": undefined}', {"a": True, "b": None, "c": None}),
        ('{"a": {"b": [1', {"a": {"b": [1]}}),
        ('{"a": [1}', {"a": [1]}),
        ('{"a": "b" "c": 2}', {"a": "b", "c": 2}),
        ('{"a": }', {"a": None}),
        ('{"a": some words}', {"a": "some words"}),
        ('{"a": "env.get("KEY", "default")", "b": 1}', {"a": 'env.get("KEY", "default")', "b": 1}),
        ('{"a": "He said "hello" to me"}', {"a": 'He said "hello" to me'}),
        ('{"a": {"b": "say "hi""}, "c": ["d", "e"]}', {"a": {"b": 'say "hi"'}, "c": ["d", "e"]}),
        ("{'a': 'it's', 'b': 'x'}", {"a": "it's", "b": "x"}),
    ],
)
def test_what_models_do_to_json(written: str, meant):
    assert json.loads(text_of(written)) == meant
    assert text_of(written, list(written)) == text_of(written)


def test_a_marker_ends_what_is_open_but_not_in_a_string():
    value = JsonText(stops=("</end>",))
    text = '{"a": "</end>", "b": [1</end> more'
    position = value.consume(text, 0)
    value.close()
    assert (text[position:], value.take()) == ("</end> more", '{"a": "</end>", "b": [1]}')


@pytest.mark.parametrize("written", ["{invalid json}", "{1, 2}", '{"a" "b"}', "[word]"])
def test_what_is_no_object_is_seen_before_anything_was_committed(written: str):
    value = JsonText()
    value.consume(written, 0)
    assert value.failed
    assert not value.committed


def typed(schema, written: str, pieces: list[str] | None = None, untyped: str = "json"):
    value = TypedValue(value_types(schema, None, "", untyped))
    for piece in pieces or [written]:
        value.write(piece)
    value.end()
    return json.loads(value.take())


@pytest.mark.parametrize(
    ("schema", "written", "meant"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, 'a "b"\n', 'a "b"\n'),
        ({"type": "integer"}, "42", 42),
        ({"type": "integer"}, "many", "many"),
        ({"type": "boolean"}, "False", False),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nullable", "nullable"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "5", 5),
        ({"enum": ["a", "1"]}, "1", "1"),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object"}, "{oops", "{oops"),
        ({"type": "array"}, '[{\\"a\\": \\"x\\\\\\\\y\\"}]', [{"a": "x\\y"}]),
        (None, "42", 42),
        (None, "42 ships", "42 ships"),
        (None, '"quoted"', "quoted"),
        (None, '"quoted" twice', '"quoted" twice'),
        ({"type": "integer"}, '"42"', 42),
        ({"type": "integer"}, '"many"', "many"),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "boolean"}, "1", True),
        ({"type": "boolean"}, "Off", False),
        ({"type": "boolean"}, "often", "often"),
        ({"type": ["boolean", "integer"]}, "1", 1),
    ],
)
def test_a_value_has_the_type_of_its_schema(schema, written: str, meant):
    assert typed(schema, written) == meant
    assert typed(schema, written, list(written)) == meant


def test_without_a_schema_a_format_may_mean_strings():
    assert typed(None, "42", untyped="string") == "42"


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sets(st.sampled_from(sorted(ANY)), min_size=1),
    st.integers(0, 99),
)
def test_every_value_is_json_whatever_it_should_be(written: str, kinds: set[str], seed: int):
    def value(pieces: list[str]) -> str:
        found = TypedValue(frozenset(kinds))
        for piece in pieces:
            found.write(piece)
        found.end()
        return found.take()

    whole = value([written])
    json.loads(whole)
    assert value(list(written)) == value(cuts(written, seed, 5)) == whole
    if kinds == {"string"}:
        assert json.loads(whole) == written


def test_references_are_followed():
    root = {"$defs": {"Port": {"type": "string"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert types({"$ref": "#/$defs/Port"}, root) == {"string"}
    assert types({"$ref": "#/$defs/Loop"}, root) == ANY
    assert types({"$ref": "#/$defs/Gone"}, root) == ANY
