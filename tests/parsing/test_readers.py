"""A reader of its own for a family that no description fits."""

from __future__ import annotations

import pytest

from events.formats.output_format import OutputFormat
from events.parsing.machine import READERS, Parser
from events.parsing.policy import Policy
from events.parsing.source import Reading, Scanner
from events.parsing.text_reader import TextReader
from tests.formats.reading import read, splits

TURNS = Scanner(("(thinks)", "(says)"))


def read_stage_directions(reader: TextReader) -> Reading[None]:
    """Thoughts and speech alternate behind stage directions, in any order."""
    while marker := (yield from reader.text(TURNS)):
        reader.output.enter("reasoning" if marker == "(thinks)" else "content")


def test_a_reader_plugs_into_the_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(READERS, "stage", read_stage_directions)
    output_format = OutputFormat(name="stage", reader="stage")
    text = "(thinks) To be? (says) Not to be. (thinks) Or"
    whole = read(output_format, [text], Policy())
    assert (whole.reasoning, whole.content.strip()) == ("To be?Or", "Not to be.")
    assert all(read(output_format, pieces, Policy()) == whole for pieces in splits(text, 10))


def test_an_unknown_reader_is_refused():
    with pytest.raises(KeyError):
        Parser(OutputFormat(reader="unknown"), Policy())
