"""Leaving out a call that repeats an earlier one of the same output.

Models whose weights do not know their template's calls write the same one until the limit where a call is required.
"""

from __future__ import annotations

import json

from events.parsing.pieces import ArgumentText, CallEnd, CallStart, Piece


class DistinctCalls:
    """Passes pieces on up to the first call that repeats an earlier one. A call to a function that was called before is
    held until it is complete. ended: whether there was such a call, behind which nothing is passed on."""

    def __init__(self) -> None:
        self.ended = False
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
        made, arguments = self._made.setdefault(self._name, set()), _canonical("".join(self._arguments))
        self.ended = arguments in made
        made.add(arguments)
        return [] if self.ended else held


def _canonical(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
