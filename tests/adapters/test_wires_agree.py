"""One run through every wire says the same, and what is streamed equals what is sent whole."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.anthropic_messages import input_object
from adapters.errors import RequestError
from events.formats.registry import named
from events.lifecycle import Verifier
from events.translator import Translator
from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    ReasoningStart,
    RunStarted,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallStart,
)
from tests.adapters import recorded
from tests.adapters.wires import STREAMED, WHOLE, Heard, generate_streamed
from tests.formats.shared import MISSING, cases

FORMAT_CASES = cases("format-cases.jsonl")

PIECES = st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=4)
NAMES = st.sampled_from(["get_weather", "now", "caf\u00e9"])
ARGUMENTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=5), max_size=3)


@st.composite
def items(draw: st.DrawFn, index: int) -> list[Event]:
    """One item of a run, whole: reasoning, text or a call."""
    match draw(st.sampled_from(["reasoning", "text", "call"])):
        case "reasoning":
            return recorded.reasoning(*draw(PIECES), id=f"rs{index}")
        case "text":
            return recorded.text(*draw(PIECES), id=f"m{index}")
        case _:
            written = json.dumps(draw(ARGUMENTS))
            cut = draw(st.integers(0, len(written)))
            return recorded.call(draw(NAMES), written[:cut], written[cut:], id=f"call_{index}", parent="m0")


@st.composite
def overlapping(draw: st.DrawFn, parts: Sequence[list[Event]]) -> list[Event]:
    """The events of several items, each in its own order, mixed. Messages of one kind follow each other: wires with one
    answer have no order for texts that are written at the same time."""
    texts = [event for part in parts if isinstance(part[0], TextMessageStart) for event in part]
    thoughts = [event for part in parts if isinstance(part[0], ReasoningStart) for event in part]
    calls = [list(part) for part in parts if isinstance(part[0], ToolCallStart)]
    waiting = [part for part in (texts, thoughts, *calls) if part]
    mixed: list[Event] = []
    while waiting:
        chosen = draw(st.integers(0, len(waiting) - 1))
        mixed.append(waiting[chosen].pop(0))
        waiting = [part for part in waiting if part]
    return mixed


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    parts = [draw(items(index)) for index in range(draw(st.integers(0, 5)))]
    middle = draw(overlapping(parts)) if draw(st.booleans()) else [event for part in parts for event in part]
    called = any(isinstance(event, ToolCallArgs) for event in middle)
    reason = draw(st.sampled_from(["tool_calls" if called else "stop", "length", "cancelled"]))
    return [*recorded.started(), *middle, *recorded.finished(reason)]


def said(run: Sequence[Event], kind: type[Event]) -> str:
    return "".join(event.delta for event in run if isinstance(event, kind))  # type: ignore[attr-defined]


def comparable(heard: Heard) -> Heard:
    """Anthropic sends a call's arguments as an object: compare what they say."""
    calls = tuple((call[0], call[1], json.dumps(input_object(call[2]))) for call in heard.calls)
    return heard._replace(calls=calls)


@settings(max_examples=150, deadline=None)
@given(runs())
def test_streamed_equals_whole_and_all_wires_agree(run: list[Event]) -> None:
    verifier = Verifier(strict=True)
    for event in run:
        verifier.check(event)
    heard = {name: comparable(read(run)) for name, read in STREAMED.items()}
    heard |= {f"{name}, whole": comparable(read(run)) for name, read in WHOLE.items()}
    expected = heard["chat"]
    assert expected.text == said(run, TextMessageContent)
    assert expected.reasoning == said(run, ReasoningMessageContent)
    differing = {name: answer for name, answer in heard.items() if answer != expected}
    assert not differing, expected


def all_agree(run: Sequence[Event]) -> None:
    expected = comparable(STREAMED["chat"](run))
    for name, read in (*STREAMED.items(), *WHOLE.items()):
        assert comparable(read(run)) == expected, name


OWN_CASES = [
    ("hermes", [], "<think>hm</think>Hi there"),
    ("hermes", [], "no markup at all\n\n"),
    ("hermes", ["f"], 'Let me.\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "x"]}}\n</tool_call>'),
    ("hermes", ["f"], '<tool_call>\n{"name": "f", "arguments": {"a": '),
    ("hermes", ["f", "g"], '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g"}</tool_call>'),
]


@pytest.mark.parametrize(("family", "names", "text"), OWN_CASES)
def test_own_outputs_in_every_wire(family: str, names: list[str], text: str) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
    all_agree(run_of(family, tools, text))


@pytest.mark.skipif(not FORMAT_CASES, reason=MISSING)
@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in FORMAT_CASES])
def test_outputs_of_every_family_in_every_wire(case: dict[str, Any]) -> None:
    all_agree(run_of(case["family"], case["tools"], case["text"], case["prefix"]))


def run_of(family: str, tools: list[Any] | None, text: str, opened: str | None = None) -> list[Event]:
    """A model's output, character by character, as a run."""
    counter = itertools.count(1)
    translator = Translator(
        named(family), tools=tools, opened=opened, new_id=lambda kind: f"{kind}_{next(counter)}", policy=None
    )
    made = [event for character in text for event in translator.feed(character)] + translator.finish()
    return [*recorded.started(), *made, *recorded.finished(translator.finish_reason("stop"))]


@pytest.mark.parametrize("name", sorted(STREAMED))
def test_one_recorded_run_in_every_wire(name: str) -> None:
    calls = (("call_1", "get_weather", '{"city": "Oslo"}'), ("call_2", "now", "{}"))
    expected = Heard("Let me look.", "I think", calls, "tool_calls", (20, 9, 16))
    assert STREAMED[name](recorded.FULL) == expected
    if name in WHOLE:
        assert comparable(WHOLE[name](recorded.FULL)) == expected


@pytest.mark.parametrize("name", sorted(set(STREAMED) - {"generate"}))
def test_a_failure_in_every_wire(name: str) -> None:
    heard = STREAMED[name](recorded.BROKEN)
    assert (heard.text, heard.end) == ("Once", "error")
    if name in set(WHOLE) - {"responses"}:
        with pytest.raises(RequestError):
            WHOLE[name](recorded.BROKEN)


def test_a_text_that_goes_on_behind_a_call() -> None:
    """The translator reopens the assistant's message behind a call: the same id twice in one run."""
    events = [
        *recorded.started(),
        *recorded.text("a"),
        *recorded.call("now", "{}"),
        *recorded.text("b"),
        *recorded.finished("tool_calls"),
    ]
    assert isinstance(events[0], RunStarted)
    for read in (*STREAMED.values(), *WHOLE.values()):
        assert read(events).text == "ab"
    assert generate_streamed(events).calls == (("call_1", "now", "{}"),)
