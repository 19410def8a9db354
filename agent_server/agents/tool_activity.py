"""The activity beside a call: how far it is, and the pieces of its result that are there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from events.vocabulary import ActivityDelta, ActivitySnapshot, Event

KIND = "tool_progress"
PARTS = "parts"


class ToolActivity:
    """One call's activity; nothing is sent before there is something to show.

    Progress replaces what was shown before and is sent whole. From the first piece on only differences are sent, so
    that a long result does not go over the wire once a piece.
    """

    def __init__(self, id: str, call: Mapping[str, str], emit: Callable[[Event], None]) -> None:
        self._id = id
        self._call = dict(call)
        self._emit = emit
        self._shown: dict[str, object] = {}
        self._streams = False

    def progress(self, content: Mapping[str, object]) -> None:
        """Show how far it is, in the place of what was said of that before."""
        if not self._streams:
            self._shown = dict(content)
            self._snapshot()
            return
        content = {key: value for key, value in content.items() if key != PARTS}
        gone: list[dict[str, object]] = [
            {"op": "remove", "path": _pointer(key)} for key in self._shown if key not in content
        ]
        new = [{"op": "add", "path": _pointer(key), "value": value} for key, value in content.items()]
        self._shown = dict(content)
        self._change([*gone, *new])

    def partial(self, piece: object) -> None:
        """Add a piece of the result."""
        if self._streams:
            self._change([{"op": "add", "path": f"/{PARTS}/-", "value": piece}])
            return
        self._streams = True
        self._shown.pop(PARTS, None)
        self._snapshot({PARTS: [piece]})

    def _snapshot(self, more: Mapping[str, object] | None = None) -> None:
        content = {**self._call, **self._shown, **(more or {})}
        self._emit(ActivitySnapshot(message_id=self._id, activity_type=KIND, content=content))

    def _change(self, patch: list[dict[str, object]]) -> None:
        if patch:
            self._emit(ActivityDelta(message_id=self._id, activity_type=KIND, patch=patch))


def _pointer(key: str) -> str:
    """A key as a JSON pointer (RFC 6901)."""
    return "/" + key.replace("~", "~0").replace("/", "~1")
