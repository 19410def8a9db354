"""Render calls for comparison in the tool phases, and find JSON objects in the renderings."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from events.formats.output_format import Content
from events.template import probe as words
from events.template.environment import Message
from events.template.probe import Arguments, Probe
from events.template.reasoning import ReasoningAnalysis
from events.template.turn_frame import TurnFrame

_DECODER = json.JSONDecoder()


class CallRenderer(msgspec.Struct):
    """Renders assistant messages with calls and returns their text without header, reasoning, markers of the text
    before the calls, and end of turn."""

    probe: Probe
    turn: TurnFrame
    reasoning: ReasoningAnalysis
    content: Content
    declared: bool = False  # whether calls only render when tools are declared

    def render(self, *calls: Message) -> str | None:
        """Return the assistant's text for these calls, or None if the template refuses them."""
        message = words.calling(list(calls), self.probe.capabilities.call_content)
        text = self.probe.render([words.user(), message], tools=self.declared)
        if text is None:
            return None
        text = self.turn.assistant_text(text)
        if self.content.wrapped == "with_calls":
            text = text.replace(self.content.start[0] + self.content.end[0], "", 1)
        # Remove an empty block of reasoning before the calls (`<think>\n\n</think>\n\n`).
        end = self.reasoning.end.strip()
        head = text[: text.find(words.FUNCTION)] if words.FUNCTION in text else text
        if not end or end not in head:
            return text
        rest = text[head.find(end) + len(end) :]
        behind = self.reasoning.end[self.reasoning.end.find(end) + len(end) :]
        return rest.removeprefix(behind)

    def one(self, arguments: Mapping[str, Any], name: str = words.FUNCTION) -> str | None:
        return self.render(self.call(name, arguments))

    def two(self, first: Mapping[str, object], second: Mapping[str, object]) -> str | None:
        if not self.probe.capabilities.parallel_calls:
            return None
        text = self.render(self.call(words.FUNCTION, first), self.call(words.FUNCTION_TWO, second, second=True))
        both = text is not None and words.FUNCTION in text and words.FUNCTION_TWO in text
        return text.replace(words.CALL_ID_TWO, words.CALL_ID) if text is not None and both else None

    def call(self, name: str, arguments: Mapping[str, Any], second: bool = False) -> Message:
        call_id = words.CALL_ID_TWO if second else words.CALL_ID
        if self.probe.capabilities.id_is_name:
            call_id = f"functions.{name}:{int(second)}"  # Kimi K2 writes nothing but the id
        return words.call(name, arguments, call_id, self.style)

    @property
    def style(self) -> Arguments:
        return self.probe.capabilities.arguments


class JsonSpan(msgspec.Struct, frozen=True):
    """A JSON object or Python literal in a text: text[start:end] is its spelling."""

    start: int
    end: int
    value: dict[str, Any]
    python: bool = False


def find_object(text: str, *needles: str) -> list[JsonSpan]:
    """Return all objects in the text that contain every needle, outermost first."""
    spans: list[JsonSpan] = []
    for position, character in enumerate(text):
        if character != "{":
            continue
        try:
            value, end = _DECODER.raw_decode(text, position)
            span = JsonSpan(position, end, value) if isinstance(value, dict) else None
        except ValueError:
            span = _literal_at(text, position)
        if span is not None:
            spelled = json.dumps(span.value, ensure_ascii=False)
            if all(needle in spelled for needle in needles):
                spans.append(span)
    return spans


def _literal_at(text: str, position: int) -> JsonSpan | None:
    """Return a Python dict display. The probe's values do not contain braces, so counting them finds its end."""
    depth = 0
    for index in range(position, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            try:
                value = ast.literal_eval(text[position : index + 1])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                return None
            return JsonSpan(position, index + 1, value, python=True) if isinstance(value, dict) else None
    return None
