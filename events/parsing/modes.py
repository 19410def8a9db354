"""What each marker does in each mode of the reader: the one table that decides it.

`ACTIONS` is the parser's whole legality: mode → kind of marker → action. A kind that a mode does not name is not looked
for in that mode, so such a marker is text. Where one text is a marker of several kinds, the last one named counts.
`syntax` makes each mode's scanner from it, `text_reader` holds the actions, docs/reading-output.md shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

Mode = Literal["content", "undecided", "reasoning", "addressed", "fenced", "plain"]
MODES: Mapping[Mode, str] = {
    "content": "in content, where an output starts",
    "undecided": "in text that is reasoning or content, as its end marker or the end of the output will say",
    "reasoning": "in reasoning",
    "addressed": "in content that names its reader",
    "fenced": "in the code fence around an answer that was asked for as JSON",
    "plain": "behind text that ended all calls (strict boundaries)",
}

Kind = Literal[
    "reasoning start", "reasoning end", "kept reasoning end", "call in reasoning",
    "section start", "call start", "name start", "call end",
    "content start", "content end", "turn end", "address", "call bracket", "call fence", "fence",
]  # fmt: skip
KINDS: Mapping[Kind, str] = {
    "reasoning start": "`Reasoning.start`",
    "reasoning end": "`Reasoning.end`",
    "kept reasoning end": "`Reasoning.end`, where reasoning stays in the content",
    "call in reasoning": "`Reasoning.ended_by`",
    "section start": "`Tools.section_start`",
    "call start": "`Tools.call_start`",
    "name start": "`Tools.name_prefix`, where a call needs no opening marker",
    "call end": "the end markers of calls",
    "content start": "`Content.start`",
    "content end": "`Content.end`",
    "turn end": "`OutputFormat.drop`",
    "address": "`OutputFormat.address`",
    "call bracket": "`{` or `[`, in formats whose calls nothing marks",
    "call fence": "three back quotes, where tools are declared and unmarked calls are read",
    "fence": "three back quotes",
}

Action = Literal[
    "leave out", "open reasoning", "reopen reasoning", "close reasoning", "close what was not opened",
    "interrupt reasoning", "enter content", "end calls", "read calls", "read a name", "try a call", "try a fence",
    "close the fence", "show, and look for a call",
]  # fmt: skip
DOES: Mapping[Action, str] = {
    "leave out": "is not shown",
    "open reasoning": "reasoning begins; undecided where the format calls unclosed reasoning content",
    "reopen reasoning": "is left out in front of the first word; text behind it, or where the prompt opened it",
    "close reasoning": "reasoning ends, content begins",
    "close what was not opened": "is left out; text where the output cannot open reasoning",
    "interrupt reasoning": "reasoning ends or pauses, and the marker is read again as a call's; text within a sentence",
    "enter content": "reasoning ends, content begins",
    "end calls": "is left out behind a call, else text",
    "read calls": "the calls that begin here are read (strict boundaries: text, where the answer has begun)",
    "read a name": "is left out with the name and its end marker; text where no end marker follows",
    "try a call": "a call, where its first key or its function's name is one; else text",
    "try a fence": "a call, where the text announces one and the fence ends the message; else text",
    "close the fence": "is left out at the end of the answer, else text",
    "show, and look for a call": "is text; a call without an opening marker may follow",
}

_CONTENT: Mapping[Kind, Action] = {
    "kept reasoning end": "show, and look for a call",
    "call end": "end calls",
    "name start": "read calls",
    "call start": "read calls",
    "section start": "read calls",
    "address": "read a name",
    "content start": "leave out",
    "content end": "leave out",
    "turn end": "leave out",
    "reasoning end": "close what was not opened",
    "reasoning start": "open reasoning",
}
ACTIONS: Mapping[Mode, Mapping[Kind, Action]] = {
    "content": {**_CONTENT, "call bracket": "try a call", "call fence": "try a fence"},
    "undecided": {**_CONTENT, "reasoning end": "close reasoning", "call bracket": "try a call"},
    "reasoning": {
        "content end": "leave out",
        "turn end": "leave out",
        "reasoning start": "reopen reasoning",
        "call in reasoning": "interrupt reasoning",
        "content start": "enter content",
        "reasoning end": "close reasoning",
    },
    "addressed": {"content end": "leave out", "reasoning end": "close what was not opened"},
    "fenced": {**_CONTENT, "fence": "close the fence"},
    "plain": {"turn end": "leave out"},
}

MAY_BE_CUT: frozenset[Action] = frozenset({"read calls", "read a name", "leave out", "open reasoning"})
"""Actions of content whose marker counts by its first half too, at the end of an output: the output was cut off in it.
What closes something that was not opened is more likely text."""


def as_markdown() -> str:
    """The table for docs/reading-output.md: a row for each kind of marker, a column for each mode."""
    modes = get_args(Mode)
    lines = [f"| marker | {' | '.join(modes)} |", "|---" * (len(modes) + 1) + "|"]
    for kind, fields in KINDS.items():
        cells = [ACTIONS[mode].get(kind, "text") for mode in modes]
        lines.append(f"| {kind}: {fields} | {' | '.join(cells)} |")
    lines += ["", *(f"- *{mode}*: {meaning}" for mode, meaning in MODES.items())]
    lines += ["", *(f"- **{action}**: {meaning}" for action, meaning in DOES.items())]
    return "\n".join(lines) + "\n"
