"""Runs as event lists, for the tests of every wire."""

from __future__ import annotations

from events.vocabulary import (
    CancelledOutcome,
    Event,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    RunStarted,
    SuccessOutcome,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)

USAGE = [
    TokenUsage(model="m", input_tokens=20, output_tokens=9, total_tokens=29, reasoning_tokens=4, cached_input_tokens=16)
]
STARTED = RunStarted(thread_id="t", run_id="r")


def started() -> list[Event]:
    return [STARTED]


def reasoning(*pieces: str, id: str = "rs1") -> list[Event]:
    return [
        ReasoningStart(message_id=id),
        ReasoningMessageStart(message_id=id, role="reasoning"),
        *[ReasoningMessageContent(message_id=id, delta=piece) for piece in pieces],
        ReasoningMessageEnd(message_id=id),
        ReasoningEnd(message_id=id),
    ]


def text(*pieces: str, id: str = "m1") -> list[Event]:
    return [
        TextMessageStart(message_id=id, role="assistant"),
        *[TextMessageContent(message_id=id, delta=piece) for piece in pieces],
        TextMessageEnd(message_id=id),
    ]


def call(name: str, *pieces: str, id: str = "call_1", parent: str = "m1") -> list[Event]:
    return [
        ToolCallStart(tool_call_id=id, tool_call_name=name, parent_message_id=parent),
        *[ToolCallArgs(tool_call_id=id, delta=piece) for piece in pieces],
        ToolCallEnd(tool_call_id=id),
    ]


def finished(reason: str = "stop", *, pending: list[str] | None = None, **metadata: object) -> list[Event]:
    outcome = CancelledOutcome() if reason == "cancelled" else SuccessOutcome(pending_tool_call_ids=pending)
    return [
        RunFinished(
            thread_id="t", run_id="r", outcome=outcome, usage=USAGE, metadata={"finishReason": reason, **metadata}
        )
    ]


def failed(code: str = "internal", message: str = "It broke.", **metadata: object) -> list[Event]:
    return [RunError(message=message, code=code, metadata={"retryable": False, **metadata})]


PLAIN = started() + text("Hel", "lo \u00e9\n") + finished()
FULL = (
    started()
    + reasoning("I ", "think")
    + text("Let me ", "look.")
    + call("get_weather", '{"city":', ' "Oslo"}')
    + call("now", "{}", id="call_2")
    + finished("tool_calls", pending=["call_1", "call_2"])
)
CUT = started() + text("Once upon") + finished("length")
BROKEN = started() + text("Once") + failed("connection", "The engine was lost.")
CANCELLED = started() + text("Once") + finished("cancelled")
EMPTY = started() + finished()
