"""The table of modes: complete, and the same in the documentation.

python -m tests.parsing.test_modes --write    # puts the table into docs/reading-output.md
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import pytest

from events.formats.output_format import OutputFormat
from events.formats.registry import FORMATS, named
from events.parsing.machine import Parser
from events.parsing.policy import Policy
from events.parsing.syntax import ACTIONS, DOES, KINDS, MAY_BE_CUT, MODES, Action, Kind, Mode, as_markdown
from events.parsing.text_reader import _STEPS
from tests.formats.reading import read

DOCUMENT = Path(__file__).parents[2] / "docs" / "reading-output.md"
BEGIN, CLOSE = "<!-- modes -->\n", "<!-- /modes -->"


def test_the_documented_table_is_the_one_that_the_parser_runs_on():
    documented = DOCUMENT.read_text("utf-8").partition(BEGIN)[2].partition(CLOSE)[0]
    assert documented == as_markdown(), "run python -m tests.parsing.test_modes --write"


def test_the_table_is_complete():
    """Each mode has a column, each kind of marker counts somewhere, each action is used and can be done."""
    assert set(ACTIONS) == set(get_args(Mode)) == set(MODES)
    assert {kind for kinds in ACTIONS.values() for kind in kinds} == set(get_args(Kind)) == set(KINDS)
    used = {action for kinds in ACTIONS.values() for action in kinds.values()}
    assert used == set(get_args(Action)) == set(DOES) == set(_STEPS)
    assert used > MAY_BE_CUT


@pytest.mark.parametrize("output_format", FORMATS.values(), ids=list(FORMATS))
def test_every_marker_of_a_mode_has_an_action(output_format: OutputFormat):
    parser = Parser(output_format, Policy())
    syntax = parser._reader.syntax
    for mode, scanner in syntax.scanners.items():
        assert {syntax.canonical(marker) for marker in scanner.markers} <= set(syntax.actions[mode])


def test_half_a_closing_marker_in_reasoning_was_cut_off():
    """Also where content looks for the very same markers, in which what closes nothing is text."""
    jamba = named("jamba")
    assert read(jamba, ["<think>Hm.</thi"], Policy(tools={})).reasoning == "Hm."
    assert read(jamba, ["Hm.</thi"], Policy(tools={})).content == "Hm.</thi"


if __name__ == "__main__" and "--write" in sys.argv:
    before, _, rest = DOCUMENT.read_text("utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + as_markdown() + CLOSE + rest.partition(CLOSE)[2], "utf-8")
