"""How much and how deep a body may be is counted in its text, before anything is built from it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.body import Limits, read_json
from adapters.errors import RequestError

ODD = st.text(alphabet='[]{}"\\a', max_size=8)
VALUES = st.recursive(
    ODD | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ODD, inner, max_size=4),
    max_leaves=30,
)


def nesting(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(nesting, inner), default=0)


def containers(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + sum(map(containers, inner))


def refusal(body: bytes, limits: Limits) -> str:
    try:
        read_json(body, limits)
    except RequestError as error:
        return f"{error.kind}: {error.message}"
    return ""


@given(VALUES, st.booleans())
def test_depth_and_number_are_those_of_the_value(value: Any, ascii_only: bool):
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    deep, many = nesting(value), containers(value)
    assert refusal(body, Limits(depth=deep, containers=max(many, deep))) == ""
    if deep > 1:  # a body that opens no more than the limit is not counted
        assert "nests deeper" in refusal(body, Limits(depth=deep - 1))
    if many > deep:
        assert "arrays and objects" in refusal(body, Limits(depth=deep, containers=many - 1))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a": "' + b"[" * 1000 + b'"}', ""),
        (b'{"a": "' + b'\\"[' * 1000 + b'"}', ""),
        (
            b'{"a": "\\\\", "b": ' + b"[" * 80 + b"]" * 80 + b"}",
            "invalid_request: The body nests deeper than 64 levels.",
        ),
        (b"[" * 100_001, "invalid_request: The body nests deeper than 64 levels."),
        (b"[" + b"[]," * 100_001 + b"1]", "payload_too_large: The body holds more than 100000 arrays and objects."),
        (b"[" * 80 + b'"', "invalid_request: The body nests deeper than 64 levels."),
        (b"]" * 80 + b"[" * 80, "invalid_request: The body is not valid JSON in UTF-8 (at byte 0)."),
    ],
)
def test_what_is_refused_and_what_is_not(body: bytes, said: str):
    assert refusal(body, Limits()) == said


def test_what_is_refused_is_never_built(monkeypatch: pytest.MonkeyPatch):
    def decode(*_: object, **__: object) -> None:
        raise AssertionError("it was built")

    monkeypatch.setattr("adapters.body.msgspec.json.decode", decode)
    assert "nests deeper" in refusal(b"[" * 80 + b"]" * 80, Limits())
