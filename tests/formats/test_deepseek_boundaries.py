"""The DeepSeek proposal (docs/reading-output.md): rules 3.2.1 to 3.2.6, its boundary table, and output without
thinking (3.3), for V3.1, V3-0324 and R1, streaming and not. Stages are what the prompt opened: `<think>` or nothing."""

from __future__ import annotations

import pytest

from events.formats.output_format import OutputFormat
from events.formats.registry import named, select
from events.parsing.policy import Policy
from tests.formats.reading import Message, read, splits

REASONING_STAGE, CONTENT_STAGE = "<think>", "<think></think>"
MODELS = ("deepseek-v3.1", "deepseek-v3-0324", "deepseek-r1")


def call(model: str, name: str, arguments: str) -> str:
    if model == "deepseek-v3.1":
        return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"


def section(*calls: str) -> str:
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


def strict(model: str, text: str, opened: str | None, tools: dict[str, object] | None = None) -> Message:
    """The message of a strict reading, which every split must give."""
    output_format = select(OutputFormat(), reasoning_parser=model, tool_call_parser=model)
    policy = Policy(tools=tools, boundaries="strict")
    whole = read(output_format, [text], policy, opened)
    for pieces in splits(text, 10):
        assert read(output_format, pieces, policy, opened) == whole
    return Message(whole.reasoning.strip(), whole.content.strip(), [(name, "", args) for name, _, args in whole.calls])


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_3_2_1_no_end_of_reasoning(model: str):
    assert strict(model, "ABCD", REASONING_STAGE) == ("ABCD", "", [])
    assert strict(model, "ABCD", CONTENT_STAGE) == ("", "ABCD", [])


def test_3_2_1_a_call_without_the_end_of_reasoning_stays_reasoning(model: str):
    text = "ABCD" + section(call(model, "f", "{}"))
    assert strict(model, text, REASONING_STAGE) == (text, "", [])


def test_3_2_2_reasoning_and_content(model: str):
    assert strict(model, "ABCD </think> EFG", REASONING_STAGE) == ("ABCD", "EFG", [])


def test_3_2_3_text_before_a_call_makes_all_of_it_content(model: str):
    calls = section(call(model, "f", '{"a": 1}'))
    assert strict(model, f"ABCD </think>\nEFG\n{calls}", REASONING_STAGE) == ("ABCD", f"EFG\n{calls}", [])


def test_3_2_4_only_line_breaks_before_a_call(model: str):
    calls = section(call(model, "f", '{"a": 1}'))
    assert strict(model, f"ABCD </think>\n\n{calls}", REASONING_STAGE) == ("ABCD", "", [("f", "", '{"a": 1}')])


def test_3_2_5_several_calls_with_line_breaks_between(model: str):
    calls = section(call(model, "f", '{"a": 1}'), "\n", call(model, "g", "{}"))
    assert strict(model, f"ABCD</think>\n\n{calls}", REASONING_STAGE) == ("ABCD", "", [("f", "", '{"a": 1}'), ("g", "", "{}")])  # fmt: skip


def test_3_2_5_text_between_calls_ends_them(model: str):
    second = call(model, "g", "{}")
    first = call(model, "f", '{"a": 1}')
    text = f"ABCD</think>\n\n<｜tool▁calls▁begin｜>{first}\nXYZ\n{second}<｜tool▁calls▁end｜>"
    found = strict(model, text, REASONING_STAGE)
    assert found.calls == [("f", "", '{"a": 1}')]
    assert found.content == f"XYZ\n{second}<｜tool▁calls▁end｜>"


def test_3_2_5_text_between_sections_ends_them(model: str):
    first, second = section(call(model, "f", '{"a": 1}')), section(call(model, "g", "{}"))
    found = strict(model, f"ABCD</think>\n\n{first}\nXYZ\n{second}", REASONING_STAGE)
    assert (found.calls, found.content) == ([("f", "", '{"a": 1}')], f"XYZ\n{second}")
    found = strict(model, f"ABCD</think>\n\n{first}\n{second}", REASONING_STAGE)
    assert [name for name, _, _ in found.calls] == ["f", "g"]


def test_3_2_6_arguments_that_can_be_mended(model: str):
    calls = section(call(model, "f", "{'a': True,}"), call(model, "g", '{"b": 2}'))
    assert strict(model, f"ABCD</think>\n\n{calls}", REASONING_STAGE).calls == [("f", "", '{"a": true}'), ("g", "", '{"b": 2}')]  # fmt: skip


def test_3_2_6_arguments_that_cannot_leave_the_other_calls_alone(model: str):
    calls = section(call(model, "f", "about Brest"), call(model, "g", '{"b": 2}'))
    assert strict(model, f"ABCD</think>\n\n{calls}", REASONING_STAGE) == ("ABCD", "", [("g", "", '{"b": 2}')])


def test_3_2_6_or_are_passed_on_as_they_are(model: str):
    output_format = named(model)
    policy = Policy(boundaries="strict", failed="call")
    text = section(call(model, "f", "about Brest"), call(model, "g", '{"b": 2}'))
    found = read(output_format, [text], policy, CONTENT_STAGE)
    assert [name for name, _, _ in found.calls] == ["f", "g"]
    assert "about Brest" in found.calls[0][2]


def test_3_3_without_thinking(model: str):
    calls = section(call(model, "f", '{"a": 1}'))
    assert strict(model, "EFG", CONTENT_STAGE) == ("", "EFG", [])
    assert strict(model, calls, CONTENT_STAGE) == ("", "", [("f", "", '{"a": 1}')])
    assert strict(model, f"EFG{calls}", CONTENT_STAGE) == ("", f"EFG{calls}", [])


def test_boundary_table(model: str):
    calls = section(call(model, "f", "{}"))
    assert strict("deepseek", "ABCD", None) == ("", "ABCD", []), "no marker at all: content"
    assert strict("deepseek", "ABCD</think>EFG", None) == ("ABCD", "EFG", []), (
        "only the end: what precedes is reasoning"
    )
    assert strict(model, f"ABCD</think>{calls}", REASONING_STAGE).content == "", "a call right behind the end"
    assert strict(model, "AB</think>CD</think>EF", REASONING_STAGE) == ("AB", "CD</think>EF", []), (
        "the first end counts"
    )
    assert strict(model, "<think>AB</think>CD", "") == ("AB", "CD", []), "thinking that the output opens"


def test_lenient_boundaries_let_text_stand_before_between_and_behind_calls(model: str):
    text = f"ABCD</think>EFG{section(call(model, 'f', '{}'))}HIJ{section(call(model, 'g', '{}'))}"
    found = read(named(model), [text], Policy(), REASONING_STAGE)
    assert (found.reasoning, found.content) == ("ABCD", "EFGHIJ")
    assert [name for name, _, _ in found.calls] == ["f", "g"]
