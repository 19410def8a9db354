"""The JSON text that `events.parsing.json_text` makes: what is written, and what waits until its meaning is known."""

from __future__ import annotations


class JsonOutput:
    """Text in `parts`. tidy: white space is ours, not the model's. key: the text of the key that is being read, None
    where it need not be known.

    Three things wait. A comma is written when an element follows it, so a trailing comma is left out. A brace of
    Python's opens a dictionary or a set: it is written once a colon or a comma behind its first element tells. A string
    where the schema allows none waits for its end.
    """

    def __init__(self, *, tidy: bool) -> None:
        self.parts: list[str] = []
        self.key: list[str] | None = None
        self._tidy = tidy
        self._comma: list[str] = []  # the comma, and the model's white space behind it
        self._brace: list[str] | None = None  # the brace and what follows it
        self._string: list[str] | None = None  # a string that may have to become something else

    def take(self) -> str:
        """What was written since the last call."""
        text = "".join(self.parts)
        self.parts.clear()
        return text

    def write(self, text: str) -> None:
        if self.key is not None:
            self.key.append(text)
        if self._string is not None:
            self._string.append(text)
        else:
            (self.parts if self._brace is None else self._brace).append(text)

    def colon(self) -> None:
        self.write(": " if self._tidy else ":")

    def null_member(self) -> None:
        """The value of a key that has none."""
        self.write(": null" if self._tidy else ":null")

    def comma(self) -> None:
        """A comma was read, or is missing in front of the next element."""
        self._comma = [", " if self._tidy else ","]

    def element(self) -> None:
        """An element begins: the comma in front of it counts."""
        if self._comma:
            self.write("".join(self._comma))
            self._comma = []

    def drop_comma(self) -> None:
        """The object or list ends instead."""
        self._comma = []

    def blank(self, text: str) -> None:
        """White space, which is kept where the model writes JSON itself."""
        if self._tidy:
            return
        if self._comma:
            self._comma.append(text)
        else:
            self.write(text)

    def hold_string(self) -> None:
        """The next thing written is a string."""
        self._string = []

    def held_string(self) -> str | None:
        """The string that waited, as JSON, which is to be written now; None where none did."""
        text, self._string = self._string, None
        return None if text is None else "".join(text)

    def hold_brace(self) -> None:
        """The next thing written is a brace of Python's."""
        self._brace = []

    @property
    def holds_brace(self) -> bool:
        return self._brace is not None

    def brace_is_object(self) -> None:
        """A key follows the brace, or nothing: it opens an object."""
        if self._brace is not None:
            self.parts += self._brace
            self._brace = None

    def brace_is_list(self, element: str | None) -> None:
        """A value follows the brace: it opens a set, which becomes a list. element: the first one as JSON, where it was
        written as a key; else what was written of it stays."""
        held = "".join((self._brace or [])[1:])
        self.parts += ("[", held if element is None else element)
        self._brace = None
