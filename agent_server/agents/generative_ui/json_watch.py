"""Read values from a JSON text as soon as each is complete, while the text is still being written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Path = tuple[str | int, ...]
_SPACE = frozenset(" \t\r\n")
_CLOSERS = frozenset(",]}")


class JsonWatch:
    """Reports values of a JSON text that is fed in pieces.

    is_wanted: selects the values to report by their paths, such as ("data", "items", 0). streamed: the path of a string
    whose raw text, with its escapes, is available as it arrives.

    The cost is proportional to the length of the text, once for every wanted value that contains a character. After
    invalid JSON nothing more is reported.
    """

    def __init__(self, is_wanted: Callable[[Path], bool], streamed: Path | None = None) -> None:
        self._is_wanted = is_wanted
        self._streamed = streamed
        self._stream: list[str] = []
        self._path: list[str | int] = []
        """The keys and indices of the value that is being read."""
        self._open: list[str] = []
        self._captures: list[tuple[int, list[str]]] = []
        """(depth of the path, text so far) of the open wanted values, innermost last."""
        self._state = "value"
        self._escaped = False
        self._key: list[str] = []
        self.broken = False

    def feed(self, delta: str) -> list[tuple[Path, object]]:
        """The values that this piece completes, inner ones first."""
        values: list[tuple[Path, object]] = []
        for character in delta:
            if self.broken:
                break
            if self._state == "scalar" and (character in _CLOSERS or character in _SPACE):
                self._close(values)
            step = getattr(self, f"_in_{self._state}")
            step(character, values)
        return values

    def take_streamed(self) -> str:
        """Return and clear the text of the streamed string since the last call."""
        text = "".join(self._stream)
        self._stream.clear()
        return text

    def put_back(self, text: str) -> None:
        """Put back the end of the text that was taken."""
        self._stream[:0] = [text] if text else []

    # --- handling a character, by the current state: value, key, colon, after, string, name, scalar, done

    def _in_value(self, character: str, values: list[tuple[Path, object]]) -> None:
        if character in _SPACE:
            self._capture(character)
            return
        if character == "]" and self._open and self._open[-1] == "[" and self._path[-1] == 0:
            self._capture(character)
            self._close_container(values)
            return
        if self._is_wanted(tuple(self._path)):
            self._captures.append((len(self._path), []))
        self._capture(character)
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

    def _in_key(self, character: str, values: list[tuple[Path, object]]) -> None:
        self._capture(character)
        if character == '"':
            self._key = ['"']
            self._state = "name"
        elif character == "}":
            self._close_container(values)
        elif character not in _SPACE:
            self.broken = True

    def _in_name(self, character: str, values: list[tuple[Path, Any]]) -> None:
        self._capture(character)
        self._key.append(character)
        if self._ends_string(character):
            self._path[-1] = self._decode("".join(self._key), "")
            self._state = "colon"

    def _in_colon(self, character: str, values: list[tuple[Path, object]]) -> None:
        self._capture(character)
        if character == ":":
            self._state = "value"
        elif character not in _SPACE:
            self.broken = True

    def _in_string(self, character: str, values: list[tuple[Path, object]]) -> None:
        self._capture(character)
        if self._ends_string(character):
            self._close(values)
        elif self._streamed is not None and tuple(self._path) == self._streamed:
            self._stream.append(character)

    def _in_scalar(self, character: str, values: list[tuple[Path, object]]) -> None:
        self._capture(character)

    def _in_after(self, character: str, values: list[tuple[Path, object]]) -> None:
        self._capture(character)
        if character in _SPACE:
            return
        inner = self._open[-1]
        if character == ",":
            if inner == "[":
                self._path[-1] = int(self._path[-1]) + 1
            self._state = "value" if inner == "[" else "key"
        elif character == {"[": "]", "{": "}"}[inner]:
            self._close_container(values)
        else:
            self.broken = True

    def _in_done(self, character: str, values: list[tuple[Path, object]]) -> None:
        self.broken = character not in _SPACE

    # --- closing strings, containers and values

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False

    def _close_container(self, values: list[tuple[Path, object]]) -> None:
        self._open.pop()
        self._path.pop()
        self._close(values)

    def _close(self, values: list[tuple[Path, object]]) -> None:
        """Report the value at the current path, which is complete, if it is wanted."""
        if self._captures and self._captures[-1][0] == len(self._path):
            _, text = self._captures.pop()
            values.append((tuple(self._path), self._decode("".join(text), None)))
        self._state = "after" if self._open else "done"

    def _decode(self, text: str, default: Any) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            self.broken = True
            return default

    def _capture(self, character: str) -> None:
        for _, text in self._captures:
            text.append(character)
