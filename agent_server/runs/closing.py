"""What a run has open, so that it can be closed before a terminal event whatever went wrong.

AG-UI 1.0: RUN_FINISHED with anything open is fatal in the client; RUN_ERROR may leave things open, a good server does
not. Kept up to date per event (one dictionary look-up), because the log may already have dropped the START.
"""

from __future__ import annotations

from collections.abc import Callable

from events.vocabulary import (
    Event,
    ReasoningEnd,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    StepFinished,
    StepStarted,
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    TextMessageEnd,
    TextMessageStart,
    ToolCallEnd,
    ToolCallStart,
)

# START type → (attribute that identifies the item, its kind); END type → the same
_STARTS: dict[type, tuple[str, str]] = {
    TextMessageStart: ("message_id", "text"),
    ToolCallStart: ("tool_call_id", "tool"),
    ReasoningMessageStart: ("message_id", "reasoning"),
    ReasoningStart: ("message_id", "span"),
    StepStarted: ("step_name", "step"),
    SubagentStarted: ("subagent_run_id", "subagent"),
}
_ENDS: dict[type, tuple[str, str]] = {
    TextMessageEnd: ("message_id", "text"),
    ToolCallEnd: ("tool_call_id", "tool"),
    ReasoningMessageEnd: ("message_id", "reasoning"),
    ReasoningEnd: ("message_id", "span"),
    StepFinished: ("step_name", "step"),
    SubagentFinished: ("subagent_run_id", "subagent"),
    SubagentError: ("subagent_run_id", "subagent"),
}
_CLOSERS: dict[str, Callable[[str, str | None], Event]] = {
    "text": lambda id, sub: TextMessageEnd(message_id=id, subagent_run_id=sub),
    "tool": lambda id, sub: ToolCallEnd(tool_call_id=id, subagent_run_id=sub),
    "reasoning": lambda id, sub: ReasoningMessageEnd(message_id=id, subagent_run_id=sub),
    "span": lambda id, sub: ReasoningEnd(message_id=id, subagent_run_id=sub),
    "step": lambda id, sub: StepFinished(step_name=id, subagent_run_id=sub),
    "subagent": lambda id, _: SubagentError(subagent_run_id=id, message="The run ended before this subagent did."),
}


class OpenItems:
    """The items that were started and not ended, innermost last."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], str | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def see(self, event: Event) -> None:
        kind = type(event)
        if (start := _STARTS.get(kind)) is not None:
            subagent = None if start[1] == "subagent" else getattr(event, "subagent_run_id", None)
            self._open[start[1], getattr(event, start[0])] = subagent
        elif (end := _ENDS.get(kind)) is not None:
            self._open.pop((end[1], getattr(event, end[0])), None)

    def closing(self) -> list[Event]:
        """The ENDs of everything open, innermost first."""
        return [_CLOSERS[kind](id, subagent) for (kind, id), subagent in reversed(self._open.items())]
