"""The readers of whole outputs, by name: how a family that no description fits plugs into the parser.

A reader is a generator that is given a `TextReader`. It reads `reader.source` (suspending for more text, see
`events.parsing.source`) and says what it read with these words:

    reader.text(scanner)                say text up to a marker, and return the marker ("" at the end)
    reader.output.enter("reasoning")    what follows is reasoning (or "content")
    reader.output.write(text)           say text of the current kind; white space around a change of kind is left out
    reader.output.show(text)            say text as content exactly as it is
    reader.read_message(name, "")       read the arguments of a call of `name`, or a call that is a JSON object; returns
                                        the text of what was no call, to be shown; else None
    reader.output.say(piece)            say any piece

It returns at the end of the output. Whatever else it needs it reads from `reader.format` and `reader.policy`.
"""

from __future__ import annotations

from collections.abc import Callable

from events.formats.output_format import OutputFormat
from events.parsing.channels import read_channels
from events.parsing.source import Reading
from events.parsing.text_reader import TextReader

Reader = Callable[[TextReader], Reading[None]]

READERS: dict[str, Reader] = {"text": TextReader.read, "channels": read_channels}
"""A family's module adds its own: `READERS["name"] = read`, and its format says `reader="name"`."""


def reader_for(output_format: OutputFormat) -> Reader:
    """The reader of a format. KeyError if the format names one that is not known."""
    return READERS[output_format.reader or ("channels" if output_format.channels else "text")]
