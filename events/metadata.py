"""Typed `metadata` of this server's events.

The protocol does not define metadata, so events of other servers may contain anything there; encoders rely on these
types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from events.vocabulary import Event, ReasoningMessageContent, RunError, RunFinished, TextMessageContent, ToolCallArgs

Alternative = tuple[int, str, float | None]
"""Token id, text, and natural log probability (None if it was not requested)."""
Scored = tuple[int, str, float | None, list[Alternative]]


Tokens = Sequence[Scored]


class DeltaMetadata(msgspec.Struct, frozen=True):
    """tokens: the tokens of which the delta is the first after them, in order, each once. visible: those that make up
    the delta's text, if they are others: without markers, and with the shown part of a token as its text."""

    tokens: list[Scored] | None = None
    visible: list[Scored] | None = None


class RunTimings(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Seconds since the request arrived, except for `queued`: how long its generations waited in total."""

    queued: float | None = None
    first_token: float | None = None
    total: float | None = None


class FinishedMetadata(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Metadata of RUN_FINISHED.

    stop: the string or token id that ended the run. prompt_token_ids, prompt_logprobs: of its first prompt, if they
    were requested. tokens: those that no delta carried. constrained: a grammar constrained the output. resumed: how
    often a generation moved to another replica. context: tokens of the last generation's prompt and answer, in a run of
    several generations, whose usage is their sum.
    """

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
    """Metadata of RUN_ERROR.

    param: the request's invalid field. next_event: the first event that a reader which missed events can still get.
    lost: the run's gateway died, and another one wrote this ending.
    """

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
"""The metadata of TOOL_CALL_END, and of the message's call, if the output ended within the call."""


def is_cut(metadata: Mapping[str, object] | None) -> bool:
    """Return whether a call with this metadata is incomplete, so that it must not be executed."""
    return metadata is not None and metadata.get("incomplete") is True


def as_metadata(metadata: FinishedMetadata | ErrorMetadata) -> dict[str, object]:
    """Convert to an event's `metadata`; absent values are left out."""
    fields: dict[str, object] = msgspec.to_builtins(metadata)
    return fields


def finished_metadata(event: Event | None) -> FinishedMetadata:
    """Return the metadata of RUN_FINISHED; empty for other events. Raises msgspec.ValidationError for metadata that
    this server did not write."""
    if not isinstance(event, RunFinished) or not event.metadata:
        return FinishedMetadata()
    return msgspec.convert(event.metadata, FinishedMetadata)


def error_metadata(event: Event | None) -> ErrorMetadata:
    """Return the metadata of RUN_ERROR; empty for other events. Raises msgspec.ValidationError for metadata that this
    server did not write."""
    if not isinstance(event, RunError) or not event.metadata:
        return ErrorMetadata()
    return msgspec.convert(event.metadata, ErrorMetadata)


def tokens_of(metadata: Mapping[str, object] | None) -> Tokens:
    """Return the tokens in an event's metadata. It is called for every delta, so nothing is converted: in decoded
    events they are lists instead of tuples."""
    return cast(Tokens, metadata.get("tokens") or ()) if metadata else ()


def visible_tokens(metadata: Mapping[str, object] | None) -> Tokens:
    """Return the tokens whose texts make up a delta's text."""
    visible = metadata.get("visible") if metadata else None
    return tokens_of(metadata) if visible is None else cast(Tokens, visible)


def token_metadata(tokens: Sequence[Scored], visible: Sequence[Scored]) -> dict[str, object] | None:
    """Return a delta's metadata with its tokens; None without any."""
    metadata: dict[str, object] = {"tokens": list(tokens)} if tokens else {}
    if visible != tokens:
        metadata["visible"] = list(visible)
    return metadata or None


def without_tokens(metadata: Mapping[str, object] | None) -> dict[str, object]:
    """Return a stored message's metadata, without tokens, which only the stream's readers get."""
    return {key: value for key, value in (metadata or {}).items() if key not in ("tokens", "visible")}


def check_metadata(event: Event) -> Event:
    """Return the event. Raises msgspec.ValidationError if its metadata does not have this server's types."""
    shape = _SHAPES.get(type(event))
    if shape is not None and event.metadata is not None:
        msgspec.convert(event.metadata, shape)
    return event
