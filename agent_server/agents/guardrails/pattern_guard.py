"""A guard that knows what it looks for: regular expressions (RE2, linear in time) and phrases.

On a stream it holds back what may be the beginning of a match, and nothing else, so that no part of a match leaves,
however the text is cut into tokens.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any

import re2

from agent_server.agents.guardrails.beginnings import beginnings
from agent_server.agents.guardrails.guard import LARGE, WHERE, Where

MOST_HELD = 8192
"""Characters that may wait for the end of a match. What is undecided for longer counts as a match."""

WHITE_SPACE = "[\\s\\x0b\\x1c-\\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
"""What Python splits words at (`str.split`); RE2's `\\s` is ASCII's alone."""


class PatternGuard:
    """Forbids texts in which one of the patterns or phrases is found. Raises ValueError for one that cannot be used.

    phrases: taken as they are, with any white space for a space. ignore_case: of both.
    """

    newest = False

    def __init__(
        self,
        name: str,
        *,
        patterns: Sequence[str] = (),
        phrases: Sequence[str] = (),
        on: Iterable[Where] = WHERE,
        ignore_case: bool = True,
        message: str = "",
        stops: bool = True,
    ) -> None:
        if not patterns and not phrases:
            raise ValueError(f"the guard {name} has neither patterns nor phrases")
        self.name = name
        self.on = frozenset(on)
        self.message = message
        self.stops = stops
        sources = [*patterns, *(_phrase(each) for each in phrases)]
        for source in sources:
            _check(name, source)
        flag = "(?i)" if ignore_case else ""
        found = flag + "|".join(f"(?:{each})" for each in sources)
        begun = "|".join(beginnings(flag + each) for each in sources)
        self.found, self.begun = _compiled(name, found), _compiled(name, rf"(?:{begun})\z")
        self.either = _compiled(name, rf"{found}|(?:{begun})\z")
        """Both: what nearly every delta has neither of is asked once."""

    def watch(self) -> PatternWatch:
        return PatternWatch(self)

    async def forbids(self, text: str) -> bool:
        if len(text) > LARGE:
            return await asyncio.to_thread(lambda: self.found.search(encodable(text)) is not None)
        return self.found.search(encodable(text)) is not None


class PatternWatch:
    def __init__(self, guard: PatternGuard) -> None:
        self._guard = guard
        self._text = ""
        """What a match may still begin in, and the character before it, which \\b and ^ look at."""
        self._first = 0
        """Where in it a match may begin."""
        self._offset = 0
        """Where in the message it begins; below zero where it is of the message before."""

    def restart(self) -> None:
        self._offset = -len(self._text)

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        self._text += encodable(delta)
        text, first, keep = self._text, self._first, len(self._text)
        if self._guard.either.search(text, first) is not None:
            match = self._guard.found.search(text, first)
            # A match that touches the end is decided by what follows it: \b, $, or more of the match.
            if match is not None and (last or match.end() < len(text)):
                return max(self._offset + match.start(), 0), True
            held = self._guard.begun.search(text, first)
            keep = len(text) if held is None else held.start()
        if len(text) - keep > MOST_HELD:
            return max(self._offset + keep, 0), True
        end = self._offset + len(text)
        free = max(self._offset + keep, 0)
        drop = max(keep - 1, 0)
        self._text, self._first, self._offset = text[drop:], keep - drop, self._offset + drop
        return (end if last else free), False


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 and so RE2 do not have."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _phrase(phrase: str) -> str:
    words = phrase.split()
    if not words:
        raise ValueError("a phrase is empty")
    return WHITE_SPACE.join("".join(re.escape(each) if each.isascii() else each for each in word) for word in words)


def _check(name: str, source: str) -> None:
    """ValueError for a pattern that would forbid everything."""
    if _compiled(name, source).search("") is not None:
        raise ValueError(f"the guard {name}: {source} matches the empty text, so it would stop everything")


def _compiled(name: str, source: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(source, options)
    except re2.error as error:
        said = error.args[0] if error.args else error
        told = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        raise ValueError(f"the guard {name}: RE2 does not take {source[:200]}: {told}") from None
