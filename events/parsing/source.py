"""The text that a parser reads, and the markers in it.

A `Source` grows at the end, is consumed at the front, and can be asked to remember. The readers of this package are
generators: one that needs more text than there is yields, and is resumed when text was added. So a grammar is written
down as straight code, and every decision waits until it cannot change any more, which makes the result independent of
how the text was cut.

A `Scanner` looks for all of its markers at once and gives up no character that might still begin one. It searches only
what was not searched before, so reading a text costs time linear in its length however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from functools import lru_cache
from typing import TypeVar

_FEWEST = 5


def is_token(character: str) -> bool:
    """Whether a character stands for a token of the vocabulary (see events.parsing.pieces)."""
    return "\ud800" <= character <= "\udfff"


class Scanner:
    """A fixed set of markers. Build once per format (`scanner_for`), use for every text."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(sorted({marker for marker in markers if marker}, key=lambda m: (-len(m), m)))
        self._pattern = re.compile("|".join(map(re.escape, self.markers)) or r"(?!)")
        self._prefixes = frozenset(m[:size] for m in self.markers for size in range(1, len(m)))
        self._longest = max(map(len, self.markers), default=0)
        self._firsts = (
            re.compile(f"[{''.join(sorted({re.escape(m[0]) for m in self.markers}))}]|(?!)") if self.markers else None
        )

    def find(self, text: str, position: int, final: bool = False) -> tuple[int, str | None]:
        """The first marker at or after `position`: (where it starts, the marker), or (how far the text is certainly
        free of markers, None). `final`: no text will follow, so the beginning of a marker is just text."""
        if self._firsts is None or self._firsts.search(text, position) is None:
            return len(text), None  # the usual delta: no character of it begins a marker
        found = self._pattern.search(text, position)
        if found is None:
            return (len(text) if final else self._safe(text, position)), None
        start = found.start()
        # Near the end a longer marker may begin earlier than the one found.
        if not final and len(text) - start < self._longest:
            held = self._safe(text, position)
            if held <= start:
                return held, None
        return start, found.group()

    def begins_in(self, text: str) -> bool:
        """Whether some character of `text` begins a marker."""
        return self._firsts is not None and self._firsts.search(text) is not None

    def _safe(self, text: str, position: int) -> int:
        """The first place from which the rest of `text` could be the beginning of a marker, else its end."""
        if self._firsts is None:
            return len(text)
        for candidate in self._firsts.finditer(text, max(position, len(text) - self._longest + 1)):
            if text[candidate.start() :] in self._prefixes:
                return candidate.start()
        return len(text)

    def cut_off(self, text: str, position: int) -> int:
        """Where the marker begins that the end of `text` cut off, else its end. Only what can hardly be text counts: a
        few characters that no word begins with."""
        start = self._safe(text, position)
        partial = text[start:]
        long_enough = len(partial) >= _FEWEST or any(map(is_token, partial))
        return start if long_enough and not partial[0].isalnum() else len(text)

    def begins(self, text: str, position: int) -> bool:
        """Whether all that is left of `text` is the beginning of a marker, however short."""
        return len(text) - position < self._longest and text[position:] in self._prefixes

    def match(self, text: str, position: int, final: bool = False) -> str | bool:
        """The longest marker that stands exactly at `position`; True: not decided yet; False: none."""
        if not self.markers:
            return False
        if not final and (position >= len(text) or self.begins(text, position)):
            return True
        found = self._pattern.match(text, position)
        return found.group() if found else False


@lru_cache(maxsize=4096)
def scanner_for(markers: tuple[str, ...]) -> Scanner:
    """A scanner for these markers, shared by all requests that use the same ones."""
    return Scanner(markers)


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
