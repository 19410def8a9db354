"""Reading an output for a test: pieces of text in, the message out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, NamedTuple

from events.formats.output_format import OutputFormat
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallStart, ContentText, Piece, ReasoningText
from events.parsing.policy import Policy


class Message(NamedTuple):
    reasoning: str
    content: str
    calls: list[tuple[str, str, str]]  # name, id, arguments


def read(output_format: OutputFormat, pieces: Iterable[str], policy: Policy, opened: str | None = None) -> Message:
    parser = Parser(output_format, policy, opened=opened)
    said: list[Piece] = [piece for text in pieces for piece in parser.feed(text)] + parser.finish()
    calls: list[list[str]] = []
    for piece in said:
        if isinstance(piece, CallStart):
            calls.append([piece.name, piece.id, ""])
        elif isinstance(piece, ArgumentText):
            calls[-1][2] += piece.text
    return Message(
        "".join(piece.text for piece in said if isinstance(piece, ReasoningText)),
        "".join(piece.text for piece in said if isinstance(piece, ContentText)),
        [(name, call_id, arguments) for name, call_id, arguments in calls],
    )


def cuts(text: str, seed: int, longest: int = 12) -> list[str]:
    """The text cut at random."""
    generator = random.Random(seed)
    pieces, position = [], 0
    while position < len(text):
        size = generator.randint(1, longest)
        pieces.append(text[position : position + size])
        position += size
    return pieces


def splits(text: str, count: int) -> list[list[str]]:
    """The text by characters and in `count` random splits."""
    return [list(text), *(cuts(text, seed) for seed in range(count))]


def parsed(arguments: str) -> Any:
    """Arguments as data; those that are no JSON (a truncated call's) as they are."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
