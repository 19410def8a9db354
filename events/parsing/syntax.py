"""An OutputFormat made ready for reading: markers without outer white space, and a scanner for each situation.

Built once per format and shared by all requests (`syntax_of`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from events.formats.output_format import OutputFormat, Tools
from events.parsing.fences import FENCE
from events.parsing.modes import ACTIONS, MAY_BE_CUT, Action, Kind, Mode
from events.parsing.scanner import Scanner, is_token, scanner_for

_INDEX = re.compile(r"\{index\}")


@dataclass(frozen=True)
class CallSyntax:
    """The tool-call markers of a format. Empty string: there is none."""

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
        """Whether a call is a JSON object that nothing announces, or nothing that models write each time: it may stand
        behind text."""
        announced = self.call_start or self.section_end or self.opens_array
        return self.tools.style == "json" and not (announced or self.tools.json.array_only)

    @property
    def embedded_openers(self) -> tuple[str, ...]:
        """The brackets with which calls may open behind text: of JSON that nothing announces, alone or in a list, or of
        a list of Python calls that nothing announces, or that models write without what does."""
        if self.is_unmarked:
            return ("{", "[")
        bare = self.tools.bare == "always" or not (self.section_start or self.call_start or self.tools.name_prefix)
        return ("[",) if self.tools.arguments.style == "python" and bare else ()

    @property
    def name_end(self) -> str:
        """What ends the header of a call: the last literal part of the name's suffix."""
        return self.name_parts[-1] if self.name_parts else ""


def substantial(marker: str) -> bool:
    """Whether a marker is more than punctuation; a token of the vocabulary, one character in here, always is."""
    return len(marker) > 2 or any(map(is_token, marker))


def distinctive(marker: str) -> bool:
    """Whether a marker is unlikely to stand in prose: a tag or a special token, not punctuation or a word."""
    return substantial(marker) and not marker.isalnum() and any(not c.isalnum() and c not in "_-.:`" for c in marker)


def is_special(marker: str) -> bool:
    """Whether a marker is or begins with what no text and no mark-up language has: `<|`, `<｜`, `｜DSML｜`, a token."""
    return any(is_token(c) or c in "|｜" for c in marker)


def is_tag(marker: str) -> bool:
    """Whether a marker begins like a tag or with a token of the vocabulary."""
    return distinctive(marker) and (marker[0] in "<[]" or is_token(marker[0]))


@lru_cache(maxsize=1024)
def call_syntax(tools: Tools, messages: tuple[str, ...] = (), message_ends: tuple[str, ...] = ()) -> CallSyntax:
    """`messages`, `message_ends`: markers that begin something else, and that end messages, where calls are such."""
    a = tools.arguments
    bracketed = tools.style == "json" or a.style == "python"
    section_start, section_end = tools.section_start.strip(), tools.section_end.strip()
    opens_array = bracketed and section_start.endswith("[")
    # The bracket is optional where a marker stands in front of it: models leave it out.
    if opens_array and (distinctive(section_start[:-1].strip()) or section_start == "["):
        section_start, opens_array = section_start[:-1].strip(), False
    if bracketed and section_end.startswith("]"):
        section_end = section_end[1:].strip()
    call_start, call_end = tools.call_start.strip(), tools.call_end.strip()
    parts = tuple(part.strip() for part in _INDEX.split(tools.name_suffix) if part.strip())
    arguments_end = a.end.strip()
    starts = tuple(marker for marker in (section_start, call_start, *messages) if marker)
    # Punctuation alone ends nothing: `)` and `}` stand in arguments too.
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

    actions: mode → marker → what it does there. scanners: what finds a mode's markers. content_markers: what finds
    those of content without a bracket or fence that may open a call. content_cut: what finds those that may be cut off
    at the end of content. header_scanner: the message's header and its last parts. spellings: variant → marker.
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
        """A short text with every marker in it spelled canonically."""
        for variant, canonical in self.spellings.items():
            text = text.replace(variant, canonical)
        return text

    def scanner(self, *markers: str) -> Scanner:
        """A scanner for these markers and what models write instead of them."""
        return spelled(markers, tuple(self.spellings.items()))


