"""What one run said, in one piece: the result of folding, for wires that do not stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Wire = dict[str, Any]
"""A message as it goes over the AG-UI wire: camelCase names, plain values."""


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call; `arguments` is the JSON text as the model wrote it. complete: false where the output ended within
    the call, which nobody may make."""

    id: str
    name: str
    arguments: str
    complete: bool = True


class RunOutput(msgspec.Struct, frozen=True, kw_only=True):
    """text and reasoning are the run's assistant and reasoning messages, each concatenated. tool_calls: in the order in
    which they began, those that the server answered too."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[FinishedCall, ...] = ()


def run_output(messages: Sequence[Wire], calls: Sequence[FinishedCall]) -> RunOutput:
    """messages: the run's own."""
    return RunOutput(text=_join(messages, "assistant"), reasoning=_join(messages, "reasoning"), tool_calls=tuple(calls))


def _join(messages: Iterable[Wire], role: str) -> str:
    return "".join(str(message.get("content") or "") for message in messages if message["role"] == role)
