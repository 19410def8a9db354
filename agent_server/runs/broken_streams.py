"""The end of a stream whose server died: what is open is closed, and a retryable error ends the run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from events.lifecycle import LifecycleError, Verifier
from events.metadata import ErrorMetadata, as_metadata
from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallStart,
)


def closing_events(events: Iterable[tuple[int, Event]], thread_id: str, run_id: str) -> list[Event]:
    """Return the events that end a stream whose server died: the ends of everything open, then a retryable RUN_ERROR.
    [] if the stream already has its terminal event."""
    verifier = Verifier()
    last = 0
    for number, event in events:
        if number <= last:
            continue
        if last == 0 and number > 1:  # the first events are no longer kept
            verifier.check(RunStarted(thread_id=thread_id, run_id=run_id))
        last = number
        try:
            verifier.check(event)
        except LifecycleError:  # the item that it belongs to was opened before the oldest event that is kept
            with contextlib.suppress(LifecycleError):
                if (start := _start_of(event)) is not None:
                    verifier.check(start)
        if isinstance(event, RunFinished | RunError):
            return []
    return [*verifier.close_open("The server of this run died."), server_died_error()]


def _start_of(event: Event) -> Event | None:
    match event:
        case TextMessageContent():
            return TextMessageStart(message_id=event.message_id)
        case ToolCallArgs():
            return ToolCallStart(tool_call_id=event.tool_call_id, tool_call_name="")
        case ReasoningMessageContent():
            return ReasoningMessageStart(message_id=event.message_id, role="reasoning")
    return None


def server_died_error() -> RunError:
    return RunError(
        message="The server of this run died before the run was complete. Its thread has everything that was stored.",
        code="unavailable",
        metadata=as_metadata(ErrorMetadata(retryable=True, lost=True)),
    )
