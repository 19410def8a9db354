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


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence by which a chat template's family is recognised.

    system, answer, call: renderings of a system text with declared tools, of an answer and of a call. calls_rendered:
    whether the template renders calls at all. source: the template itself. derived: the format that was derived by
    comparing renderings.
    """

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
    """A sign by which a chat template is recognised as one of the family's formats, and its effect on the derived
    format.

    name: the format's name. what: a description of the sign. test: returns whether a template has it. apply: returns
    the format to use, given the derived one. used_for: a description of what is taken from the family, shown by
    `agent-server inspect`.
    """

    name: str
    what: str
    test: Callable[[Evidence], bool]
    apply: Callable[[OutputFormat], OutputFormat]
    used_for: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of models.

    formats: each is selected by its name. names: alias → a format's name. reasoning: by names that select reasoning
    only. signs: tried in order. samples: a format's name → outputs of such models and their meaning.
    """

    formats: tuple[OutputFormat, ...]
    names: Mapping[str, str] = {}
    reasoning: Mapping[str, Reasoning] = {}
    signs: tuple[Sign, ...] = ()
    samples: Mapping[str, Sequence[Sample]]


# The effects of a sign on the derived format.


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
    """Use the family's calls, and the call markers that end its reasoning."""

    def apply(derived: OutputFormat) -> OutputFormat:
        reasoning = derived.reasoning
        if reasoning and own.reasoning:
            reasoning = msgspec.structs.replace(reasoning, ended_by=own.reasoning.ended_by)
        return msgspec.structs.replace(derived, reasoning=reasoning, tools=own.tools, spellings=own.spellings)

    return apply


def reasoning(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use the family's reasoning, which its templates do not render."""
    return lambda derived: msgspec.structs.replace(derived, reasoning=own.reasoning)


def settings(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """Use the settings that no template shows: how the family's calls are parsed where servers differ, and variants of
    markers. The markers remain those of the template, which differ only in white space."""

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
        test=lambda evidence: same_markers(own.tools, evidence.derived.tools),
        apply=settings(own),
        used_for="what a template does not show of its calls",
    )


def explained(own: OutputFormat, *words: str) -> Sign:
    """Return the sign of a format that a template only explains: the text with the declared tools contains all of
    `words`, and no call is rendered."""
    return Sign(
        name=own.name,
        what="a list of tools is declared, no call is ever rendered",
        test=lambda evidence: not evidence.calls_rendered and all(word in evidence.system for word in words),
        apply=calls(own),
        used_for="its calls",
    )


def same_markers(one: Tools | None, other: Tools | None) -> bool:
    """Return whether two descriptions have the same call markers, ignoring white space around them. Line breaks around
    a value are compared, since they may be part of the value."""
    if one is None or other is None:
        return False
    keys: list[tuple[object, ...]] = []
    for tools in (one, other):
        arguments = tools.arguments
        markers = [_markers(tools), _markers(tools.id), _markers(arguments)]
        value_prefix = arguments.value_prefix.strip() or arguments.value_prefix
        keys.append((tools.style, tools.json, tools.id.position, arguments.style, value_prefix, *markers))
    return keys[0] == keys[1]


def _markers(description: Description) -> dict[str, str]:
    """Return the markers by field, without separators: a rendering of a single call or argument does not contain
    them."""
    names = marker_fields(type(description))
    return {name: str(getattr(description, name)).strip() for name in names if "separator" not in name}


def _with_markers_of(own: D, derived: D) -> D:
    names = marker_fields(type(own))
    return msgspec.structs.replace(own, **{name: getattr(derived, name) for name in names})
