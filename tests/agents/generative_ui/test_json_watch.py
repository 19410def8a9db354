"""Values of a JSON text that is still being written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents.generative_ui.json_watch import JsonWatch

SCALARS = st.none() | st.booleans() | st.integers(-9, 10**6) | st.floats(-1e9, 1e9) | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def paths(value, path=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*path, key))
    yield path, value


@given(VALUES, st.integers(1, 7), st.booleans(), st.sampled_from([None, 1]))
def test_every_value_is_told_once_as_soon_as_it_is_complete_however_the_text_is_cut(value, size, ascii, indent):
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    watch = JsonWatch(lambda path: True)
    found = [each for start in range(0, len(text), size) for each in watch.feed(text[start : start + size])]
    found += watch.feed("\n")
    assert found == list(paths(value)) and not watch.broken


@given(st.text(alphabet='{}[]",:\\ a1t-', max_size=30))
def test_no_text_makes_it_raise(text):
    watch = JsonWatch(lambda path: len(path) < 2)
    for character in text:
        watch.feed(character)


def test_a_value_is_told_with_its_last_character():
    watch = JsonWatch(lambda path: path == ("a",))
    assert watch.feed('{"a": [1, {"b": "]"}') == []
    assert watch.feed("]") == [(("a",), [1, {"b": "]"}])]
    assert watch.feed(', "c": 2}') == [] and not watch.broken


def test_text_that_is_no_json_ends_the_watch():
    watch = JsonWatch(lambda path: True)
    assert watch.feed("{'a': 1}") == [] and watch.broken
    assert watch.feed('{"a": 1}') == []
