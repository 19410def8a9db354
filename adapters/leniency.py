"""What is noticed about a request while it is read: fields that it does not need, which are left out, and warnings.

Clients send fields that this server does not know: those of other servers, and those of next month. What would change
the answer is refused by name; an unknown field is left out, told in a warning and counted. The notes of a request are
in a context variable, since they are taken anywhere in the readers of nine wires.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from adapters.errors import RequestError

MAX_NAME = 64
MOST_WARNINGS = 32
"""Of one request; a body may have any number of unknown fields."""
MEANT: Mapping[str, str] = {
    "chat_template": "the model's own template is used",
    "tools": "this endpoint has no tools",
    "functions": "this endpoint has no tools",
    "messages": "this endpoint takes no messages",
    "system": "give a system message",
    "instructions": "give a system message",
    "format": "use response_format",
    "options": "parameters stand beside the messages",
    "regex": "use structured_outputs",
    "ebnf": "use structured_outputs",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
}
"""Fields of other endpoints and servers that say what the answer is to be, with what to do instead: an answer that is
given without them is a wrong one, so they are refused where they are unknown."""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")


class Notes:
    """The notes of one request. strict: unknown fields are refused. count: called with the name of each unknown field,
    without the numbers of list items."""

    def __init__(self, *, strict: bool = False, count: Callable[[str], None] = lambda name: None) -> None:
        self.warnings: list[str] = []
        self.unknown: list[str] = []
        self._strict = strict
        self._count = count

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(sentence)

    def ignore(self, name: str) -> None:
        """Leave out an unknown field. RequestError where the server is strict."""
        shown = name[-MAX_NAME:]
        if self._strict:
            raise RequestError("invalid_request", f"{shown} is not a field of this request.", param=shown)
        if shown in self.unknown or len(self.unknown) >= MOST_WARNINGS:
            return
        self.unknown.append(shown)
        self._count(_NUMBERS.sub("", shown))
        self.warn(f"{shown} is not a field of this request and was ignored.")


T = TypeVar("T")
_NOTES: ContextVar[Notes | None] = ContextVar("request_notes", default=None)


@contextmanager
def noting(notes: Notes) -> Iterator[Notes]:
    """Take notes of what is read in this block."""
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def notes_of_request() -> Notes:
    """The notes of the request that is read; outside of any, notes that nobody reads."""
    return _NOTES.get() or Notes()


def known_only(values: Mapping[str, T], known: Container[str], at: str = "") -> dict[str, T]:
    """The values whose names are in `known`; the others are left out with a note."""
    notes = notes_of_request()
    found: dict[str, T] = {}
    for name, value in values.items():
        if name in known:
            found[name] = value
        elif not at and name in MEANT and value not in (None, [], {}, ""):
            raise RequestError("invalid_request", f"{name} is not supported here: {MEANT[name]}.", param=name)
        else:
            notes.ignore(f"{at}.{name}".lstrip("."))
    return found
