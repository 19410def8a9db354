"""Finding markers in text that arrives in pieces.

A `Scanner` looks for all of its markers at once and gives up no character that might still begin one. It searches
only what was not searched before, so reading a text costs time linear in its length however it is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

_FEWEST = 5


def is_token(character: str) -> bool:
    """Whether a character stands for a token of the vocabulary (see events.parsing.tokens)."""
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
