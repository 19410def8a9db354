"""An OutputFormat prepared for parsing: markers without outer white space, a scanner for each situation, and the table
of what each marker does in each mode of the reader.

`ACTIONS` is the complete table: mode → kind of marker → action. A kind that is missing in a mode is not searched for
there, so such a marker is text. If one text is a marker of several kinds, the last one in the table counts.
`text_reader` implements the actions, docs/reading-output.md shows the table. A `Syntax` is created once per format and
shared by all requests (`syntax_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

from events.formats.output_format import OutputFormat, Tools
from events.parsing.source import Scanner, is_token, scanner_for

FENCE = "```"

Mode = Literal["content", "undecided", "reasoning", "addressed", "fenced", "plain"]
MODES: Mapping[Mode, str] = {
    "content": "in content, where an output starts",
    "undecided": "in text that may be reasoning or content, until its end marker or the end of the output decides",
    "reasoning": "in reasoning",
    "addressed": "in content that is addressed to a recipient",
    "fenced": "in the code fence around an answer that the request wants as JSON",
    "plain": "after text that ended all calls (strict boundaries)",
}

Kind = Literal[
    "reasoning start", "reasoning end", "kept reasoning end", "call in reasoning",
    "section start", "call start", "name start", "call end",
    "content start", "content end", "turn end", "address", "call bracket", "call fence", "fence",
]  # fmt: skip
KINDS: Mapping[Kind, str] = {
    "reasoning start": "`Reasoning.start`",
    "reasoning end": "`Reasoning.end`",
    "kept reasoning end": "`Reasoning.end`, if reasoning stays in the content",
    "call in reasoning": "`Reasoning.ended_by`",
    "section start": "`Tools.section_start`",
    "call start": "`Tools.call_start`",
    "name start": "`Tools.name_prefix`, if a call needs no opening marker",
    "call end": "the end markers of calls",
    "content start": "`Content.start`",
    "content end": "`Content.end`",
    "turn end": "`OutputFormat.drop`",
    "address": "`OutputFormat.address`",
    "call bracket": "`{` or `[`, in formats whose calls have no markers",
    "call fence": "three back quotes, if tools are declared and unmarked calls are accepted",
    "fence": "three back quotes",
}

Action = Literal[
    "leave out", "open reasoning", "reopen reasoning", "close reasoning", "close what was not opened",
    "interrupt reasoning", "enter content", "end calls", "read calls", "read a name", "try a call", "try a fence",
    "close the fence", "show, and look for a call",
]  # fmt: skip
DOES: Mapping[Action, str] = {
    "leave out": "is not shown",
    "open reasoning": "reasoning begins; undecided if the format counts unclosed reasoning as content",
    "reopen reasoning": "is left out before the first word; text after it, or if the prompt opened the reasoning",
    "close reasoning": "reasoning ends, content begins",
    "close what was not opened": "is left out; text if the output cannot open reasoning",
    "interrupt reasoning": "reasoning ends or pauses for a call that begins here; else text",
    "enter content": "reasoning ends, content begins",
    "end calls": "is left out after a call, else text",
    "read calls": "the calls that begin here are read (strict boundaries: text, once the answer has begun)",
    "read a name": "is left out with the name and its end marker; text if no end marker follows",
    "try a call": "a call, if its first key or its function's name is one of a call; else text",
    "try a fence": "a call, if the text before announces one and the fence ends the message; else text",
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
"""Actions of content whose marker counts even if it is partial at the end of an output, which was cut off in it. A
partial closer of something that was not opened is more likely text."""


def as_markdown() -> str:
    """Render the table for docs/reading-output.md: a row for each kind of marker, a column for each mode."""
    modes = get_args(Mode)
    lines = [f"| marker | {' | '.join(modes)} |", "|---" * (len(modes) + 1) + "|"]
    for kind, fields in KINDS.items():
        cells = [ACTIONS[mode].get(kind, "text") for mode in modes]
        lines.append(f"| {kind}: {fields} | {' | '.join(cells)} |")
    lines += ["", *(f"- *{mode}*: {meaning}" for mode, meaning in MODES.items())]
    lines += ["", *(f"- **{action}**: {meaning}" for action, meaning in DOES.items())]
    return "\n".join(lines) + "\n"


_INDEX = re.compile(r"\{index\}")


@dataclass(frozen=True)
class CallSyntax:
    """The tool-call markers of a format; "" for a marker that it does not have."""

    tools: Tools
    section_start: str
    section_end: str
    call_start: str
    call_end: str
    separator: str
    opens_array: bool
    name_prefix: str
    name_parts: tuple[str, ...]
    arguments_start: str
    arguments_end: str
    argument_name: str
    argument_value: str
    argument_end: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]

    @property
    def is_unmarked(self) -> bool:
        """Whether a call is a JSON object without markers, or without markers that models always write, so that it may
        follow text."""
        announced = self.call_start or self.section_end or self.opens_array
        return self.tools.style == "json" and not (announced or self.tools.json.array_only)

    @property
    def embedded_openers(self) -> tuple[str, ...]:
        """The brackets with which a call may begin after text: of JSON without markers, alone or in a list, or of a
        list of Python calls without markers or whose markers models leave out."""
        if self.is_unmarked:
            return ("{", "[")
        bare = self.tools.bare == "always" or not (self.section_start or self.call_start or self.tools.name_prefix)
        return ("[",) if self.tools.arguments.style == "python" and bare else ()

    @property
    def name_end(self) -> str:
        """The end of a call's header: the last literal part of the name's suffix."""
        return self.name_parts[-1] if self.name_parts else ""


def substantial(marker: str) -> bool:
    """Return whether a marker is more than punctuation. A token of the vocabulary, which is one character here, always
    is."""
    return len(marker) > 2 or any(map(is_token, marker))


def distinctive(marker: str) -> bool:
    """Return whether a marker is unlikely to occur in prose: a tag or a special token, not punctuation or a word."""
    return substantial(marker) and not marker.isalnum() and any(not c.isalnum() and c not in "_-.:`" for c in marker)


def is_special(marker: str) -> bool:
    """Return whether a marker has characters that neither text nor mark-up languages use: `<|`, `<｜`, `｜DSML｜`, a
    token."""
    return any(is_token(c) or c in "|｜" for c in marker)


def is_tag(marker: str) -> bool:
    """Return whether a marker begins like a tag or with a token of the vocabulary."""
    return distinctive(marker) and (marker[0] in "<[]" or is_token(marker[0]))


@lru_cache(maxsize=1024)
def call_syntax(tools: Tools, messages: tuple[str, ...] = (), message_ends: tuple[str, ...] = ()) -> CallSyntax:
    """Prepare a format's call markers. messages, message_ends: markers that begin and end messages, if calls are
    messages."""
    a = tools.arguments
    bracketed = tools.style == "json" or a.style == "python"
    section_start, section_end = tools.section_start.strip(), tools.section_end.strip()
    opens_array = bracketed and section_start.endswith("[")
    # The bracket is optional after a marker, since models leave it out.
    if opens_array and (distinctive(section_start[:-1].strip()) or section_start == "["):
        section_start, opens_array = section_start[:-1].strip(), False
    if bracketed and section_end.startswith("]"):
        section_end = section_end[1:].strip()
    call_start, call_end = tools.call_start.strip(), tools.call_end.strip()
    parts = tuple(part.strip() for part in _INDEX.split(tools.name_suffix) if part.strip())
    arguments_end = a.end.strip()
    starts = tuple(marker for marker in (section_start, call_start, *messages) if marker)
    # Punctuation alone is not an end marker: `)` and `}` occur in arguments too.
    own = tuple(m for m in (arguments_end, call_end, section_end) if substantial(m))
    ends = tuple(dict.fromkeys((*own, *message_ends)))
    return CallSyntax(
        tools=tools,
        section_start=section_start,
        section_end=section_end,
        call_start=call_start,
        call_end=call_end,
        separator=tools.call_separator.strip(),
        opens_array=opens_array,
        name_prefix=tools.name_prefix.strip(),
        name_parts=parts,
        arguments_start=a.start.strip(),
        arguments_end=arguments_end,
        argument_name=a.name_prefix.strip(),
        argument_value=a.value_prefix.strip() or a.type_suffix.strip() or a.name_suffix.strip(),
        argument_end=a.value_suffix.strip(),
        starts=starts,
        ends=ends,
    )


@dataclass(frozen=True)
class Syntax:
    """A format's markers in each mode of the reader.

    actions: mode → marker → action. scanners: by mode. content_markers: for the markers of content except brackets and
    fences that may open a call. content_cut: for those that count when partial at the end of content. header_scanner:
    for the message's header and its last parts. spellings: variant → marker.
    """

    output_format: OutputFormat
    calls: CallSyntax | None
    actions: dict[Mode, dict[str, Action]]
    scanners: dict[Mode, Scanner]
    content_markers: Scanner
    content_cut: Scanner
    header_scanner: Scanner
    spellings: dict[str, str]

    def canonical(self, marker: str) -> str:
        return self.spellings.get(marker, marker)

    def in_canonical_spelling(self, text: str) -> str:
        """Replace all variants of markers in a short text by the canonical ones."""
        for variant, canonical in self.spellings.items():
            text = text.replace(variant, canonical)
        return text

    def scanner(self, *markers: str) -> Scanner:
        """Return a scanner for these markers and their variants."""
        return spelled(markers, tuple(self.spellings.items()))


@lru_cache(maxsize=4096)
def spelled(markers: tuple[str, ...], spellings: tuple[tuple[str, str], ...]) -> Scanner:
    canonical_markers = {marker for marker in markers if marker}
    variants = {variant for variant, canonical in spellings if canonical in canonical_markers}
    return scanner_for(tuple(sorted(canonical_markers | variants)))


@lru_cache(maxsize=1024)
def syntax_of(
    output_format: OutputFormat,
    with_tools: bool,
    with_reasoning: bool,
    bare: bool,
    bare_calls: bool,
    unmarked_calls: bool = False,
) -> Syntax:
    """Prepare a format for parsing.

    with_tools, with_reasoning: whether the request has tools and wants reasoning extracted. bare: accept calls without
    their opening marker. bare_calls: also those that are only JSON or Python. unmarked_calls: also those in a code
    fence.
    """
    channels = output_format.channels
    messages = (*channels.start, *channels.header_end) if channels else ()
    ends = channels.end if channels else ()
    calls = call_syntax(output_format.tools, messages, ends) if output_format.tools and with_tools else None
    spellings = tuple((variant.strip(), canonical.strip()) for variant, canonical in output_format.spellings)
    reasoning = output_format.reasoning if with_reasoning else None
    markers: dict[Kind, Iterable[str]] = {
        "reasoning start": reasoning.start if reasoning else (),
        "reasoning end": reasoning.end if reasoning else (),
        "call in reasoning": reasoning.ended_by if reasoning else (),
        "content start": output_format.content.start,
        "content end": output_format.content.end,
        "turn end": output_format.drop,
        "address": (output_format.address or ())[:1],
        "fence": (FENCE,),
    }
    if calls is not None:
        kept_reasoning = output_format.reasoning if bare and not with_reasoning else None
        markers |= {
            "section start": (calls.section_start,),
            "call start": (calls.call_start,),
            "name start": (calls.name_prefix,) if bare and distinctive(calls.name_prefix) else (),
            "call end": [marker for marker in calls.ends if distinctive(marker)],
            "call bracket": calls.embedded_openers if bare_calls else (),
            "call fence": (FENCE,) if unmarked_calls else (),
            "kept reasoning end": kept_reasoning.end if kept_reasoning else (),
        }
    # If a text is a marker of several kinds, the last kind of the table counts.
    actions = {
        mode: {
            marker.strip(): action
            for kind, action in kinds.items()
            for marker in markers.get(kind, ())
            if marker.strip()
        }
        for mode, kinds in ACTIONS.items()
    }
    # A message's header and its parts from each marker on, which models repeat after the prompt's header.
    header = output_format.message_start
    starts = [at for at, c in enumerate(header) if is_token(c) or (c == "<" and header[at + 1 : at + 2] != "/")]
    header_parts = tuple(part for at in starts if is_special(part := header[at:].strip()))
    marked = [
        m.strip()
        for kind in ACTIONS["content"]
        if kind not in ("call bracket", "call fence")
        for m in markers.get(kind, ())
    ]
    return Syntax(
        output_format=output_format,
        calls=calls,
        actions=actions,
        scanners={mode: spelled(tuple(mode_actions), spellings) for mode, mode_actions in actions.items()},
        content_markers=spelled(tuple(marked), spellings),
        content_cut=spelled(tuple(m for m, action in actions["content"].items() if action in MAY_BE_CUT), spellings),
        header_scanner=spelled(header_parts, ()),
        spellings=dict(spellings),
    )


def self_closing(name_end: str) -> tuple[str, ...]:
    """Return the ends of a tag with only a function's name: `<invoke name="now"/>`."""
    return (f"{name_end[:-1]}/>", f"{name_end[:-1]} />") if name_end.endswith(">") and len(name_end) <= 2 else ()
