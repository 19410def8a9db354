"""End an output at a call that repeats an earlier one, or after many calls.

If tool_choice requires a call, models that were not trained on their template's calls repeat one, with invented
additional arguments, until the token limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from events.parsing.pieces import ArgumentText, CallEnd, CallStart, Piece
from events.parsing.schema import Schema

MOST_CALLS = 16
"""The most calls of one output."""


def canonical_arguments(arguments: str, schema: object) -> str:
    """Return a call's arguments as canonical JSON, without those that the tool's schema does not declare, if it
    declares any. Text that is not JSON is returned as it is."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    try:
        values = json.loads(arguments)
        if isinstance(values, dict) and isinstance(properties, Mapping) and properties:
            values = {key: value for key, value in values.items() if key in properties}
        return json.dumps(values, sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


class DistinctCalls:
    """Passes pieces through until a call repeats an earlier one in the arguments that its schema declares, or until
    MOST_CALLS.

    A call of a tool that was called before is held back until it is complete. tools: name → parameter schema. ended:
    whether the end has been reached, after which no pieces are passed on.
    """

    def __init__(self, tools: Mapping[str, Schema]) -> None:
        self.ended = False
        self._tools = tools
        self._calls: dict[str, set[str]] = {}  # tool name → arguments of its calls
        self._name = ""
        self._arguments: list[str] = []
        self._held_back: list[Piece] | None = None

    def filter(self, pieces: list[Piece]) -> list[Piece]:
        passed: list[Piece] = []
        for piece in pieces:
            if self.ended:
                break
            if isinstance(piece, CallStart):
                self._name, self._arguments = piece.name, []
                self._held_back = [] if piece.name in self._calls else None
            elif isinstance(piece, ArgumentText):
                self._arguments.append(piece.text)
            if self._held_back is None:
                passed.append(piece)
            else:
                self._held_back.append(piece)
            if not isinstance(piece, CallEnd):
                continue
            # The pieces of the call that were held back, unless it repeats an earlier call.
            held_back, self._held_back = self._held_back or [], None
            repeats = False
            if piece.complete:
                earlier_calls = self._calls.setdefault(self._name, set())
                arguments = canonical_arguments("".join(self._arguments), self._tools.get(self._name))
                repeats = arguments in earlier_calls
                earlier_calls.add(arguments)
                self.ended = repeats or sum(map(len, self._calls.values())) >= MOST_CALLS
            if not repeats:
                passed += held_back
        return passed
