from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.template.difference import between, common_prefix, common_suffix, compare, segments

TEXTS = st.text(alphabet="ab<>|[]/ \n", max_size=30)


@given(TEXTS)
def test_segments_join_to_the_text(text: str) -> None:
    assert "".join(segments(text)) == text


@given(TEXTS, TEXTS)
def test_a_difference_gives_both_texts_back(left: str, right: str) -> None:
    found = compare(left, right)
    assert found.prefix + found.only_left + found.suffix == left
    assert found.prefix + found.only_right + found.suffix == right


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("<|im_start|>user\nhi<|im_end|>", ["<|im_start|>", "user\nhi", "<|im_end|>"]),
        ("[TOOL_CALLS]f[ARGS]{}", ["[TOOL_CALLS]", "f", "[ARGS]", "{}"]),
        ("[|assistant|]\nx", ["[|assistant|]", "\nx"]),
        ("<|open|>think<|sep|>a<|close|>think<|sep|>", ["<|open|>think<|sep|>", "a", "<|close|>think<|sep|>"]),
        ("a < b > c", ["a ", "< b >", " c"]),
    ],
)
def test_markers_are_segments(text: str, parts: list[str]) -> None:
    assert segments(text) == parts


def test_markers_are_not_cut() -> None:
    assert common_prefix("x<|tool_call|>", "x<|tool_calls|>") == "x"
    assert common_suffix("a<|end_x|>", "b<|stop_x|>") == ""
    assert common_prefix("ab<a>", "ac<a>") == "a"


def test_a_switch_may_change_the_system_text_too() -> None:
    found = compare("think! <|user|>hi<|assistant|>", "be short <|user|>hi<|assistant|><think></think>")
    assert found.only_right.endswith("<think></think>")


def test_between() -> None:
    assert between("a<x>b", "a", "b") == "<x>"
    assert between("a<x>", "a", "b") is None