@lru_cache(maxsize=4096)
def spelled(markers: tuple[str, ...], spellings: tuple[tuple[str, str], ...]) -> Scanner:
    wanted = {marker for marker in markers if marker}
    return scanner_for(tuple(sorted(wanted | {variant for variant, canonical in spellings if canonical in wanted})))


@lru_cache(maxsize=1024)
def syntax_of(
    output_format: OutputFormat,
    with_tools: bool,
    with_reasoning: bool,
    bare: bool,
    bare_calls: bool,
    unmarked_calls: bool = False,
) -> Syntax:
    """`with_tools`, `with_reasoning`: whether the request has tools and wants reasoning taken out. `bare`: whether
    calls without their opening marker are looked for. `bare_calls`: also those that are nothing but JSON or Python.
    `unmarked_calls`: also those in a code fence."""
    channels = output_format.channels
    messages = (*channels.start, *channels.header_end) if channels else ()
    ends = channels.end if channels else ()
    calls = call_syntax(output_format.tools, messages, ends) if output_format.tools and with_tools else None
    spellings = tuple((variant.strip(), canonical.strip()) for variant, canonical in output_format.spellings)
    markers = {
        **_call_markers(calls, bare, bare_calls),
        **_text_markers(output_format, with_reasoning),
        "call fence": (FENCE,) if calls and unmarked_calls else (),
        "kept reasoning end": _kept_reasoning_end(output_format, with_reasoning) if calls and bare else (),
    }
    actions = {mode: _actions(kinds, markers) for mode, kinds in ACTIONS.items()}
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
        scanners={mode: spelled(tuple(known), spellings) for mode, known in actions.items()},
        content_markers=spelled(tuple(marked), spellings),
        content_cut=spelled(tuple(m for m, action in actions["content"].items() if action in MAY_BE_CUT), spellings),
        header_scanner=spelled(tuple(_tails(output_format.message_start)), ()),
        spellings=dict(spellings),
    )


Markers = Mapping[Kind, Iterable[str]]


def _call_markers(calls: CallSyntax | None, bare: bool, bare_calls: bool) -> Markers:
    if calls is None:
        return {}
    return {
        "section start": (calls.section_start,),
        "call start": (calls.call_start,),
        "name start": (calls.name_prefix,) if bare and distinctive(calls.name_prefix) else (),
        "call end": [marker for marker in calls.ends if distinctive(marker)],
        "call bracket": calls.embedded_openers if bare_calls else (),
    }


def _text_markers(output_format: OutputFormat, with_reasoning: bool) -> Markers:
    reasoning = output_format.reasoning if with_reasoning else None
    return {
        "reasoning start": reasoning.start if reasoning else (),
        "reasoning end": reasoning.end if reasoning else (),
        "call in reasoning": reasoning.ended_by if reasoning else (),
        "content start": output_format.content.start,
        "content end": output_format.content.end,
        "turn end": output_format.drop,
        "address": (output_format.address or ())[:1],
        "fence": (FENCE,),
    }


def _kept_reasoning_end(output_format: OutputFormat, with_reasoning: bool) -> tuple[str, ...]:
    return output_format.reasoning.end if output_format.reasoning and not with_reasoning else ()


def _actions(kinds: Mapping[Kind, Action], markers: Markers) -> dict[str, Action]:
    """Marker → action of one mode. Of a text that is a marker of several kinds the last kind counts."""
    return {
        marker.strip(): action for kind, action in kinds.items() for marker in markers.get(kind, ()) if marker.strip()
    }


def _tails(header: str) -> list[str]:
    """A message's header, and its parts from each marker on: what models write again where the prompt has it."""
    places = [at for at, c in enumerate(header) if is_token(c) or (c == "<" and header[at + 1 : at + 2] != "/")]
    return [tail for at in places if is_special(tail := header[at:].strip())]


def self_closing(name_end: str) -> tuple[str, ...]:
    """How a tag ends that holds a function's name and nothing else: `<invoke name="now"/>`."""
    return (f"{name_end[:-1]}/>", f"{name_end[:-1]} />") if name_end.endswith(">") and len(name_end) <= 2 else ()
