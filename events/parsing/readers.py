"""The readers of whole outputs, by name: how a family that no description fits plugs into the machine.

A reader is a generator that is given the parser. It reads `parser.source` (suspending for more text, see
`events.parsing.source`) and says what it read with the parser's own words:

    parser.text(scanner)           say text up to a marker, and return the marker ("" at the end)
    parser.enter("reasoning")      what follows is reasoning (or "content")
    parser.write(text)             say text of the current kind; white space around a change of kind is left out
    parser.show(text)              say text as content exactly as it is
    parser.read_message(name, "")  read the arguments of a call of `name`, or a call that is a JSON object
    parser.say(piece)              say any piece

It returns at the end of the output. Whatever else it needs it reads from `parser.format` and `parser.policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from events.parsing.channels import read_channels
from events.parsing.source import Reading

if TYPE_CHECKING:
    from events.parsing.machine import Parser

Reader = Callable[["Parser"], Reading[None]]

READERS: dict[str, Reader] = {"channels": read_channels}
"""A family's module adds its own: `READERS["name"] = read`, and its format says `reader="name"`."""


def reader_for(name: str, routed: bool) -> Reader | None:
    """The reader of a format, None for the machine's own. KeyError if the name is not known."""
    return READERS[name or "channels"] if name or routed else None
