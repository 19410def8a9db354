"""One run's events folded into the one answer that request-and-response wires speak of.

A run may hold several messages and calls of the server's own tools; these wires know a single assistant message, so
its text is the texts in order, and calls that the server answered itself are left out. Events of subagents are the
subagents' own and are left out too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from adapters.openai_tokens import TokenDetail, tokens_of
from events.vocabulary import (
    CancelledOutcome,
    Event,
    Interrupt,
    InterruptOutcome,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    SuccessOutcome,
    TextMessageContent,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)


class Call(msgspec.Struct):
    """A tool call for the client. `arguments` is the JSON text as generated."""

    id: str
    name: str
    arguments: str = ""


class Answer(msgspec.Struct):
    """finish: "stop", "length", "tool_calls", "cancelled" or "error". reasoning_chunks, call_chunks: as they came.
    tokens: details of every token in order; text_tokens, reasoning_tokens and call_tokens are its
    parts."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = []
    finish: str = "stop"
    error: RunError | None = None
    usage: list[TokenUsage] = []
    stop: str | int | None = None
    warnings: list[str] = []
    timings: dict[str, Any] = {}
    interrupts: list[Interrupt] = []
    encrypted_reasoning: str | None = None
    reasoning_chunks: list[str] = []
    call_chunks: list[dict[str, Any]] = []
    tokens: list[TokenDetail] = []
    text_tokens: list[TokenDetail] = []
    reasoning_tokens: list[TokenDetail] = []
    call_tokens: list[TokenDetail] = []
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[TokenDetail | None] | None = None


def finish_reason(event: RunFinished) -> str:
    """ "stop", "length", "tool_calls" or "cancelled": what the run says, else what its outcome implies."""
    if isinstance(event.outcome, CancelledOutcome):
        return "cancelled"
    stated = (event.metadata or {}).get("finishReason")
    if isinstance(stated, str):
        return stated
    pending = event.outcome.pending_tool_call_ids if isinstance(event.outcome, SuccessOutcome) else None
    return "tool_calls" if pending else "stop"


def fold(events: Iterable[Event], *, hidden_tools: Collection[str] = ()) -> Answer:
    """`hidden_tools` are the names of tools that the server runs itself."""
    answer = Answer()
    text: list[str] = []
    arguments: dict[str, list[str]] = {}
    for event in events:
        if getattr(event, "subagent_run_id", None) is not None:
            continue
        match event:
            case TextMessageContent(delta=delta, metadata=metadata):
                text.append(delta)
                _take_tokens(answer, metadata, answer.text_tokens)
            case ReasoningMessageContent(delta=delta, metadata=metadata):
                if delta:
                    answer.reasoning_chunks.append(delta)
                _take_tokens(answer, metadata, answer.reasoning_tokens)
            case ToolCallStart(tool_call_id=call, tool_call_name=name, metadata=metadata):
                if name not in hidden_tools:
                    arguments[call] = []
                    answer.calls.append(Call(call, name))
                    answer.call_chunks.append({"type": "start", "tool_call_id": call, "tool_name": name})
                _take_tokens(answer, metadata, answer.call_tokens)
            case ToolCallArgs(tool_call_id=call, delta=delta, metadata=metadata):
                if call in arguments and delta:
                    arguments[call].append(delta)
                    answer.call_chunks.append({"type": "args", "tool_call_id": call, "delta": delta})
                _take_tokens(answer, metadata, answer.call_tokens)
            case ToolCallEnd(tool_call_id=call):
                if call in arguments:
                    answer.call_chunks.append({"type": "end", "tool_call_id": call})
            case ReasoningEncryptedValue(subtype="message", encrypted_value=value):
                answer.encrypted_reasoning = value
            case RunFinished() | RunError():
                _end(answer, event)
            case _:
                pass
    answer.text = "".join(text)
    answer.reasoning = "".join(answer.reasoning_chunks)
    for entry in answer.calls:
        entry.arguments = "".join(arguments[entry.id])
    return answer


def _take_tokens(answer: Answer, metadata: dict[str, Any] | None, kind: list[TokenDetail]) -> None:
    if tokens := tokens_of(metadata):
        answer.tokens.extend(tokens)
        kind.extend(tokens)


def _end(answer: Answer, event: RunFinished | RunError) -> None:
    answer.usage = event.usage or []
    metadata = event.metadata or {}
    answer.warnings = metadata.get("warnings") or []
    answer.timings = metadata.get("timings") or {}
    if isinstance(event, RunError):
        answer.error = event
        answer.finish = "error"
        return
    answer.finish = finish_reason(event)
    answer.stop = metadata.get("stop")
    answer.prompt_logprobs = metadata.get("promptLogprobs")
    answer.prompt_token_ids = metadata.get("promptTokenIds")
    if isinstance(event.outcome, InterruptOutcome):
        answer.interrupts = event.outcome.interrupts
