"""The text of custom tools, out of arguments that come in pieces."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.errors import RequestError
from adapters.request_tools import InputText, arguments_of, custom_spec, input_of


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.lists(st.integers(1, 5), max_size=40))
def test_pieces_add_up_to_the_text(text: str, ascii_only: bool, sizes: list[int]):
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    reader, said, at = InputText(), "", 0
    for size in [*sizes, len(arguments)]:
        said += reader.feed(arguments[at : at + size])
        assert text.startswith(said)
        at += size
    assert said + reader.finish() == text == input_of(arguments_of(text, "at"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"other": 1}', '{"other": 1}'),
        ("plain", "plain"),
        ('{"input": "cut o', "cut o"),
        ('{"input": "half \\', "half "),
        ('{"input": "lone \\ud83d end"}', "lone \ufffd end"),
        ("", ""),
    ],
)
def test_what_is_no_such_call_is_kept_as_well_as_may_be(arguments: str, text: str):
    assert input_of(arguments) == text


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"name": "t", "format": {"type": "grammar", "grammar": {"syntax": "ebnf", "definition": "x"}}}, "syntax"),
        ({"name": "t", "format": {"type": "grammar", "syntax": "lark"}}, "definition"),
        ({"name": "t", "format": {"type": "grammar", "syntax": "regex", "definition": ""}}, "definition"),
        ({"name": "t", "format": {"type": "json"}}, "format.type"),
    ],
)
def test_what_is_wrong_is_named(tool: dict[str, object], place: str):
    with pytest.raises(RequestError) as refused:
        custom_spec(tool, "tools.0")
    assert refused.value.param is not None and refused.value.param.endswith(place)
