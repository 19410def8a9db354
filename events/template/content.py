"""Phase 2 (C1): whether content is wrapped in markers."""

from __future__ import annotations

import re
from typing import Any

from events.formats.output_format import Content
from events.template import probe as words
from events.template.difference import is_marker, segments
from events.template.probe import Probe
from events.template.reasoning import ReasoningAnalysis, closing_of, opening_of
from events.template.turn_frame import TurnFrame

_ANSWER_WORD = re.compile(r"respon|answer|final|solution|output", re.IGNORECASE)


def analyse_content(probe: Probe, turn: TurnFrame, reasoning: ReasoningAnalysis, on: dict[str, Any]) -> Content:
    """Find the markers around a plain answer, or those that appear only after reasoning, or only around the text before
    calls (Llama 4), or those that the system text requests (Granite 3.3)."""
    text = probe.render([words.user(), words.assistant()])
    if text is not None and (marks := _wrapping(turn, text, reasoning)):
        return Content(start=(marks[0],), end=(marks[1],) if marks[1] else ())
    if field := probe.capabilities.reasoning_field:
        text = probe.render([words.user(), words.with_reasoning(words.assistant(), field)], **on)
        if text is not None and words.REASONING in text and (marks := _wrapping(turn, text, reasoning)):
            return Content(start=(marks[0],), end=(marks[1],) if marks[1] else (), wrapped="with_reasoning")
    if probe.capabilities.text_with_calls and (marks := _wrapping_before_calls(probe, turn)):
        return Content(start=(marks[0],), end=(marks[1],), wrapped="with_calls")
    if reasoning.source.startswith("the system text"):
        text = probe.render([words.user()], prompt=True, **on) or ""
        requested = [part for part in segments(text[: text.rfind(words.USER)]) if is_marker(part)]
        for end in requested:
            start = opening_of(end)
            if start and start in requested and _ANSWER_WORD.search(end):
                return Content(start=(start,), end=(end,), wrapped="with_reasoning")
    return Content()


def _wrapping(turn: TurnFrame, text: str, reasoning: ReasoningAnalysis) -> tuple[str, str] | None:
    message = turn.assistant_text(text)
    if words.CONTENT not in message:
        return None
    before, after = message.split(words.CONTENT, 1)
    for mark in (reasoning.end.strip(), reasoning.start.strip()):  # a start too: some templates open it in old answers
        if mark and mark in before:
            before = before[before.rfind(mark) + len(mark) :]
    if before.strip() and any(is_marker(part) for part in segments(before)):
        return before.lstrip(), after.rstrip()
    return None


def _wrapping_before_calls(probe: Probe, turn: TurnFrame) -> tuple[str, str] | None:
    """Return the pair of markers that encloses the text before a call and that the template writes even if there is no
    text. Without text, such a pair looks like the opener of calls."""
    shape = probe.capabilities
    if not shape.tool_calls:
        return None
    call = words.call(words.FUNCTION, {words.ARGUMENT: words.VALUE}, style=shape.arguments)
    message = words.calling([call], shape.call_content)
    with_text = probe.render([words.user(), {**message, "content": words.CONTENT}], tools=True)
    without = probe.render([words.user(), message], tools=True)
    if with_text is None or without is None:
        return None
    before, text, behind = turn.assistant_text(with_text).partition(words.CONTENT)
    starts = [part for part in segments(before) if is_marker(part)]
    ends = [part for part in segments(behind.partition(words.FUNCTION)[0]) if is_marker(part)]
    if not (text and starts and ends and starts[-1] + ends[0] in without):
        return None
    return (starts[-1], ends[0]) if closing_of(starts[-1], ends[0]) == ends[0] else None
