"""The events of an Agno run (`arun(stream=True, stream_events=True)`) as AG-UI events.

Translated here and not by Agno's own AG-UI interface, which leaves out a model's reasoning, begins a text where there
is none, and quotes results.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pydantic_core
from agno.models.response import ToolExecution
from agno.reasoning.step import ReasoningStep

from events.vocabulary import (
    Custom,
    Event,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)


class AgnoStream:
    """Reads one run's events: an agent's, and under the same names with "Team" before them a team's. At most one of
    text and reasoning is open. `state` and `usage` are what the run ended with."""

    def __init__(self) -> None:
        self._text = ""
        self._reasoning = ""
        self._told: set[str] = set()
        self.state: dict[str, object] | None = None
        self.usage: list[TokenUsage] = []

    def read(self, event: Any) -> Iterator[Event]:
        match str(event.event).removeprefix("Team"):
            case "RunContent" | "RunIntermediateContent":
                yield from self._reason(event.reasoning_content)
                yield from self._say(event.content)
            case "ReasoningContentDelta":
                yield from self._reason(event.reasoning_content)
            case "ReasoningStep":
                yield from self._reason(_step(event.content))
            case "ToolCallStarted":
                yield from self.call(event.tool)
            case "ToolCallCompleted" if event.tool is not None:
                yield from self.call(event.tool)
                yield _result(event.tool)
            case "CustomEvent":
                value = pydantic_core.to_jsonable_python(event.to_dict(), serialize_unknown=True)
                yield Custom(name=type(event).__name__, value=value)
            case "RunCompleted":
                self._end(event)
            case _:
                pass

    def call(self, tool: ToolExecution | None) -> Iterator[Event]:
        """A call, unless it was told."""
        if tool is None or not tool.tool_call_id or tool.tool_call_id in self._told:
            return
        id = tool.tool_call_id
        self._told.add(id)
        yield from self.close()
        yield ToolCallStart(tool_call_id=id, tool_call_name=tool.tool_name or "")
        yield ToolCallArgs(tool_call_id=id, delta=pydantic_core.to_json(tool.tool_args or {}).decode())
        yield ToolCallEnd(tool_call_id=id)

    def close(self) -> Iterator[Event]:
        if self._text:
            yield TextMessageEnd(message_id=self._text)
        if self._reasoning:
            yield ReasoningMessageEnd(message_id=self._reasoning)
            yield ReasoningEnd(message_id=self._reasoning)
        self._text = self._reasoning = ""

    def _say(self, content: object) -> Iterator[Event]:
        if content is None or content == "":
            return
        if not self._text:
            yield from self.close()
            self._text = str(uuid.uuid4())
            yield TextMessageStart(message_id=self._text, role="assistant")
        yield TextMessageContent(message_id=self._text, delta=_text(content))

    def _reason(self, text: object) -> Iterator[Event]:
        if not isinstance(text, str) or not text:
            return
        if not self._reasoning:
            yield from self.close()
            self._reasoning = str(uuid.uuid4())
            yield ReasoningStart(message_id=self._reasoning)
            yield ReasoningMessageStart(message_id=self._reasoning, role="reasoning")
        yield ReasoningMessageContent(message_id=self._reasoning, delta=text)

    def _end(self, event: Any) -> None:
        if isinstance(event.session_state, dict):
            self.state = event.session_state
        metrics = event.metrics
        if metrics is None or not metrics.total_tokens:
            return
        models = [each.id for kind in (metrics.details or {}).values() for each in kind]
        self.usage = [
            TokenUsage(
                model=models[0] if len(models) == 1 else None,
                input_tokens=metrics.input_tokens,
                output_tokens=metrics.output_tokens,
                total_tokens=metrics.total_tokens,
            )
        ]


def _result(tool: ToolExecution) -> ToolCallResult:
    """A call's result. Agno has it as text already; an object has become Python's own notation of it there."""
    return ToolCallResult(message_id=str(uuid.uuid4()), tool_call_id=tool.tool_call_id or "", content=tool.result or "")


def _text(content: object) -> str:
    """Content that is an object (an agent with an output schema) as JSON."""
    return content if isinstance(content, str) else pydantic_core.to_json(content, serialize_unknown=True).decode()


def _step(step: object) -> str:
    if not isinstance(step, ReasoningStep):
        return ""
    said = (step.title, step.reasoning, step.action, step.result)
    return "\n".join(each for each in said if each) + "\n\n"
