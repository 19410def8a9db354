"""The arguments of a page's own sandbox, mirrored as they are written."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents.generative_ui.open_generative_ui import Mirror
from events.patch import apply_patch

HTML = '<p title="a">Grüße \\ \u2028 😀\n</p>'
ARGUMENTS = {
    "initialHeight": 200,
    "placeholderMessages": ["Wait"],
    "css": "p { color: red }",
    "html": HTML,
    "jsFunctions": "function f() {}",
    "jsExpressions": ["f()", "g()"],
}


def mirrored(text: str, size: int) -> tuple[dict, Mirror]:
    """What a client holds that applies every patch."""
    mirror, held = Mirror(), {"generating": True}
    for start in range(0, len(text), size):
        held = apply_patch(held, mirror.feed(text[start : start + size]))
    return apply_patch(held, mirror.finish()), mirror


@given(st.integers(1, 40), st.booleans())
def test_the_client_holds_the_arguments_however_they_are_cut(size, ascii):
    held, mirror = mirrored(json.dumps(ARGUMENTS, ensure_ascii=ascii), size)
    assert held == mirror.content
    assert "".join(held.pop("html")) == HTML
    assert held == {
        "generating": False,
        "initialHeight": 200,
        "css": "p { color: red }",
        "cssComplete": True,
        "htmlComplete": True,
        "jsFunctions": "function f() {}",
        "jsFunctionsComplete": True,
        "jsExpressions": ["f()", "g()"],
        "jsExpressionsComplete": True,
    }


@given(st.text(max_size=20), st.integers(1, 5))
def test_any_html_comes_through_in_pieces(html, size):
    held, _ = mirrored(json.dumps({"html": html}), size)
    assert "".join(held.get("html", [])) == html and held["htmlComplete"] is True


def test_html_grows_before_it_is_whole():
    mirror = Mirror()
    assert mirror.feed('{"html": "<p>a') == [
        {"op": "add", "path": "/html", "value": []},
        {"op": "add", "path": "/html/-", "value": "<p>a"},
    ]
    assert mirror.feed("\\u00") == []
    assert mirror.feed("fc") == [{"op": "add", "path": "/html/-", "value": "ü"}]


def test_values_of_other_kinds_are_left_out():
    held, _ = mirrored('{"css": 3, "initialHeight": "x", "jsExpressions": [1], "html": ["x"]}', 4)
    assert "css" not in held and "initialHeight" not in held and "jsExpressions" not in held
