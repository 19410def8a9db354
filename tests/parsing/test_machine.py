"""Corners of the machine that no family's own cases show."""

from __future__ import annotations

import msgspec
import pytest

from events.formats.output_format import Arguments, CallId, OutputFormat, Reasoning, Tools
from events.formats.registry import named
from events.parsing.machine import Parser
from events.parsing.pieces import CallStart, ContentText
from events.parsing.policy import Policy
from tests.formats.reading import Message, read, splits

THINKING = Reasoning(start=("<think>",), end=("</think>",), ended_by=("<tool_call>",), after_call="reasoning")
RESUMING = OutputFormat(reasoning=THINKING, tools=Tools(call_start="<tool_call>", call_end="</tool_call>"))
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def every_split(output_format: OutputFormat, text: str, policy: Policy | None = None, opened: str = "") -> Message:
    policy = policy or Policy()
    whole = read(output_format, [text], policy, opened)
    for pieces in splits(text, 10):
        assert read(output_format, pieces, policy, opened) == whole
    return whole


def test_reasoning_goes_on_behind_a_call_inside_of_it():
    """In a block of its own, which is trimmed like any."""
    found = every_split(RESUMING, f"<think>First.{CALL} Then.</think>Done.")
    assert found == Message("First.Then.", "Done.", [("f", "", '{"a": 1}')])


def test_without_tools_a_call_in_reasoning_stays_there():
    assert every_split(RESUMING, f"<think>Say {CALL}.</think>Done.", Policy(tools={}))[:2] == (f"Say {CALL}.", "Done.")


def test_a_repeated_opener_is_left_out_unless_the_prompt_wrote_the_first():
    text = "<think>Hm.</think>Yes."
    assert every_split(RESUMING, "<think>" + text).reasoning == "Hm."
    assert every_split(RESUMING, text, opened="<think>\n").reasoning == "<think>Hm."


KEPT = Policy(extract_reasoning=False)


@pytest.mark.parametrize(
    ("opened", "text", "content"),
    [
        ("<think>\n", "Hm.</think>Yes.", "<think>\nHm.</think>Yes."),
        ("<think>\n\n</think>\n\n", "Yes.", "Yes."),
        ("</think>", "Yes.", "Yes."),
        ("<think>Hm.</think>\nYes, ", "sir.", "Yes, sir."),
        ("<think>\n", CALL, ""),
        ("<think>Hm.", " So.</think>Yes.", "<think>Hm. So.</think>Yes."),
    ],
)
def test_reasoning_left_in_the_content(opened: str, text: str, content: str):
    """Of the prompt's own part, an opener that the model's text goes on behind is shown, and nothing that is closed."""
    output_format = msgspec.structs.replace(RESUMING, message_start="<|bot|>")
    for pieces in ([text], *splits(text, 5)):
        parser = Parser(output_format, KEPT, opened="<|bot|>" + opened, show_opened=True)
        said = [piece for part in pieces for piece in parser.feed(part)] + parser.finish()
        assert "".join(piece.text for piece in said if isinstance(piece, ContentText)) == content


HEADED = msgspec.structs.replace(RESUMING, message_start="<|turn|><|bot|>\n")


@pytest.mark.parametrize("again", ["<|turn|><|bot|>\n", "<|bot|>", "<|bot|><|turn|><|bot|>\n\n"])
def test_a_header_that_the_prompt_has_is_left_out_where_it_is_written_again(again: str):
    assert every_split(HEADED, f"{again}Yes, <|bot|>.", opened="<|turn|><|bot|>\n").content == "Yes, <|bot|>."


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('```json\n{"a": "```\\n"}\n```\n', '{"a": "```\\n"}'),
        ("Hm.</think>\n\n```\n[1]\n```", "[1]"),
        ('```json\n"a"\n', '"a"\n'),
        ("``` none", "``` none"),
        ("See:\n```json\n{}\n```", "See:\n```json\n{}\n```"),
        ("```json\n{}\n```\nThat is it.", "{}\n```\nThat is it."),
    ],
)
def test_a_fence_around_asked_for_json_is_left_out(text: str, content: str):
    policy = Policy(tools={}, json_content=True)
    opened = "<think>" if "</think>" in text else ""
    assert every_split(RESUMING, text, policy, opened).content == content
    assert "```" in every_split(RESUMING, text, Policy(tools={}), opened).content or "```" not in text


def test_reasoning_may_come_again():
    assert every_split(RESUMING, "<think>A</think>B<think>C</think>D")[:2] == ("AC", "BD")


@pytest.mark.parametrize("text", ["  \n", "\n\n</think>\n", "<tool_call>", "<tool_ca"])
def test_nothing_is_said_where_nothing_was(text: str):
    assert every_split(RESUMING, text).calls == []
    assert every_split(RESUMING, text).content == ""


def test_white_space_of_an_answer_is_kept():
    assert every_split(RESUMING, "  two  \n\n spaces \n").content == "  two  \n\n spaces \n"


@pytest.mark.parametrize("position", ["before_name", "between", "after_arguments"])
def test_ids_stand_where_the_format_says(position):
    tools = Tools(
        style="tag",
        call_start="<call>",
        call_end="</call>",
        name_suffix="<args>",
        id=CallId(position=position, prefix="<id>", suffix="</id>"),
        arguments=Arguments(),
    )
    texts = {
        "before_name": '<call><id>c1</id>f<args>{"a": 1}</call>',
        "between": '<call>f<id>c1</id><args>{"a": 1}</call>',
        "after_arguments": '<call>f<args>{"a": 1}<id>c1</id></call>',
    }
    assert every_split(OutputFormat(tools=tools), texts[position]).calls == [("f", "c1", '{"a": 1}')]


