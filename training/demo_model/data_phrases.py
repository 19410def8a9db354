"""Phrases from the text files in `phrases/`: sections with a thought, an answer and many ways to ask.

A file has sections. `[name]` opens one, `thought: ` and `answer: ` follow, and every other line is a way to ask.
`do: ` marks the end of "how do I ..." or "can you ...". In a line, `(a|b|)` stands for any one of the alternatives,
the empty one included. A line belongs with all of its alternatives to one side of the split.
"""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from training.demo_model.data_values import Values, side_of

FOLDER = Path(__file__).parent / "phrases"
CHOICE = re.compile(r"\(([^()]*\|[^()]*)\)")
HEAD = re.compile(r"\[(.+)\]")
DO = "do: "


class Section(NamedTuple):
    """Ways to ask for one thing: whole questions, ends of questions, and what they lead to."""

    name: str
    thought: str
    answer: str
    whole: tuple[str, ...]
    ends: tuple[str, ...]

    def lines(self, held_out: bool) -> tuple[str, ...]:
        """Return the lines of one side of the split, those of `ends` with their mark."""
        return tuple(
            mark + line for mark, lines in (("", self.whole), (DO, self.ends)) for line in _side(lines, held_out)
        )


def _side(lines: tuple[str, ...], held_out: bool) -> tuple[str, ...]:
    """Return one side of the lines; one alone is training's."""
    if len(lines) > 1:
        return side_of(lines, held_out)
    return () if held_out else lines


@cache
def read_sections(name: str) -> tuple[Section, ...]:
    """Read the sections of a file in `phrases/`; ValueError names a line outside of any section."""
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if head := HEAD.fullmatch(line):
            current = sections.setdefault(head[1], [])
        elif line and current is None:
            raise ValueError(f"{name}.txt: {line!r} stands before the first [section]")
        elif line and current is not None:
            current.append(line)
    return tuple(_section(name, lines) for name, lines in sections.items())


def _section(name: str, lines: list[str]) -> Section:
    fields = {"thought": "", "answer": ""}
    asked: list[str] = []
    for line in lines:
        key, _, value = line.partition(": ")
        if key in fields:
            fields[key] = value
        else:
            asked.append(line)
    ends = tuple(dict.fromkeys(line.removeprefix(DO) for line in asked if line.startswith(DO)))
    whole = tuple(dict.fromkeys(line for line in asked if not line.startswith(DO)))
    return Section(name, fields["thought"], fields["answer"], whole, ends)


def choose(values: Values, line: str) -> str:
    """Return the line with one of each of its alternatives; training reads `,?` as a comma or none."""
    if ",?" in line and not values.held_out:
        line = line.replace(",?", values.pick((",", "")))
    while CHOICE.search(line):
        line = CHOICE.sub(lambda found: values.pick(found[1].split("|")), line)
    return " ".join(line.split())


@cache
def kept_apart(name: str) -> frozenset[str]:
    """Return the plain lines of a file that evaluation asks, which no alternatives of training may spell."""
    held = (line for section in read_sections(name) for line in section.lines(True))
    return frozenset(line.removeprefix(DO) for line in held)


def draw(values: Values, file: str, section: Section) -> tuple[str, bool]:
    """Return a phrase of this side of the split, and whether it is an end of a question."""
    while True:
        line = values.pick(section.lines(values.held_out))
        text = choose(values, line.removeprefix(DO))
        if values.held_out or text not in kept_apart(file):
            return text, line.startswith(DO)
