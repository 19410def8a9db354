"""Ending an output at a call that repeats an earlier one, or behind many calls.

Where a call is required, models whose weights do not know their template's calls write the same one, with other
arguments of their own invention, until the limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from events.parsing.pieces import ArgumentText, CallEnd, CallStart, Piece
from events.parsing.schema import Schema

MOST_CALLS = 16
"""Calls of one output."""


class DistinctCalls:
    """Passes pieces on up to the first call that repeats an earlier one in the arguments that its schema declares, and
    up to `MOST_CALLS`. A call to a function that was called before is held until it is complete.

    tools: name → parameter schema. ended: whether that is reached, behind which nothing is passed on.
    """

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        self.ended = False
        self._tools = tools
        self._made: dict[str, set[str]] = {}
        self._name = ""
        self._arguments: list[str] = []
        self._held: list[Piece] | None = None

    def of(self, pieces: list[Piece]) -> list[Piece]:
        passed: list[Piece] = []
        for piece in pieces:
            if self.ended:
                break
            if isinstance(piece, CallStart):
                self._name, self._arguments = piece.name, []
                self._held = [] if piece.name in self._made else None
            elif isinstance(piece, ArgumentText):
                self._arguments.append(piece.text)
            if self._held is None:
                passed.append(piece)
            else:
                self._held.append(piece)
            if isinstance(piece, CallEnd):
                passed += self._finish(piece.complete)
        return passed

    def _finish(self, complete: bool) -> list[Piece]:
        """The call's pieces that were held; none of one that repeats an earlier one."""
        held, self._held = self._held or [], None
        if not complete:
            return held
        made = self._made.setdefault(self._name, set())
        arguments = _declared("".join(self._arguments), self._tools.get(self._name))
        repeats = arguments in made
        made.add(arguments)
        self.ended = repeats or sum(map(len, self._made.values())) >= MOST_CALLS
        return [] if repeats else held


def _declared(arguments: str, schema: Schema) -> str:
    """The arguments in one spelling, without those that the schema does not declare, where it declares any."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    try:
        read = json.loads(arguments)
        if isinstance(read, dict) and isinstance(properties, Mapping) and properties:
            read = {key: value for key, value in read.items() if key in properties}
        return json.dumps(read, sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
