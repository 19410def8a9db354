"""Pieces become events: whole sequences as snapshots, ids, token details, settings, and how a run ends."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from inline_snapshot import snapshot

from events.encode import to_wire
from events.formats.registry import named
from events.parsing.policy import Policy
from events.repeated_calls import MOST_CALLS
from events.translator import Translator
from events.vocabulary import Event, ReasoningMessageContent, RunError, TextMessageContent, ToolCallArgs, ToolCallStart
from tests.garbage import left_in_cycles

TOOLS = [{"type": "function", "function": {"name": "tide", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>'


def translator(name: str = "hermes", **settings: Any) -> Translator:
    counter = itertools.count(1)
    given = {"tools": TOOLS, "opened": "", "new_id": lambda kind: f"{kind}-{next(counter)}", **settings}
    return Translator(named(name), **given)


def lines(events: list[Event]) -> list[str]:
    """One line for each event: its type and what it carries."""
    wires = [to_wire(event) for event in events]
    return [
        " ".join(str(value) for key, value in wire.items() if key not in ("role", "parentMessageId")) for wire in wires
    ]


def said(t: Translator, *pieces: str) -> list[str]:
    return lines([event for piece in pieces for event in t.feed(piece)] + t.finish())


def test_reasoning_text_and_a_call():
    assert said(translator(), "<think>Brest", "?</think>", "\n\nOne", " moment.", CALL) == snapshot(
        [
            "REASONING_START reasoning-1",
            "REASONING_MESSAGE_START reasoning-1",
            "REASONING_MESSAGE_CONTENT reasoning-1 Brest",
            "REASONING_MESSAGE_CONTENT reasoning-1 ?",
            "REASONING_MESSAGE_END reasoning-1",
            "REASONING_END reasoning-1",
            "TEXT_MESSAGE_START message-2",
            "TEXT_MESSAGE_CONTENT message-2 One",
            "TEXT_MESSAGE_CONTENT message-2  moment.",
            "TEXT_MESSAGE_END message-2",
            "TOOL_CALL_START tool_call-3 tide",
            'TOOL_CALL_ARGS tool_call-3 {"port": "Brest"}',
            "TOOL_CALL_END tool_call-3",
        ]
    )


def test_text_behind_a_call_goes_on_with_the_same_message():
    assert said(translator(message_id="m"), "Before ", CALL, " after.") == snapshot(
        [
            "TEXT_MESSAGE_START m",
            "TEXT_MESSAGE_CONTENT m Before",
            "TEXT_MESSAGE_END m",
            "TOOL_CALL_START tool_call-1 tide",
            'TOOL_CALL_ARGS tool_call-1 {"port": "Brest"}',
            "TOOL_CALL_END tool_call-1",
            "TEXT_MESSAGE_START m",
            "TEXT_MESSAGE_CONTENT m   after.",
            "TEXT_MESSAGE_END m",
        ]
    )


def test_arguments_in_tags_stream_as_json():
    text = ["<tool_call>\n<function=tide>\n<parameter=port>\nBr", "est\n</param", "eter>\n</function>\n</tool_call>"]
    assert said(translator("qwen3_coder", tools=None), *text) == snapshot(
        [
            "TOOL_CALL_START tool_call-1 tide",
            'TOOL_CALL_ARGS tool_call-1 {"port": ',
            'TOOL_CALL_ARGS tool_call-1 "Br',
            "TOOL_CALL_ARGS tool_call-1 est",
            'TOOL_CALL_ARGS tool_call-1 "',
            "TOOL_CALL_ARGS tool_call-1 }",
            "TOOL_CALL_END tool_call-1",
        ]
    )


def test_a_call_has_the_models_id_and_a_parent():
    text = '<|tool_call_begin|>functions.tide:0<|tool_call_argument_begin|>{"port": "Brest"}<|tool_call_end|>'
    t = translator("kimi_k2", message_id="m")
    start = next(event for event in t.feed(text) if isinstance(event, ToolCallStart))
    assert (start.tool_call_id, start.tool_call_name, start.parent_message_id) == ("functions.tide:0", "tide", "m")


def test_the_prompt_decides_where_the_output_starts():
    for opened, first in (
        ("<|im_start|>assistant\n<think>\n", "REASONING_START reasoning-1"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "TEXT_MESSAGE_START message-1"),
        ("<|im_start|>assistant\n", "TEXT_MESSAGE_START message-1"),
        (None, "TEXT_MESSAGE_START message-1"),
    ):
        assert said(translator(opened=opened), "High tide.")[0] == first


def test_nothing_is_said_of_the_prompt_unless_asked_for():
    assert said(translator(opened="Hello, "), "world") == [
        "TEXT_MESSAGE_START message-1",
        "TEXT_MESSAGE_CONTENT message-1 world",
        "TEXT_MESSAGE_END message-1",
    ]
    assert said(translator(opened="Hello, ", show_opened=True), "world")[1:-1] == [
        "TEXT_MESSAGE_CONTENT message-1 Hello,",
        "TEXT_MESSAGE_CONTENT message-1  world",
    ]


def test_token_rows_go_with_the_delta_that_carries_their_text():
    t = translator()
    pieces = [("<think>", 1), ("Hm", 2), ("</think>", 3), ("High", 4), (" ", 5), ("tide", 6)]
    events = [event for text, number in pieces for event in t.feed(text, None, [number, text, -0.5, []])] + t.finish()
    rows = {
        event.delta: [row[0] for row in (event.metadata or {})["tokens"]]
        for event in events
        if isinstance(event, TextMessageContent | ReasoningMessageContent)
    }
    assert rows == {"Hm": [1, 2], "High": [3, 4], " tide": [5, 6]}


def test_a_marker_spelled_in_text_is_text_where_it_is_a_token():
    t = translator(marker_ids={"<think>": 7, "</think>": 8, "<tool_call>": 9, "</tool_call>": 10})
    pieces = [("<think>", 7), ("say <think>", None), ("</think>", 8), ("a <tool_call> tag", None)]
    events = [event for text, token in pieces for event in t.feed(text, token)] + t.finish()
    assert "".join(e.delta for e in events if isinstance(e, ReasoningMessageContent)) == "say <think>"
    assert "".join(e.delta for e in events if isinstance(e, TextMessageContent)) == "a <tool_call> tag"


def test_an_engine_may_state_what_is_reasoning():
    t = translator()
    events = (
        t.feed("Hm", is_reasoning=True) + t.feed(" so</think>", is_reasoning=True) + t.feed("High.", is_reasoning=False)
    )
    assert lines(events + t.finish())[2:4] == [
        "REASONING_MESSAGE_CONTENT reasoning-1 Hm",
        "REASONING_MESSAGE_CONTENT reasoning-1  so",
    ]
    assert "TEXT_MESSAGE_CONTENT message-2 High." in lines(events)


def test_how_a_run_ends():
    t = translator()
    t.feed(CALL[:50])
    assert lines(t.finish("length")) == ["TOOL_CALL_END {'incomplete': True} tool_call-1"]
    assert (t.finish_reason("length"), t.finish_reason("stop")) == ("length", "tool_calls")
    assert t.warnings == ["the output ended within a call"]
    assert translator().finish_reason("stop") == "stop"


def test_abort_closes_what_is_open():
    t = translator()
    t.feed("Hi")
    assert lines(t.abort()) == ["TEXT_MESSAGE_END message-1"]


BROKEN = "<tool_call>\nabout Brest\n</tool_call> done"


def test_text_that_is_no_call():
    def content(**settings: Any) -> str:
        t = translator(policy=Policy(tools={"tide": None}, **settings))
        return "".join(e.delta for e in t.feed(BROKEN) + t.finish() if isinstance(e, TextMessageContent))

    assert content() == content(failed="content") == BROKEN
    assert content(failed="text") == "about Brest\n done"
    assert content(failed="drop").strip() == "done"


def test_a_failed_call_ends_a_strict_run():
    t = translator(policy=Policy(tools={"tide": None}, failed="error"))
    events = t.feed("Hi. ") + t.feed(BROKEN) + t.feed("more") + t.finish()
    assert lines(events)[:3] == ["TEXT_MESSAGE_START message-1", "TEXT_MESSAGE_CONTENT message-1 Hi.", "TEXT_MESSAGE_END message-1"]  # fmt: skip
    error = events[-1]
    assert isinstance(error, RunError)
    assert error.code == "tool_call_parse_error"
    assert error.message.startswith("Tool call parsing failed: ")


def test_undeclared_tools():
    def calls(**settings: Any) -> tuple[list[str], str]:
        t = translator(policy=Policy(tools={"ferry": None}, **settings))
        events = t.feed(CALL) + t.finish()
        names = [event.tool_call_name for event in events if isinstance(event, ToolCallStart)]
        return names, "".join(event.delta for event in events if isinstance(event, TextMessageContent))

    assert calls() == calls(undeclared="keep") == (["tide"], "")
    assert calls(undeclared="drop") == ([], "")
    assert calls(undeclared="content") == ([], CALL)


def test_an_id_behind_the_arguments_is_waited_for_or_not():
    text = '[TOOL_CALLS] [{"name": "tide", "arguments": {"port": "Brest"}, "id": "abc123def"}]'
    nemo = named("mistral")
    nemo = msgspec.structs.replace(nemo, tools=msgspec.structs.replace(nemo.tools, json=msgspec.structs.replace(nemo.tools.json, id="id")))  # fmt: skip
    for waits, number in ((True, "abc123def"), (False, "tool_call")):
        t = Translator(nemo, tools=None, opened="", new_id=lambda kind: kind, policy=Policy(wait_for_id=waits))
        events = [event for character in text for event in t.feed(character)] + t.finish()
        assert [event.tool_call_id for event in events if isinstance(event, ToolCallStart)] == [number]
        deltas = [event.delta for event in events if isinstance(event, ToolCallArgs)]
        assert "".join(deltas) == '{"port": "Brest"}'
        assert (len(deltas) == 1) is waits


def test_a_translation_leaves_nothing_to_the_cycle_collector():
    said(translator(), "<think>Brest?</think>", "One", CALL)
    with left_in_cycles() as left:
        said(translator(), "<think>Brest?</think>", "One", CALL)
    assert left == []


def test_special_tokens_are_not_shown_but_spelled_text_is():
    """Qwen2.5's ids: small models write `<|im_start|>`, which is no marker of the format's, within answers."""
    translator = Translator(
        named("hermes"),
        tools=[],
        opened="",
        new_id=lambda kind: kind,
        marker_ids={"<|im_end|>": 151645},
        hidden={151644: "<|im_start|>", 151645: "<|im_end|>"},
    )
    tokens = [("Hello", 9707), ("<|im_start|>", 151644), (" you", 498), ("<|im_end|>", 151645), ("<|im_start|>", None)]
    assert not translator.is_plain("<|im_start|>", [151644])
    events = [event for text, number in tokens for event in translator.feed(text, number)] + translator.finish()
    assert "".join(event.delta for event in events if isinstance(event, TextMessageContent)) == "Hello you<|im_start|>"


PORTS = [CALL, CALL.replace("Brest", "Nice"), CALL.replace('{"port": "Brest"}', '{ "port":"Brest" }')]


@pytest.mark.parametrize("pieces", [PORTS, list("".join(PORTS))])
def test_where_calls_must_differ_the_first_repetition_ends_the_output(pieces: list[str]):
    t = translator(policy=Policy(tools={"tide": {"type": "object"}}, distinct=True))
    events = [event for piece in pieces for event in t.feed(piece)]
    assert t.ended and t.feed(CALL.replace("Brest", "Cork")) == []
    events += t.finish()
    started = [event for event in events if isinstance(event, ToolCallStart)]
    arguments = "".join(event.delta for event in events if isinstance(event, ToolCallArgs))
    assert (len(started), arguments) == (2, '{"port": "Brest"}{"port": "Nice"}')
    assert t.finish_reason("stop") == "tool_calls"


def test_a_call_that_is_cut_off_is_no_repetition():
    t = translator(policy=Policy(tools={"tide": {"type": "object"}}, distinct=True))
    events = [*t.feed(CALL), *t.feed(CALL[:50]), *t.finish("length")]
    assert sum(isinstance(event, ToolCallStart) for event in events) == 2 and not t.ended


def test_arguments_that_the_schema_does_not_declare_make_no_other_call():
    schema = {"type": "object", "properties": {"port": {"type": "string"}}}
    t = translator(policy=Policy(tools={"tide": schema}, distinct=True))
    # As Qwen2.5-Coder 0.5B goes on where a call is required.
    again = CALL.replace('"Brest"', '"Brest", "required": ["port"]')
    events = [*t.feed(CALL), *t.feed(again), *t.finish()]
    assert sum(isinstance(event, ToolCallStart) for event in events) == 1 and t.ended


def test_where_calls_must_differ_their_number_is_bounded():
    t = translator(policy=Policy(tools={"tide": {"type": "object"}}, distinct=True))
    events = [event for number in range(40) for event in t.feed(CALL.replace('"Brest"', str(number)))] + t.finish()
    assert sum(isinstance(event, ToolCallStart) for event in events) == MOST_CALLS and t.ended
