"""Adaptive delivery: reasoning by sentence, arguments at JSON boundaries, content at once; the same text in all."""

from __future__ import annotations

import itertools
from typing import Literal

from events.formats.registry import named
from events.translator import Translator
from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs

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
    assert deltas(events, ToolCallArgs) == ['{"ab":', ' "', 'cd"', ', "', 'n"', ":", " 12}"]
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
    def rows(events: list[Event]) -> list[int]:
        return [row[0] for event in events for row in ((event.metadata or {}).get("tokens") or [])]

    assert rows(run("adaptive")) == rows(run("immediate"))
