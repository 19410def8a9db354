"""Adaptive delivery: reasoning by sentence, arguments at JSON boundaries, content at once; the same text in all."""

from __future__ import annotations

import itertools
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

from events.delivery import joined
from events.formats.registry import named
from events.message import Folder
from events.translator import Translator
from events.vocabulary import (
    Custom,
    Event,
    ReasoningMessageContent,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
)

TEXT = '<think>First. Then\nmore, and more.</think>Ab cd.<tool_call>\n{"name": "f", "arguments": {"ab": "cd", "n": 12}}\n</tool_call>'


def run(policy: Literal["immediate", "adaptive"]) -> list[Event]:
    counter = itertools.count()
    t = Translator(
        named("hermes"), tools=None, opened="", new_id=lambda kind: f"{kind}{next(counter)}", delivery=policy
    )
    pieces = [(character, [number, character, None, []]) for number, character in enumerate(TEXT)]
    return [event for text, row in pieces for event in t.feed(text, None, row)] + t.finish()


def deltas(events: list[Event], kind: type) -> list[str]:
    return [event.delta for event in events if isinstance(event, kind)]  # type: ignore[attr-defined]


def test_reasoning_comes_by_sentence_and_arguments_at_boundaries():
    events = run("adaptive")
    assert deltas(events, ReasoningMessageContent) == ["First. ", "Then\n", "more, and more."]
    assert deltas(events, ToolCallArgs) == ['{"', 'ab"', ":", ' "', 'cd", "n":', " 12}"]
    assert deltas(events, TextMessageContent) == ["A", "b", " c", "d", "."]


def test_both_say_the_same_in_the_same_order():
    now, later = run("immediate"), run("adaptive")
    for kind in (ReasoningMessageContent, TextMessageContent, ToolCallArgs):
        assert "".join(deltas(now, kind)) == "".join(deltas(later, kind))
    order = [type(event).__name__ for event in now]
    assert [name for name, _ in itertools.groupby(order)] == [
        name for name, _ in itertools.groupby(type(event).__name__ for event in later)
    ]


def test_no_token_row_is_lost():
    assert rows(run("adaptive")) == rows(run("immediate"))


def test_what_came_together_is_said_together():
    parts = [
        TextMessageStart(message_id="m", role="assistant"),
        TextMessageContent(message_id="m", delta="a"),
        TextMessageContent(message_id="m", delta="b", metadata={"tokens": [[1, "b", None, []]]}),
        TextMessageContent(message_id="m", delta="", metadata={"tokens": [[2, "", None, []]]}),
        TextMessageContent(message_id="n", delta="c"),
        ToolCallArgs(tool_call_id="n", delta="{"),
        ToolCallArgs(tool_call_id="n", delta="}"),
        TextMessageContent(message_id="n", delta="d"),
        TextMessageContent(message_id="n", delta="e", subagent_run_id="s"),
    ]
    assert joined(parts) == [
        TextMessageStart(message_id="m", role="assistant"),
        TextMessageContent(message_id="m", delta="ab", metadata={"tokens": [[1, "b", None, []], [2, "", None, []]]}),
        TextMessageContent(message_id="n", delta="c"),
        ToolCallArgs(tool_call_id="n", delta="{}"),
        TextMessageContent(message_id="n", delta="d"),
        TextMessageContent(message_id="n", delta="e", subagent_run_id="s"),
    ]


def test_equal_events_that_are_no_deltas_stay_apart():
    custom = Custom(name="n", value=1)
    assert joined([custom, custom, Custom(name="n", value=1)]) == [custom] * 3


@given(st.lists(st.integers(1, 7), max_size=60))
def test_joining_any_neighbours_changes_nothing_but_the_cut(sizes: list[int]):
    events, told, start = run("immediate"), [], 0
    for size in sizes:
        told += joined(events[start : start + size])
        start += size
    told += joined(events[start:])
    assert joined(told) == joined(events)
    plain, together = Folder(), Folder()
    for event in events:
        plain.add(event)
    for event in told:
        together.add(event)
    assert without_rows(together.messages) == without_rows(plain.messages)
    assert rows(told) == rows(events)


def rows(events: list[Event]) -> list[int]:
    return [row[0] for event in events for row in ((event.metadata or {}).get("tokens") or [])]


def without_rows(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bare = [{key: value for key, value in message.items() if key != "metadata"} for message in messages]
    for message in bare:
        calls = message.get("toolCalls") or []
        message["toolCalls"] = [{k: v for k, v in call.items() if k != "metadata"} for call in calls]
    return bare
