"""Which tokens make up the text of a delta.

The parser leaves out markers and white space, and holds text back until it knows what it is. Clients that rebuild a
text from its tokens, as they can on OpenAI's wires, need exactly the tokens of that text.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from events.metadata import Scored

Span = tuple[int, int]
_MOST_COMPARED = 4096


class _Row(NamedTuple):
    """A token. text: the part that is not shown yet. listed: whether the token was returned with an earlier part."""

    row: Scored
    text: str
    listed: bool = False


class VisibleText:
    """Finds the tokens of each text in the tokens that were fed and have not been shown yet."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def add(self, row: Scored, text: str) -> None:
        """Add a token. text: what was fed of it to the parser; empty for a special token that is left out."""
        if text or not row[1]:
            self._rows.append(_Row(row, text))

    def split(self, rows: list[Scored]) -> tuple[list[Scored], list[Scored]]:
        """Split rows into those that are shown or dropped and those that may still be shown, as a whole."""
        held = next((each.row for each in self._rows if each.text == each.row[1]), None)
        index = next((index for index, row in enumerate(rows) if row is held), len(rows))
        return rows[:index], rows[index:]

    def take(self, texts: Sequence[str], unread: int, *, calls: bool = False) -> list[list[Scored]]:
        """Return the rows of the tokens of each text, in order. A token that is only partly in a text has that part as
        its text; the rest, such as a space that was held back, is part of the next token's text. Tokens before the last
        text are dropped, since text is never shown out of order; those behind it may still be shown.

        unread: the characters at the end that the parser has not read yet. calls: parts of calls were read as well, so
        only the last token may still be shown.
        """
        whole = "".join(each.text for each in self._rows)
        spans = _spans(whole[: len(whole) - unread], texts)
        rows_by_text: list[list[Scored]] = []
        for text, found in zip(texts, spans, strict=True):
            rows = [row for span in found for row in self._slice(span)]
            # White space of content that reasoning or a call interrupted belongs to tokens that are dropped by now.
            blank = text[: len(text) - len("".join(row[1] for row in rows))]
            if rows and blank and blank.isspace():
                rows[0] = _part(rows[0], blank + rows[0][1])
            rows_by_text.append(rows)
        shown = max((found[-1][1] for found in spans if found), default=0)
        if calls and self._rows:
            shown = max(shown, len(whole) - len(self._rows[-1].text))
        self._rows = self._behind(shown, [span for found in spans for span in found])
        return rows_by_text

    def _slice(self, span: Span) -> list[Scored]:
        """Return the rows of a part of the text. A token without text belongs to the character that follows it."""
        start, end = span
        rows: list[Scored] = []
        rest = ""  # of tokens that were listed before
        position = 0
        for row, text, listed in self._rows:
            part = text[max(0, start - position) : max(0, end - position)]
            if listed:
                rest += part
            elif part or (not text and start <= position < end):
                rows.append(_part(row, rest + part))
                rest = ""
            position += len(text)
        if rest:  # given its token, the rest of it was certain
            row = self._rows[0].row
            rows.append((row[0], rest, None if row[2] is None else 0.0, []))
        return rows

    def _behind(self, shown: int, spans: Sequence[Span]) -> list[_Row]:
        """Return the tokens that may still be shown, whole or in part."""
        remaining: list[_Row] = []
        position = 0
        for row, text, listed in self._rows:
            if position + len(text) > shown or (not text and position >= shown):
                listed = listed or any(end > position for _, end in spans)
                remaining.append(_Row(row, text[max(0, shown - position) :], listed))
            position += len(text)
        return remaining


def _part(row: Scored, text: str) -> Scored:
    return row if row[1] == text else (row[0], text, row[2], row[3])


def _spans(whole: str, texts: Sequence[str]) -> list[list[Span]]:
    """Return the parts of `whole` that are each of the texts: at its beginning if nothing was left out, and otherwise
    behind what was left out, since only the end of a marker or white space may follow."""
    spans: list[list[Span]] = []
    begin = 0
    while len(spans) < len(texts) and whole.startswith(texts[len(spans)], begin):
        spans.append([(begin, begin + len(texts[len(spans)]))])
        begin = spans[-1][0][1]
    behind: list[list[Span]] = []
    end = len(whole)
    for text in reversed(texts[len(spans) :]):
        start = whole.rfind(text, begin, end)
        span = [(start, start + len(text))] if start >= 0 else _common_spans(whole, text, begin, end)
        behind.insert(0, span)
        end = span[0][0] if span else end
    return spans + behind


def _common_spans(whole: str, text: str, begin: int, end: int) -> list[Span]:
    """Return the parts of `whole` that make up a text in which something was left out, such as a marker between two
    words. Text of other origin has none."""
    begin = max(begin, end - _MOST_COMPARED)
    blocks = SequenceMatcher(None, whole[begin:end], text[-_MOST_COMPARED:], autojunk=False).get_matching_blocks()
    return [(begin + block.a, begin + block.a + block.size) for block in blocks if block.size]
