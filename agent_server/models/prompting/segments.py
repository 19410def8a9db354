"""Segments of a rendered prompt, each encoded once, so that a later turn of a thread encodes only its new messages.

A tokenizer first looks for its control tokens and encodes the text between two of them separately. A prompt's ids are
therefore those of its segments in order, where a segment is a control token with the text up to the next one. The cache
holds the ids of segments, whatever prompt they were in. It needs no knowledge of threads, and if a template renders an
earlier turn differently than before, that turn has other segments.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

from agent_server.bounded import BoundedCache

Key = str | tuple[str, ...]
"""A segment's text, or its parts, every second of which was spelled by a client and is not a control token. Only a
prompt's first segment, which may be encoded differently from others, begins without a control token."""
MAX_CHARACTERS = 8_000_000
"""Characters of all cached segments; about 30 MB with their ids."""
MAX_SEGMENT_CHARACTERS = 1_000_000
"""Longer segments are not cached."""


class LiteralFinder:
    """Finds occurrences of any of some texts: leftmost first and, at the same position, the longest, as tokenizers do
    with control tokens."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths = sorted({len(text) for text in texts}, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in texts}))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return the (start, end) of each occurrence, in order and without overlaps."""
        if self._first is None:
            return []
        spans: list[tuple[int, int]] = []
        position = 0
        while match := self._first.search(text, position):
            start = match.start()
            length = next((size for size in self._lengths if text[start : start + size] in self._texts), 0)
            if length:
                spans.append((start, start + length))
            position = start + max(length, 1)
        return spans


class Cuts:
    """The positions at which a text may be cut for a tokenizer: control tokens that it finds before normalisation.

    There are none for a tokenizer with a control token that strips white space before it or depends on the character
    before it, since a cut would remove that. White space after a control token belongs to its segment.
    """

    def __init__(self, tokenizer: Tokenizer, control: Mapping[int, AddedToken]) -> None:
        unnormalized = [token for token in control.values() if token.content and not token.normalized]
        looks_back = any(token.lstrip or token.single_word or token.content[0].isspace() for token in unnormalized)
        self._literals = LiteralFinder([] if looks_back else [token.content for token in unnormalized])
        self.digits = any(token.content[0].isdigit() or token.content[-1].isdigit() for token in unnormalized)
        """Whether digits may form a control token with the text next to them, so that the digits of stand-ins
        matter."""

    def starts(self, text: str) -> list[int]:
        """Return where the text's segments begin. The first may begin without a control token."""
        starts = [start for start, _ in self._literals.find(text)]
        return starts if starts[:1] == [0] else [0, *starts]


def key_of(segment: str, stand_ins: Mapping[str, str], pattern: str) -> Key:
    """Return a segment's cache key, in which stand-ins, which differ in the next prompt, are replaced by their
    originals."""
    parts = re.split(f"({pattern})", segment) if stand_ins else [segment]
    if len(parts) == 1:
        return segment
    return tuple(stand_ins.get(part, part) if place % 2 else part for place, part in enumerate(parts))


class SegmentCache:
    """An LRU cache of segments' ids, bounded by the number of characters. Thread-safe."""

    def __init__(self, most_characters: int = MAX_CHARACTERS) -> None:
        self._ids: BoundedCache[Key, array[int]] = BoundedCache(most_characters, lambda key, _: _characters(key))

    @property
    def characters(self) -> int:
        return self._ids.cost

    def get(self, keys: Iterable[Key]) -> list[array[int] | None]:
        """Return the ids of each key, None for those that are not cached."""
        return [self._ids.get(key) for key in keys]

    def put(self, key: Key, ids: Sequence[int]) -> None:
        if _characters(key) <= MAX_SEGMENT_CHARACTERS:
            self._ids.put(key, array("I", ids))


def _characters(key: Key) -> int:
    """Return the size of a key, with a constant for the overhead of its entry."""
    return 64 + (len(key) if isinstance(key, str) else sum(map(len, key)))
