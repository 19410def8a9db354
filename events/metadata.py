"""What this server's runs write into the `metadata` of their events, typed.

The protocol leaves metadata open, so a log from elsewhere may hold anything there; encoders rely on these shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from events.vocabulary import Event, ReasoningMessageContent, RunError, RunFinished, TextMessageContent, ToolCallArgs

Alternative = tuple[int, str, float | None]
"""Token id, its text, its natural log probability (None where it was not asked for)."""
Scored = tuple[int, str, float | None, list[Alternative]]


Tokens = Sequence[Scored]


class DeltaMetadata(msgspec.Struct, frozen=True):
    """tokens: what a delta was made of, in order."""

    tokens: list[Scored] | None = None


class RunTimings(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Seconds since the request arrived, but for `queued`: how long its generations waited in all."""

    queued: float | None = None
    first_token: float | None = None
    total: float | None = None


class FinishedMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """stop: the string or token id that ended the run. prompt_token_ids and prompt_logprobs: of its first prompt, where
    they were asked for. constrained: a grammar bound the output. resumed: how often a generation moved to another
    replica. tokens: those that no delta carried. context: tokens of the last generation, prompt and answer, of a run of
    several, whose usage is their sum."""

    finish_reason: str | None = None
    timings: RunTimings = RunTimings()
    warnings: list[str] | None = None
    stop: str | int | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[Scored | None] | None = None
    tokens: list[Scored] | None = None
    constrained: bool | None = None
    resumed: int | None = None
    context: int | None = None


class ErrorMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """param: the request's field that is at fault. next_event: of a reader that lost some, the first event that it can
    still have. lost: the run's gateway died, and another one wrote this ending."""

    retryable: bool | None = None
    param: str | None = None
    next_event: int | None = None
    lost: bool | None = None


_SHAPES: dict[type[object], type[msgspec.Struct]] = {
    TextMessageContent: DeltaMetadata,
    ReasoningMessageContent: DeltaMetadata,
    ToolCallArgs: DeltaMetadata,
    RunFinished: FinishedMetadata,
    RunError: ErrorMetadata,
}


CUT: Mapping[str, object] = {"incomplete": True}
"""The metadata of a TOOL_CALL_END, and of the message's call, where the output ended before the call did."""


def is_cut(metadata: Mapping[str, object] | None) -> bool:
    """Whether a call with this metadata was cut off: nobody may make it."""
    return metadata is not None and metadata.get("incomplete") is True


def as_metadata(metadata: FinishedMetadata | ErrorMetadata) -> dict[str, object]:
    """As an event carries it: absent values are left out."""
    made: dict[str, object] = msgspec.to_builtins(metadata)
    return made


def finished_metadata(event: Event | None) -> FinishedMetadata:
    """What a RUN_FINISHED carries; empty for other events. msgspec.ValidationError for what this server did not
    write."""
    if not isinstance(event, RunFinished) or not event.metadata:
        return FinishedMetadata()
    return msgspec.convert(event.metadata, FinishedMetadata)


def error_metadata(event: Event | None) -> ErrorMetadata:
    """What a RUN_ERROR carries; empty for other events. msgspec.ValidationError for what this server did not write."""
    if not isinstance(event, RunError) or not event.metadata:
        return ErrorMetadata()
    return msgspec.convert(event.metadata, ErrorMetadata)


def tokens_of(metadata: Mapping[str, object] | None) -> Tokens:
    """The tokens that an event's metadata tells of. There is one call for every delta, so nothing is converted: JSON's
    lists stand for the tuples in events that were read from a log."""
    return cast(Tokens, metadata.get("tokens") or ()) if metadata else ()


def without_tokens(metadata: Mapping[str, object] | None) -> dict[str, object]:
    """What a stored message keeps: its tokens were only for those who read it as it was written."""
    return {key: value for key, value in (metadata or {}).items() if key != "tokens"}


def checked(event: Event) -> Event:
    """The event itself. msgspec.ValidationError if its metadata cannot be this server's."""
    shape = _SHAPES.get(type(event))
    if shape is not None and event.metadata is not None:
        msgspec.convert(event.metadata, shape)
    return event
