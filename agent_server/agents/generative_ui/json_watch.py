"""Values of a JSON text as soon as each is complete, while the text is still being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Path = tuple[str | int, ...]
_SPACE = frozenset(" \t\r\n")
_CLOSERS = frozenset(",]}")


class JsonWatch:
    """Feed it the text in pieces. wanted: which values are told, by their paths: ("data", "items", 0). streamed: the
    path of a string whose text, with its escapes, can be taken while it comes.

    The cost is that of the text's length, once for every wanted value that a character stands in. Text that is no JSON
    ends the watch: nothing more is told.
    """

    def __init__(self, wanted: Callable[[Path], bool], streamed: Path | None = None) -> None:
        self._wanted = wanted
        self._streamed = streamed
        self._stream: list[str] = []
        self._path: list[str | int] = []
        """The keys and indices down to the value that is being read."""
        self._open: list[str] = []
        self._captures: list[tuple[int, list[str]]] = []
        """(depth of its path, its text so far) of the wanted values that are open, innermost last."""
        self._state = "value"
        self._escaped = False
        self._key: list[str] = []
        self.broken = False

    def feed(self, delta: str) -> list[tuple[Path, object]]:
        """The values that this piece completes, inner ones first."""
        found: list[tuple[Path, object]] = []
        for character in delta:
            if self.broken:
                break
            if self._state == "scalar" and (character in _CLOSERS or character in _SPACE):
                self._close(found)
            step = getattr(self, f"_in_{self._state}")
            step(character, found)
        return found

    def taken(self) -> str:
        """What came of the streamed string since it was taken last."""
        text = "".join(self._stream)
        self._stream.clear()
        return text

    def keep(self, text: str) -> None:
        """Give back the end of what was taken."""
        self._stream[:0] = [text] if text else []

    # --- what a character means, by the state before it: value, key, colon, after, string, name, scalar, done

    def _in_value(self, character: str, found: list[tuple[Path, object]]) -> None:
        if character in _SPACE:
            self._keep(character)
            return
        if character == "]" and self._open and self._open[-1] == "[" and self._path[-1] == 0:
            self._keep(character)
            self._leave(found)
            return
        if self._wanted(tuple(self._path)):
            self._captures.append((len(self._path), []))
        self._keep(character)
        if character in "{[":
            self._open.append(character)
            self._path.append("" if character == "{" else 0)
            self._state = "key" if character == "{" else "value"
        elif character == '"':
            self._state = "string"
        elif character in "-0123456789tfn":
            self._state = "scalar"
        else:
            self.broken = True

    def _in_key(self, character: str, found: list[tuple[Path, object]]) -> None:
        self._keep(character)
        if character == '"':
            self._key = ['"']
            self._state = "name"
        elif character == "}":
            self._leave(found)
        elif character not in _SPACE:
            self.broken = True

    def _in_name(self, character: str, found: list[tuple[Path, Any]]) -> None:
        self._keep(character)
        self._key.append(character)
        if self._ends_string(character):
            self._path[-1] = self._decoded("".join(self._key), "")
            self._state = "colon"

    def _in_colon(self, character: str, found: list[tuple[Path, object]]) -> None:
        self._keep(character)
        if character == ":":
            self._state = "value"
        elif character not in _SPACE:
            self.broken = True

    def _in_string(self, character: str, found: list[tuple[Path, object]]) -> None:
        self._keep(character)
        if self._ends_string(character):
            self._close(found)
        elif self._streamed is not None and tuple(self._path) == self._streamed:
            self._stream.append(character)

    def _in_scalar(self, character: str, found: list[tuple[Path, object]]) -> None:
        self._keep(character)

    def _in_after(self, character: str, found: list[tuple[Path, object]]) -> None:
        self._keep(character)
        if character in _SPACE:
            return
        inner = self._open[-1]
        if character == ",":
            if inner == "[":
                self._path[-1] = int(self._path[-1]) + 1
            self._state = "value" if inner == "[" else "key"
        elif character == {"[": "]", "{": "}"}[inner]:
            self._leave(found)
        else:
            self.broken = True

    def _in_done(self, character: str, found: list[tuple[Path, object]]) -> None:
        self.broken = character not in _SPACE

    # --- what ends

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False

    def _leave(self, found: list[tuple[Path, object]]) -> None:
        self._open.pop()
        self._path.pop()
        self._close(found)

    def _close(self, found: list[tuple[Path, object]]) -> None:
        """A value is complete, and the path is its own."""
        if self._captures and self._captures[-1][0] == len(self._path):
            _, text = self._captures.pop()
            found.append((tuple(self._path), self._decoded("".join(text), None)))
        self._state = "after" if self._open else "done"

    def _decoded(self, text: str, otherwise: Any) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            self.broken = True
            return otherwise

    def _keep(self, character: str) -> None:
        for _, text in self._captures:
            text.append(character)
