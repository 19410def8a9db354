"""Segments of a rendered prompt, each encoded once: a later turn of a thread encodes its new messages alone.

A tokenizer looks for its control tokens first, and encodes what lies between two of them by itself. So a prompt's ids
are those of its segments, one after the other, where a segment is a control token with the text up to the next. What
is remembered is the ids of a segment, whatever prompt it stood in: nothing has to be known about threads, and where a
template writes an earlier turn differently than before, that turn's segments are other ones.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence

from tokenizers import AddedToken, Tokenizer

Key = str | tuple[str, ...]
"""A segment's text, or its parts, every second of which was spelled by a client and is no control token. A prompt's
first segment, which may be encoded differently than others, is the only one that begins without a control token."""
MOST_CHARACTERS = 8_000_000
"""Of all segments that are remembered: some 30 MB with their ids."""
LARGEST = 1_000_000
"""Characters above which a segment is not remembered."""


class Literals:
    """Some texts, and where they stand in others: the leftmost first, of those that begin there the longest, as
    tokenizers look for control tokens."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = frozenset(texts)
        self._lengths = sorted({len(text) for text in texts}, reverse=True)
        firsts = "".join(re.escape(first) for first in sorted({text[0] for text in texts}))
        self._first = re.compile(f"[{firsts}]") if firsts else None

    def find(self, text: str) -> list[tuple[int, int]]:
        """(start, end) of each, in order, not overlapping."""
        if self._first is None:
            return []
        found: list[tuple[int, int]] = []
        position = 0
        while match := self._first.search(text, position):
            start = match.start()
            length = next((size for size in self._lengths if text[start : start + size] in self._texts), 0)
            if length:
                found.append((start, start + length))
            position = start + max(length, 1)
        return found


class Cuts:
    """Where a tokenizer's texts may be cut: at control tokens that it finds before it normalises anything.

    There are none for a tokenizer with a control token that takes white space before it or looks at the letter before
    it, since a cut would take that away. White space behind a control token belongs to its segment.
    """

    def __init__(self, tokenizer: Tokenizer, control: Mapping[int, AddedToken]) -> None:
        found_first = [token for token in control.values() if token.content and not token.normalized]
        looks_back = any(token.lstrip or token.single_word or token.content[0].isspace() for token in found_first)
        self._literals = Literals([] if looks_back else [token.content for token in found_first])
        self.digits = any(token.content[0].isdigit() or token.content[-1].isdigit() for token in found_first)
        """Whether digits next to text may form a control token with it, so that which digits they are matters."""

    def starts(self, text: str) -> list[int]:
        """Where the text's segments begin. The first may begin without a control token."""
        starts = [start for start, _ in self._literals.find(text)]
        return starts if starts[:1] == [0] else [0, *starts]


def key_of(segment: str, stand_ins: Mapping[str, str], pattern: str) -> Key:
    """By what a segment is remembered: its stand-ins, which are other ones in the next prompt, by what they stand
    for."""
    parts = re.split(f"({pattern})", segment) if stand_ins else [segment]
    if len(parts) == 1:
        return segment
    return tuple(stand_ins.get(part, part) if place % 2 else part for place, part in enumerate(parts))


class Remembered:
    """Segments' ids, those used last; the oldest go when there are too many characters. Safe in several threads."""

    def __init__(self, most_characters: int = MOST_CHARACTERS) -> None:
        self._most = most_characters
        self._ids: OrderedDict[Key, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.characters = 0

    def get(self, keys: Iterable[Key]) -> list[array[int] | None]:
        """The ids of each, None where they are not known."""
        with self._lock:
            found = []
            for key in keys:
                ids = self._ids.get(key)
                if ids is not None:
                    self._ids.move_to_end(key)
                found.append(ids)
            return found

    def put(self, key: Key, ids: Sequence[int]) -> None:
        size = _characters(key)
        if size > LARGEST:
            return
        with self._lock:
            if key not in self._ids:
                self._ids[key] = array("I", ids)
                self.characters += size
            while self.characters > self._most:
                oldest, _ = self._ids.popitem(last=False)
                self.characters -= _characters(oldest)


def _characters(key: Key) -> int:
    """With something for the entry itself."""
    return 64 + (len(key) if isinstance(key, str) else sum(map(len, key)))
