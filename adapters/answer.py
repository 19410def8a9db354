"""One run's events folded into the one answer that request-and-response wires speak of.

A run may hold several messages and calls of the server's own tools; these wires know a single assistant message, so
its text is the texts in order, and calls that the server answered itself are left out. Events of subagents are the
subagents' own and are left out too. The folding is `events.message`'s; the pieces and tokens that it does not keep are
collected here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import cast

import msgspec

from adapters.errors import KINDS, ErrorKind, RequestError
from events.message import fold as fold_messages
from events.metadata import CUT, FinishedMetadata, Scored, error_metadata, finished_metadata, is_cut, tokens_of
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
    """A run's first prompt, known before its first token. ids: where the request asks for them."""

    tokens: int
    ids: tuple[int, ...] | None = None


FIELDS: Mapping[Wire, Mapping[str, str]] = {
    "chat": {"prompt": "messages"},
    "completions": {"messages": "prompt"},
    "responses": {"resume": "input", "messages": "input", "prompt": "input", "response_format": "text.format"},
    "messages": {"prompt": "messages", "response_format": "output_config.format"},
}
"""What a run calls a thing → the wire's field for it, where they differ; sampling parameters are in their own table."""
PromptOf = Callable[[], PromptNote | None]
"""Asks a run for its prompt; None until it was made."""


def unknown_prompt() -> None:
    """For a run of which nothing but its events is known."""
    return None


class Pieces(msgspec.Struct):
    """What came piece by piece. tokens: details of every token in order; the other three lists are its parts."""

    reasoning: list[str] = []
    calls: list[dict[str, object]] = []
    tokens: list[Scored] = []
    text_tokens: list[Scored] = []
    reasoning_tokens: list[Scored] = []
    call_tokens: list[Scored] = []


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """finish: "stop", "length", "tool_calls", "content_filter", "cancelled" or "error". calls: those that are the
    client's to answer."""

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
    """What wires without a place for a run's warnings have in addition: `extensions.warnings`."""
    return {"extensions": {"warnings": list(warnings)}} if warnings else {}


def finish_reason(event: RunFinished) -> str:
    """ "stop", "length", "tool_calls", "content_filter" or "cancelled": what the run says, else what its outcome
    implies."""
    if isinstance(event.outcome, CancelledOutcome):
        return "cancelled"
    if (stated := finished_metadata(event).finish_reason) is not None:
        return stated
    pending = event.outcome.pending_tool_call_ids if isinstance(event.outcome, SuccessOutcome) else None
    return "tool_calls" if pending else "stop"


def own_events(events: Iterable[Event], hidden_tools: Container[str] = ()) -> list[Event]:
    """The events that these wires show: the parent agent's, without calls of `hidden_tools`, which the server runs."""
    hidden: set[str] = set()
    shown: list[Event] = []
    for event in events:
        if getattr(event, "subagent_run_id", None) is not None:
            continue
        if isinstance(event, ToolCallStart) and event.tool_call_name in hidden_tools:
            hidden.add(event.tool_call_id)
        if getattr(event, "tool_call_id", None) not in hidden:
            shown.append(event)
    return shown


def fold(events: Iterable[Event], *, hidden_tools: Container[str] = ()) -> Answer:
    """`hidden_tools` are the names of tools that the server runs itself."""
    shown = own_events(events, hidden_tools)
    said = fold_messages(shown).output()
    end = next((event for event in reversed(shown) if isinstance(event, RunFinished | RunError)), None)
    outcome = end.outcome if isinstance(end, RunFinished) else None
    sealed = [event.encrypted_value for event in shown if isinstance(event, ReasoningEncryptedValue)]
    return Answer(
        text=said.text,
        reasoning=said.reasoning,
        calls=said.tool_calls,
        finish=finish_reason(end) if isinstance(end, RunFinished) else "error",
        error=end if isinstance(end, RunError) else None,
        usage=(end.usage if end else None) or (),
        interrupts=outcome.interrupts if isinstance(outcome, InterruptOutcome) else (),
        encrypted_reasoning=sealed[-1] if sealed else None,
        pieces=_pieces(shown, end),
        metadata=finished_metadata(end),
    )


def _pieces(events: Iterable[Event], end: RunFinished | RunError | None) -> Pieces:
    pieces = Pieces()
    for event in events:
        match event:
            case TextMessageContent():
                pieces.text_tokens.extend(tokens_of(event.metadata))
            case ReasoningMessageContent(delta=delta):
                pieces.reasoning_tokens.extend(tokens_of(event.metadata))
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
    return pieces


def field_on(wire: Wire, param: str | None) -> str | None:
    """The field of a wire's request that gave what a run calls `param`."""
    if param is None:
        return None
    if param in PARAMETERS:
        return next(iter(names_on(wire, param)), param)
    return FIELDS.get(wire, {}).get(param, param)


def raise_failure(answer: Answer, wire: Wire, answered: Collection[str] = ()) -> None:
    """RequestError for an answer that broke, with the run's kind; failures in `answered` are answers themselves."""
    error = answer.error
    if error is None or error.code in answered:
        return
    kind = error.code if error.code in KINDS else "internal"
    raise RequestError(cast(ErrorKind, kind), error.message, param=field_on(wire, error_metadata(error).param))
