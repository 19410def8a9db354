"""A family of models: its formats, their other names, its signs in a chat template, and sample outputs.

Each module of `events.formats.families` defines one as `FAMILY`; `events.formats.registry` collects them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from events.formats.fields import marker_fields
from events.formats.output_format import Description, OutputFormat, Reasoning, Tools
from events.formats.samples import Sample

D = TypeVar("D", bound=Description)


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of a chat template: renderings of a system text with declared tools, of an answer and of a call; the
    template's own text; and the format that was derived by comparing renderings."""

    system: str
    answer: str
    call: str
    calls_rendered: bool
    source: str
    derived: OutputFormat

    def everywhere(self, *signs: str) -> bool:
        """Return whether the rendered messages contain all of these."""
        return all(sign in self.answer + self.call for sign in signs)


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign by which a chat template is recognised as one of the family's formats, and how it changes the derived
    format.

    name: the format's. what: the sign, in words. test: whether a template has it. apply: makes the format to be used
    from the derived one. used_for: what is taken from the family, in words, for `agent-server inspect`.
    """

    name: str
    what: str
    test: Callable[[Seen], bool]
    apply: Callable[[OutputFormat], OutputFormat]
    used_for: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """formats: selected by their names. names: other name → a format's name. reasoning: by the names that select only
    reasoning. signs: tried in order. samples: format's name → outputs of such models and their meaning."""

    formats: tuple[OutputFormat, ...]
    names: Mapping[str, str] = {}
    reasoning: Mapping[str, Reasoning] = {}
    signs: tuple[Sign, ...] = ()
    samples: Mapping[str, Sequence[Sample]]


# What a sign takes from the family.


def whole(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use the family's format with the template's message frame."""

    def apply(derived: OutputFormat) -> OutputFormat:
        heads = own.channels.start if own.channels else ()
        marks = (mark for mark in derived.drop if not mark.startswith(heads))
        start = derived.message_start
        for mark in heads:
            start = start.removesuffix(mark)  # `>>>` begins a message's header, the role's header comes before it
        return msgspec.structs.replace(own, message_start=start, drop=tuple(dict.fromkeys((*own.drop, *marks))))

    return apply


def calls(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use the family's calls, and of its reasoning only which call markers end it."""

    def apply(derived: OutputFormat) -> OutputFormat:
        reasoning = derived.reasoning
        if reasoning and own.reasoning:
            reasoning = msgspec.structs.replace(reasoning, ended_by=own.reasoning.ended_by)
        return msgspec.structs.replace(derived, reasoning=reasoning, tools=own.tools, spellings=own.spellings)

    return apply


def reasoning(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use the family's reasoning, which its templates do not show."""
    return lambda derived: msgspec.structs.replace(derived, reasoning=own.reasoning)


def settings(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use what no template shows: how the family's calls are parsed where servers differ, and variants of markers. The
    markers stay those of the template, which differ only in white space."""

    def apply(derived: OutputFormat) -> OutputFormat:
        assert own.tools is not None and derived.tools is not None
        derived_tools = derived.tools
        arguments = _with_markers_of(own.tools.arguments, derived_tools.arguments)
        arguments = msgspec.structs.replace(arguments, type_words=derived_tools.arguments.type_words)
        tools = msgspec.structs.replace(
            _with_markers_of(own.tools, derived_tools),
            arguments=arguments,
            id=derived_tools.id,
            call_separator=derived_tools.call_separator,
            lines=derived_tools.lines,
        )
        return msgspec.structs.replace(derived, tools=tools, spellings=own.spellings)

    return apply


def own_markers(own: OutputFormat) -> Sign:
    """Return the sign of a format whose markers were derived from a template; it applies the format's settings."""
    return Sign(
        name=own.name,
        what="the template writes calls with its markers",
        test=lambda seen: same_markers(own.tools, seen.derived.tools),
        apply=settings(own),
        used_for="what a template does not show of its calls",
    )


def same_markers(one: Tools | None, other: Tools | None) -> bool:
    """Return whether two descriptions have the same call markers except for white space around them. Line breaks around
    a value count, since they may be part of the value."""
    if one is None or other is None:
        return False
    return _call_markers(one) == _call_markers(other)


def _call_markers(tools: Tools) -> tuple[object, ...]:
    arguments = tools.arguments
    markers = [_markers(tools), _markers(tools.id), _markers(arguments)]
    values = arguments.value_prefix.strip() or arguments.value_prefix
    return (tools.style, tools.json, tools.id.position, arguments.style, values, *markers)


def _markers(description: Description) -> dict[str, str]:
    """Return the markers by field, without separators: a template that was rendered with a single call or argument does
    not show them."""
    names = marker_fields(type(description))
    return {name: str(getattr(description, name)).strip() for name in names if "separator" not in name}


def _with_markers_of(own: D, derived: D) -> D:
    names = marker_fields(type(own))
    return msgspec.structs.replace(own, **{name: getattr(derived, name) for name in names})
