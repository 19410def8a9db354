"""What the parser says: semantic pieces, in order, without ids of our own."""

from __future__ import annotations

from typing import NamedTuple


class ReasoningText(NamedTuple):
    text: str


class ContentText(NamedTuple):
    text: str


class CallStart(NamedTuple):
    """A call is announced. `id` is the model's own, or ""."""

    name: str
    id: str


class ArgumentText(NamedTuple):
    """The next part of the call's arguments, which join to JSON text."""

    text: str


class CallEnd(NamedTuple):
    """The call is over. `complete`: false where the end of the output cut it off."""

    complete: bool


class ParseWarning(NamedTuple):
    """Something in the output was not as it should be. `kind`: "tool_call" (text that was no call, an undeclared
    tool), "tool_call_error" (the same, where the request wants that to end the run), "reasoning" (never closed),
    "protocol" (an order that strict boundaries forbid)."""

    kind: str
    message: str


Piece = ReasoningText | ContentText | CallStart | ArgumentText | CallEnd | ParseWarning
