"""The text that a parser reads: it grows at the end, is consumed at the front, and can be asked to remember.

The readers of this package are generators. One that needs more text than there is yields; it is resumed when text
was added. So a grammar is written down as straight code, and every decision waits until it cannot change any more,
which is what makes the result independent of how the text was cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TypeVar

from events.parsing.scanner import Scanner

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A reader: suspends for more text, returns what it read."""

SPACE = frozenset(" \t\r\n\f\v")
_BLANK = re.compile(r"[ \t\r\n\f\v]*")


class Source:
    """`text[position:]` is what there is to read. `final`: nothing will be added. `cut`: and the model was not done."""

    __slots__ = ("_parts", "_since", "cut", "final", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.final = self.cut = False
        self._parts: list[str] | None = None
        self._since = 0

    def add(self, text: str) -> None:
        if self._parts is not None:
            # The remembered part is about to be cut off the front of `text`.
            self._parts.append(self.text[self._since : self.position])
            self._since = 0
        # Only what is not read yet is copied, so that the cost is that of the delta and not of the whole text.
        self.text = self.text[self.position :] + text
        self.position = 0

    def remember(self, before: str = "") -> None:
        """Keep everything that is consumed from here on, behind `before`."""
        self._parts = [before]
        self._since = self.position

    def forget(self) -> None:
        self._parts = None

    @property
    def used_up(self) -> bool:
        """Whether all there is was read, and none of it is being remembered."""
        return self.position == len(self.text) and self._parts is None

    @property
    def remembered(self) -> str:
        """What was consumed since `remember`."""
        if self._parts is None:
            return ""
        return "".join(self._parts) + self.text[self._since : self.position]

    def peek(self) -> Reading[str]:
        """The next character, not consumed; "" at the end."""
        while self.position >= len(self.text):
            if self.final:
                return ""
            yield
        return self.text[self.position]

    def space(self, also: str = "") -> Reading[str]:
        """Consume white space (and any character of `also`), and return the character that follows."""
        while True:
            text, at, size = self.text, self.position, len(self.text)
            while at < size and (text[at] in SPACE or text[at] in also):
                at += 1
            self.position = at
            if at < size:
                return text[at]
            if self.final:
                return ""
            yield

    def blank(self) -> Reading[str]:
        """Consume white space and return it."""
        parts: list[str] = []
        while True:
            found = _BLANK.match(self.text, self.position)
            assert found is not None, "it matches no character too"
            parts.append(found.group())
            self.position = found.end()
            if self.final or self.position < len(self.text):
                return "".join(parts)
            yield

    def unread(self, text: str) -> None:
        """Put text back in front of what is to be read; where it still stands there, nothing is copied. Not while
        remembering."""
        # The usual case: the text was only just consumed.
        if self.position >= len(text) and self.text.startswith(text, self.position - len(text)):
            self.position -= len(text)
            return
        self.text = text + self.text[self.position :]
        self.position = 0

    def match(self, scanner: Scanner) -> Reading[str]:
        """Consume the marker that stands here, if one of the scanner's does; "" if none does."""
        while True:
            found = scanner.match(self.text, self.position, self.final)
            # A longer marker may still come: `<think>` and `<think_fast>`.
            if found is True:
                yield
                continue
            if found is False:
                return ""
            self.position += len(str(found))
            return str(found)

    def ahead(self, scanner: Scanner) -> Reading[str]:
        """The marker that stands here, not consumed; "" if none does."""
        found = yield from self.match(scanner)
        self.position -= len(found)
        return found

    def nearest(self, scanner: Scanner, limit: int) -> Reading[tuple[int, str | None]]:
        """Where the next marker stands, and which; None if `limit` characters have none. Nothing is consumed."""
        while True:
            stop, marker = scanner.find(self.text, self.position, self.final)
            if stop - self.position > limit:
                return stop, None
            if marker is not None or self.final:
                return stop, marker
            yield

    def until(self, scanner: Scanner, limit: int) -> Reading[tuple[str, str]]:
        """Consume up to the first marker and the marker itself: (text, marker). The marker is "" at the end of the
        text, or when the next `limit` characters hold none (and exactly those are consumed)."""
        parts: list[str] = []
        room = limit
        while True:
            stop, marker = scanner.find(self.text, self.position, self.final)
            # No marker can be completed any more: half of one at the end counts as cut off and is no text.
            if marker is None and self.final:
                stop = scanner.cut_off(self.text, self.position)
            if stop - self.position > room:
                stop, marker = self.position + room, ""
            parts.append(self.text[self.position : stop])
            room -= stop - self.position
            self.position = stop
            if marker is not None:
                self.position += len(marker)
                return "".join(parts), marker
            if self.final:
                self.position = len(self.text)
                return "".join(parts), ""
            yield
