"""What the readers of arguments share: the call they write to, and what ends a call's arguments."""

from __future__ import annotations

from typing import Protocol

from events.parsing.schema import Schema
from events.parsing.source import Source
from events.parsing.syntax import CallSyntax, Syntax, substantial

NAME_LIMIT = 1024
"""Characters of an argument's name, at most."""


class NoCall(Exception):
    """The text that was read as a call is not one. `incomplete`: it was well-formed, but lacks a name or arguments."""

    def __init__(self, message: str, incomplete: bool = False) -> None:
        super().__init__(message)
        self.incomplete = incomplete


class ArgumentContext(Protocol):
    """The call that is being read. `write` takes JSON text; the first write announces the call."""

    source: Source
    syntax: Syntax
    calls: CallSyntax
    schema: Schema

    def write(self, text: str) -> None: ...


def argument_ends(calls: CallSyntax) -> tuple[str, ...]:
    """What ends a list of tagged arguments."""
    following = (calls.name_prefix,) if substantial(calls.name_prefix) else ()
    return tuple(dict.fromkeys((*calls.ends, *calls.starts, *following)))