def test_a_value_may_hold_its_own_end_marker():
    text = "<tool_call>\n<function=f>\n<parameter=a>\nif x: </parameter> or </function>\n</parameter>\n</function>\n</tool_call>"
    found = every_split(named("qwen3_coder"), text, Policy(tools={"f": {"properties": {"a": {"type": "string"}}}}))
    assert found.calls == [("f", "", '{"a": "if x: </parameter> or </function>"}')]


def test_an_xlam_fence_without_a_call_is_an_answer():
    text = "```json\n[1, 2]\n```\nThat is it."
    assert every_split(named("xlam"), text).content == text


def test_formats_are_shared_and_never_changed():
    before = msgspec.json.encode(named("hermes"))
    every_split(named("hermes"), CALL)
    assert msgspec.json.encode(named("hermes")) == before


def test_text_is_plain_only_where_no_marker_has_begun_or_begins():
    parser = Parser(RESUMING, Policy(tools={}), marker_ids={"<think>": 7})
    assert not parser.is_plain("a", [1])  # nothing was read yet
    parser.feed("a", 1)
    assert parser.is_plain("b c", [1, 2])
    assert not parser.is_plain("b c", [1, 7])
    assert not parser.is_plain("b <c", [1, 2])
    parser.feed("<", 3)
    assert not parser.is_plain("b", [1])  # what is held back may go on as a marker
    parser.feed("b", 1)
    assert parser.is_plain("b", [1])
    parser.feed("", 7)
    assert parser.mode == "reasoning"


def test_text_is_not_plain_within_a_call():
    parser = Parser(RESUMING, Policy())
    parser.feed('a<tool_call>{"name"')
    assert not parser.is_plain("b", [1])


def test_a_call_with_an_id_is_announced_before_its_arguments():
    parser = Parser(named("cohere_command3"), Policy())
    said = parser.feed('<|START_ACTION|>[{"tool_call_id": "3", "tool_name": "f"')
    assert said == []
    assert [type(piece) for piece in parser.feed(",")] == [CallStart]


def test_a_call_is_announced_where_its_first_key_opens():
    parser = Parser(named("hermes"), Policy())
    assert parser.feed('<tool_call>{"name": "f", "arguments": {') == []
    assert [type(piece).__name__ for piece in parser.feed('"ci')] == ["CallStart", "ArgumentText"]


def test_a_bare_call_behind_reasoning_that_stays_in_the_content():
    text = '<think>Hm.</think>\n{"name": "f", "arguments": {"a": 1}}'
    found = every_split(RESUMING, text, Policy(tools={"f": None}, extract_reasoning=False))
    assert found == Message("", "<think>Hm.</think>", [("f", "", '{"a": 1}')])
    assert every_split(RESUMING, "Hm.</thi", Policy(tools={"f": None}, extract_reasoning=False)).content == "Hm.</thi"


@pytest.mark.parametrize(("token", "calls"), [(7, [("now", "", "{}")]), (None, [])])
def test_a_marker_that_is_a_token_is_never_spoken_of(token: int | None, calls: list[object]):
    parser = Parser(named("hermes"), Policy(), opened="<think>", marker_ids={"<tool_call>": 7, "</tool_call>": 8})
    parser.feed("So I use ")
    pieces = parser.feed("<tool_call>", token) + parser.feed('{"name": "now", "arguments": {}}')
    pieces += parser.feed("</tool_call>", token and 8) + parser.finish()
    starts = [piece for piece in pieces if isinstance(piece, CallStart)]
    assert [piece.name for piece in starts] == [name for name, *_ in calls]


INDENTED = "    return x\n\n        y\n"


@pytest.mark.parametrize("opened", ["<｜Assistant｜></think>", "<｜Assistant｜><think>\n\n</think>\n\n", ""])
@pytest.mark.parametrize("before", ["", "\n\n", " \n"])
def test_an_answers_first_line_keeps_its_indentation(opened: str, before: str):
    """Blank lines behind a marker are the markup's; what stands in front of the first letter is the answer's."""
    text = before + INDENTED if opened else f"<think>Hm.</think>{before}{INDENTED}"
    found = every_split(named("deepseek_v3"), text, opened=opened)
    assert found.content == INDENTED
    assert every_split(RESUMING, "<think>Hm.</think>\n\tx").content == "\tx"
    assert every_split(RESUMING, "<think>Hm.</think> Yes.").content == "Yes.", "one space is the tokenizer's"


GPT_OSS = "<|start|>assistant"


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("Hello there.", "Hello there."),
        ("Hello there.<|end|>", "Hello there."),
        ("Hello there. " * 40, "Hello there. " * 40),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistantHello.<|end|>", "Hello."),
        ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant" + "Hello. " * 60, "Hello. " * 60),
        ("<|channel|>final<|message|>Hello.<|return|>", "Hello."),
        ("<|channel|>fin", ""),
        (" to=functions.no", ""),
        ("fin", ""),
    ],
)
def test_text_outside_of_channels_is_shown_without_its_header(text: str, content: str):
    assert every_split(named("openai"), text, opened=GPT_OSS).content == content
