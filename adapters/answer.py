"""Fold a run's events into the single answer that request-and-response wires return.

A run may contain several messages and calls of server-side tools, but these wires have a single assistant message. Its
text is the concatenation of all texts; calls that the server answered itself and events of subagents are omitted.
`events.message` does the folding; this module also collects the deltas and tokens that it discards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from adapters.errors import KINDS, ErrorKind, RequestError
from events.message import fold as fold_messages
from events.metadata import (
    CUT,
    FinishedMetadata,
    Scored,
    error_metadata,
    finished_metadata,
    is_cut,
    tokens_of,
    visible_tokens,
)
from events.run_output import FinishedCall
from events.sampling import PARAMETERS, Wire, names_on
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


class PromptNote(msgspec.Struct, frozen=True, kw_only=True):
    """The length of a run's first prompt, available before the first token. ids: if the request asks for them."""

    tokens: int
    ids: tuple[int, ...] | None = None


FIELDS: Mapping[Wire, Mapping[str, str]] = {
    "chat": {"prompt": "messages"},
    "completions": {"messages": "prompt"},
    "responses": {"resume": "input", "messages": "input", "prompt": "input", "response_format": "text.format"},
    "messages": {"prompt": "messages", "response_format": "output_config.format"},
}
"""A run's name for a field → the wire's name, where they differ. Sampling parameters have a table of their own."""
PromptOf = Callable[[], PromptNote | None]
"""Returns a run's prompt; None until it is rendered."""


def unknown_prompt() -> None:
    """The `PromptOf` of a run whose prompt is not available."""
    return None


class Pieces(msgspec.Struct):
    """The deltas of an answer. tokens: details of every token in order; the three lists below divide it by kind."""

    reasoning: list[str] = []
    calls: list[dict[str, object]] = []
    tokens: list[Scored] = []
    text_tokens: list[Scored] = []
    reasoning_tokens: list[Scored] = []
    call_tokens: list[Scored] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """finish: "stop", "length", "tool_calls", "content_filter", "cancelled" or "error". calls: those that the client
    has to answer."""

    text: str
    reasoning: str
    calls: Sequence[FinishedCall]
    finish: str
    error: RunError | None
    usage: Sequence[TokenUsage]
    interrupts: Sequence[Interrupt]
    encrypted_reasoning: str | None
    pieces: Pieces
    metadata: FinishedMetadata

    @property
    def stop(self) -> str | int | None:
        """The stop string or token that matched."""
        return self.metadata.stop

    @property
    def warnings(self) -> Sequence[str]:
        return self.metadata.warnings or ()


def warning_extension(warnings: Sequence[str] | None) -> dict[str, object]:
    """Return `extensions.warnings`, for wires that have no field for warnings."""
    return {"extensions": {"warnings": list(warnings)}} if warnings else {}


def finish_reason(event: RunFinished) -> str:
    """Return "stop", "length", "tool_calls", "content_filter" or "cancelled": the run's own finish reason, or the one
    that its outcome implies."""
    if isinstance(event.outcome, CancelledOutcome):
        return "cancelled"
    if (stated := finished_metadata(event).finish_reason) is not None:
        return stated
    pending = event.outcome.pending_tool_call_ids if isinstance(event.outcome, SuccessOutcome) else None
    return "tool_calls" if pending else "stop"


def own_events(events: Iterable[Event], hidden_tools: Container[str] = ()) -> list[Event]:
    """Return the events that these wires show: those of the main agent, without calls of `hidden_tools`."""
    hidden: set[str] = set()
    visible: list[Event] = []
    for event in events:
        if getattr(event, "subagent_run_id", None) is not None:
            continue
        if isinstance(event, ToolCallStart) and event.tool_call_name in hidden_tools:
            hidden.add(event.tool_call_id)
        if getattr(event, "tool_call_id", None) not in hidden:
            visible.append(event)
    return visible


def fold(events: Iterable[Event], *, hidden_tools: Container[str] = ()) -> Answer:
    """Fold a run's events into an Answer. hidden_tools: names of the tools that the server runs itself."""
    visible = own_events(events, hidden_tools)
    output = fold_messages(visible).output()
    end = next((event for event in reversed(visible) if isinstance(event, RunFinished | RunError)), None)
    outcome = end.outcome if isinstance(end, RunFinished) else None
    sealed = [event.encrypted_value for event in visible if isinstance(event, ReasoningEncryptedValue)]
    pieces = Pieces()
    for event in visible:
        match event:
            case TextMessageContent():
                pieces.text_tokens.extend(visible_tokens(event.metadata))
            case ReasoningMessageContent(delta=delta):
                pieces.reasoning_tokens.extend(visible_tokens(event.metadata))
                if delta:
                    pieces.reasoning.append(delta)
            case ToolCallStart(tool_call_id=call, tool_call_name=name):
                pieces.call_tokens.extend(tokens_of(event.metadata))
                pieces.calls.append({"type": "start", "tool_call_id": call, "tool_name": name})
            case ToolCallArgs(tool_call_id=call, delta=delta):
                pieces.call_tokens.extend(tokens_of(event.metadata))
                if delta:
                    pieces.calls.append({"type": "args", "tool_call_id": call, "delta": delta})
            case ToolCallEnd(tool_call_id=call):
                cut = CUT if is_cut(event.metadata) else {}
                pieces.calls.append({"type": "end", "tool_call_id": call, **cut})
            case _:
                continue
        pieces.tokens.extend(tokens_of(event.metadata))
    if end is not None:
        pieces.tokens.extend(tokens_of(end.metadata))
    return Answer(
        text=output.text,
        reasoning=output.reasoning,
        calls=output.tool_calls,
        finish=finish_reason(end) if isinstance(end, RunFinished) else "error",
        error=end if isinstance(end, RunError) else None,
        usage=(end.usage if end else None) or (),
        interrupts=outcome.interrupts if isinstance(outcome, InterruptOutcome) else (),
        encrypted_reasoning=sealed[-1] if sealed else None,
        pieces=pieces,
        metadata=finished_metadata(end),
    )


def field_on(wire: Wire, param: str | None) -> str | None:
    """Return the request field of a wire that corresponds to a run's `param`."""
    if param is None:
        return None
    if param in PARAMETERS:
        return next(iter(names_on(wire, param)), param)
    return FIELDS.get(wire, {}).get(param, param)


def raise_failure(answer: Answer, wire: Wire, answered: Collection[str] = ()) -> None:
    """Raise RequestError with the run's error kind if the answer failed. answered: kinds that are reported within the
    answer instead."""
    error = answer.error
    if error is None or error.code in answered:
        return
    kind = error.code if error.code in KINDS else "internal"
    raise RequestError(cast(ErrorKind, kind), error.message, param=field_on(wire, error_metadata(error).param))
