"""What one run said, in one piece: the result of folding, for wires that do not stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from events.vocabulary import RunError, RunFinished, RunOutcome, TokenUsage

Wire = dict[str, Any]


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A finished tool call; `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one run said, for wires that answer in one piece.

    text and reasoning are the run's assistant and reasoning messages, each concatenated. pending: ids of calls that
    the client has to answer. usage: summed over models. finish_reason: "stop", "length", "tool_calls", "cancelled" or
    "error". error: (kind, message).
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[FinishedCall, ...] = ()
    pending: tuple[str, ...] = ()
    usage: TokenUsage | None = None
    finish_reason: str | None = None
    outcome: RunOutcome | None = None
    error: tuple[str, str] | None = None
    warnings: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = {}


def make_answer(
    messages: Sequence[Wire],
    calls: Sequence[FinishedCall],
    pending: Sequence[str],
    terminal: RunFinished | RunError | None,
) -> Answer:
    """`messages` are the run's own, in wire form; `calls` and `pending` as in Answer."""
    metadata = (terminal.metadata if terminal else None) or {}
    return Answer(
        text=_join(messages, "assistant"),
        reasoning=_join(messages, "reasoning"),
        tool_calls=tuple(calls),
        pending=tuple(pending),
        usage=total_usage(terminal.usage if terminal else None),
        finish_reason="error" if isinstance(terminal, RunError) else metadata.get("finishReason"),
        outcome=terminal.outcome if isinstance(terminal, RunFinished) else None,
        error=(terminal.code or "internal", terminal.message) if isinstance(terminal, RunError) else None,
        warnings=tuple(metadata.get("warnings") or ()),
        metadata=metadata,
    )


def total_usage(usage: Sequence[TokenUsage] | None) -> TokenUsage | None:
    """The usage of all models of a run in one; provider and model stay when there is a single entry."""
    if not usage:
        return None
    if len(usage) == 1:
        return usage[0]
    counts = [name for name in TokenUsage.__struct_fields__ if name.endswith("tokens")]
    sums = {name: [count for entry in usage if (count := getattr(entry, name)) is not None] for name in counts}
    return TokenUsage(**{name: sum(values) for name, values in sums.items() if values})


def _join(messages: Iterable[Wire], role: str) -> str:
    return "".join(str(message.get("content") or "") for message in messages if message["role"] == role)
