"""The code fence that models put around an answer which was asked for as JSON."""

from __future__ import annotations

from events.parsing.scanner import Scanner, scanner_for
from events.parsing.source import Reading, Source

FENCE = "```"
_OPENERS = scanner_for((f"{FENCE}json", f"{FENCE}JSON", f"{FENCE}\n", f"{FENCE}\r\n"))


def opening_fence(source: Source) -> Reading[bool]:
    """Consume a fence that opens here, behind white space."""
    blank = yield from source.blank()
    if (yield from source.match(_OPENERS)):
        return True
    source.unread(blank)
    return False


def closing_fence(source: Source, ends: Scanner) -> Reading[str]:
    """Behind a fence that was consumed: "" where nothing but the end (or one of the markers `ends`) follows; else what
    was read, which is text: a string may hold a fence."""
    blank = yield from source.blank()
    if not (yield from source.peek()) or (yield from source.ahead(ends)):
        return ""
    return FENCE + blank
