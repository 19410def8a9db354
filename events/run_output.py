"""A run's complete output: the result of folding, for wires that do not stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

Wire = dict[str, Any]
"""A message on the AG-UI wire: camelCase names, plain values."""


class FinishedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call. arguments: the JSON text as the model wrote it. complete: False if the output ended within the call,
    so that it must not be executed."""

    id: str
    name: str
    arguments: str
    complete: bool = True


class RunOutput(msgspec.Struct, frozen=True, kw_only=True):
    """text, reasoning: the concatenated assistant and reasoning messages of the run. tool_calls: in the order in which
    they began, including those that the server executed."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[FinishedCall, ...] = ()


def run_output(messages: Sequence[Wire], calls: Sequence[FinishedCall]) -> RunOutput:
    """Build the output from the run's own messages and calls."""
    return RunOutput(text=_join(messages, "assistant"), reasoning=_join(messages, "reasoning"), tool_calls=tuple(calls))


def _join(messages: Iterable[Wire], role: str) -> str:
    return "".join(str(message.get("content") or "") for message in messages if message["role"] == role)
