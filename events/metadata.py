"""What this server's runs write into the `metadata` of their events, typed.

The protocol leaves metadata open, so a log from elsewhere may hold anything there; encoders rely on these shapes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from events.vocabulary import Event, ReasoningMessageContent, RunError, RunFinished, TextMessageContent, ToolCallArgs

Alternative = tuple[int, str, float | None]
"""Token id, its text, its natural log probability (None where it was not asked for)."""
Scored = tuple[int, str, float | None, list[Alternative]]


class DeltaMetadata(msgspec.Struct, frozen=True):
    """tokens: what a delta was made of, in order."""

    tokens: list[Scored] | None = None


class FinishedMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """timings: in seconds. stop: the string or token id that ended the run. tokens: those that no delta carried."""

    finish_reason: str | None = None
    timings: dict[str, float | None] | None = None
    warnings: list[str] | None = None
    stop: str | int | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Scored | None] | None = None
    tokens: list[Scored] | None = None


class ErrorMetadata(msgspec.Struct, frozen=True):
    """param: the request's field that is at fault."""

    retryable: bool | None = None
    param: str | None = None


_SHAPES: dict[type[Any], type[msgspec.Struct]] = {
    TextMessageContent: DeltaMetadata,
    ReasoningMessageContent: DeltaMetadata,
    ToolCallArgs: DeltaMetadata,
    RunFinished: FinishedMetadata,
    RunError: ErrorMetadata,
}


def checked(event: Event) -> Event:
    """The event itself. msgspec.ValidationError if its metadata cannot be this server's."""
    shape = _SHAPES.get(type(event))
    if shape is not None and event.metadata is not None:
        msgspec.convert(event.metadata, shape)
    return event
