"""The text that a parser reads, and the markers in it.

A `Source` grows at the end, is consumed at the front, and can remember what was consumed. The readers of this package
are generators: a reader that needs more text yields, and is resumed when text was added. So a grammar is
straightforward code, and every decision is delayed until further text cannot change it, which makes the result
independent of how the text was split.

A `Scanner` searches for all of its markers at once and never releases a character that might begin one. It searches
text only once, so the cost of reading is linear in the length of the text, however it is split.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from functools import lru_cache
from typing import TypeVar

_FEWEST = 5


def is_token(character: str) -> bool:
    """Return whether a character represents a token of the vocabulary (see events.parsing.pieces)."""
    return "\ud800" <= character <= "\udfff"


class Scanner:
    """A fixed set of markers. Create it once per format with `scanner_for` and use it for every text."""

    def __init__(self, markers: Iterable[str]) -> None:
        self.markers = tuple(sorted({marker for marker in markers if marker}, key=lambda m: (-len(m), m)))
        self._pattern = re.compile("|".join(map(re.escape, self.markers)) or r"(?!)")
        self._prefixes = frozenset(m[:size] for m in self.markers for size in range(1, len(m)))
        self._longest = max(map(len, self.markers), default=0)
        self._firsts = (
            re.compile(f"[{''.join(sorted({re.escape(m[0]) for m in self.markers}))}]|(?!)") if self.markers else None
        )

    def find(self, text: str, position: int, final: bool = False) -> tuple[int, str | None]:
        """Find the first marker at or after `position`. Return (its start, the marker), or (the end of the text that
        certainly has no marker, None).

        final: no text will follow, so the beginning of a marker is just text.
        """
        if self._firsts is None or self._firsts.search(text, position) is None:
            return len(text), None  # the usual delta: no character of it begins a marker
        match = self._pattern.search(text, position)
        if match is None:
            return (len(text) if final else self._safe(text, position)), None
        start = match.start()
        # Near the end a longer marker may begin before this one.
        if not final and len(text) - start < self._longest:
            safe_end = self._safe(text, position)
            if safe_end <= start:
                return safe_end, None
        return start, match.group()

    def begins_in(self, text: str) -> bool:
        """Return whether any character of `text` can begin a marker."""
        return self._firsts is not None and self._firsts.search(text) is not None

    def _safe(self, text: str, position: int) -> int:
        """Return the first index from which the rest of `text` could be the beginning of a marker, or its length."""
        if self._firsts is None:
            return len(text)
        for candidate in self._firsts.finditer(text, max(position, len(text) - self._longest + 1)):
            if text[candidate.start() :] in self._prefixes:
                return candidate.start()
        return len(text)

    def cut_off(self, text: str, position: int) -> int:
        """Return the start of a marker that the end of `text` cuts off, or the text's length. Only partial markers that
        are unlikely to be text count: of several characters and not beginning like a word."""
        start = self._safe(text, position)
        partial = text[start:]
        long_enough = len(partial) >= _FEWEST or any(map(is_token, partial))
        return start if long_enough and not partial[0].isalnum() else len(text)

    def begins(self, text: str, position: int) -> bool:
        """Return whether the rest of `text` is the beginning of a marker, however short."""
        return len(text) - position < self._longest and text[position:] in self._prefixes

    def match(self, text: str, position: int, final: bool = False) -> str | bool:
        """Return the longest marker exactly at `position`, True if that is undecided yet, or False if there is none."""
        if not self.markers:
            return False
        if not final and (position >= len(text) or self.begins(text, position)):
            return True
        match = self._pattern.match(text, position)
        return match.group() if match else False


@lru_cache(maxsize=4096)
def scanner_for(markers: tuple[str, ...]) -> Scanner:
    """Return a scanner for these markers, shared by all requests with the same ones."""
    return Scanner(markers)


T = TypeVar("T")
Reading = Generator[None, None, T]
"""A reader: it yields to wait for more text and returns its result."""

SPACE = frozenset(" \t\r\n\f\v")
_BLANK = re.compile(r"[ \t\r\n\f\v]*")


class Source:
    """The text to be read, `text[position:]`. final: no text will be added. cut: the output was cut off."""

    __slots__ = ("_parts", "_since", "cut", "final", "position", "text")

    def __init__(self) -> None:
        self.text = ""
        self.position = 0
        self.final = self.cut = False
        self._parts: list[str] | None = None
        self._since = 0

    def add(self, text: str) -> None:
        if self._parts is not None:
            # The remembered part is about to be removed from the front of `text`.
            self._parts.append(self.text[self._since : self.position])
            self._since = 0
        # Only unread text is copied, so the cost is proportional to the delta and not to the whole text.
        self.text = self.text[self.position :] + text
        self.position = 0

    def remember(self, before: str = "") -> None:
        """Remember everything that is consumed from here on, preceded by `before`."""
        self._parts = [before]
        self._since = self.position

    def forget(self) -> None:
        self._parts = None

    @property
    def used_up(self) -> bool:
        """Whether all text was read and none of it is being remembered."""
        return self.position == len(self.text) and self._parts is None

    @property
    def remembered(self) -> str:
        """The text that was consumed since `remember`."""
        if self._parts is None:
            return ""
        return "".join(self._parts) + self.text[self._since : self.position]

    def peek(self) -> Reading[str]:
        """Return the next character without consuming it; "" at the end."""
        while self.position >= len(self.text):
            if self.final:
                return ""
            yield
        return self.text[self.position]

    def space(self, also: str = "") -> Reading[str]:
        """Consume white space and the characters in `also`. Return the next character, which is not consumed."""
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
            match = _BLANK.match(self.text, self.position)
            assert match is not None, "the pattern also matches the empty string"
            parts.append(match.group())
            self.position = match.end()
            if self.final or self.position < len(self.text):
                return "".join(parts)
            yield

    def unread(self, text: str) -> None:
        """Put text back before the unread text. Text that was just consumed is not copied. Not allowed while
        remembering."""
        # The usual case: the text was only just consumed.
        if self.position >= len(text) and self.text.startswith(text, self.position - len(text)):
            self.position -= len(text)
            return
        self.text = text + self.text[self.position :]
        self.position = 0

    def match(self, scanner: Scanner) -> Reading[str]:
        """Consume and return the scanner's marker at the current position; "" if there is none."""
        while True:
            marker = scanner.match(self.text, self.position, self.final)
            # A longer marker may still arrive: `<think>` and `<think_fast>`.
            if marker is True:
                yield
                continue
            if marker is False:
                return ""
            self.position += len(str(marker))
            return str(marker)

    def ahead(self, scanner: Scanner) -> Reading[str]:
        """Return the marker at the current position without consuming it; "" if there is none."""
        marker = yield from self.match(scanner)
        self.position -= len(marker)
        return marker

    def nearest(self, scanner: Scanner, limit: int) -> Reading[tuple[int, str | None]]:
        """Return index and text of the next marker without consuming anything; None if `limit` characters have none."""
        while True:
            stop, marker = scanner.find(self.text, self.position, self.final)
            if stop - self.position > limit:
                return stop, None
            if marker is not None or self.final:
                return stop, marker
            yield

    def until(self, scanner: Scanner, limit: int) -> Reading[tuple[str, str]]:
        """Consume text up to the first marker and the marker itself. Return (text, marker).

        The marker is "" at the end of the text, and if the next `limit` characters have none, which are consumed then.
        """
        parts: list[str] = []
        room = limit
        while True:
            stop, marker = scanner.find(self.text, self.position, self.final)
            # No marker can be completed any more: a partial one at the end was cut off and is not text.
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
