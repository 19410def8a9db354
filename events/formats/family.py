"""What one family of models brings: its formats, their other names, its signs in a chat template, sample outputs.

Each module of `events.formats.families` holds one, as `FAMILY`; `events.formats.registry` finds them.
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
    """What is seen of a chat template: renderings of a system text with tools declared, of an answer and of a call; the
    template's own text; what was derived by comparing renderings, and whether reasoning was."""

    system: str
    answer: str
    call: str
    calls_rendered: bool
    source: str
    derived: OutputFormat

    def everywhere(self, *signs: str) -> bool:
        """Whether the rendered messages hold all of these."""
        return all(sign in self.answer + self.call for sign in signs)


class Sign(msgspec.Struct, frozen=True, kw_only=True):
    """By what a chat template is known as one of the family's formats, and what is then made of the derived one.

    name: the format's. what: the sign, in words. test: whether it is seen. apply: the derived format → the one that is
    used. used_for: what is taken from the family, in words, for `agent-server inspect`.
    """

    name: str
    what: str
    test: Callable[[Seen], bool]
    apply: Callable[[OutputFormat], OutputFormat]
    used_for: str


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """formats: each is selected by its name. names: other name → a format's name. reasoning: the names that select
    reasoning alone. signs: tried in order. samples: format's name → outputs of such models, and what they mean."""

    formats: tuple[OutputFormat, ...]
    names: Mapping[str, str] = {}
    reasoning: Mapping[str, Reasoning] = {}
    signs: tuple[Sign, ...] = ()
    samples: Mapping[str, Sequence[Sample]]


# What a sign takes from the family.


def whole(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """The family's format in the frame of the template."""

    def apply(derived: OutputFormat) -> OutputFormat:
        heads = own.channels.start if own.channels else ()
        marks = (mark for mark in derived.drop if not mark.startswith(heads))
        start = derived.message_start
        for mark in heads:
            start = start.removesuffix(mark)  # `>>>` begins a message's header, the role's header comes before it
        return msgspec.structs.replace(own, message_start=start, drop=tuple(dict.fromkeys((*own.drop, *marks))))

    return apply


def calls(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """The family's calls; and of its reasoning, which of the calls' markers end it."""

    def apply(derived: OutputFormat) -> OutputFormat:
        thought = derived.reasoning
        if thought and own.reasoning:
            thought = msgspec.structs.replace(thought, ended_by=own.reasoning.ended_by)
        return msgspec.structs.replace(derived, reasoning=thought, tools=own.tools, spellings=own.spellings)

    return apply


def reasoning(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """The family's reasoning, which its templates do not show."""
    return lambda derived: msgspec.structs.replace(derived, reasoning=own.reasoning)


def settings(own: OutputFormat) -> Callable[[OutputFormat], OutputFormat]:
    """What no template shows: how the family's calls are read where servers differ, and what its models write instead
    of a marker. The markers stay those of the template, which are the same but for white space."""

    def apply(derived: OutputFormat) -> OutputFormat:
        assert own.tools is not None and derived.tools is not None
        seen = derived.tools
        arguments = _with_markers_of(own.tools.arguments, seen.arguments)
        arguments = msgspec.structs.replace(arguments, type_words=seen.arguments.type_words)
        tools = msgspec.structs.replace(
            _with_markers_of(own.tools, seen),
            arguments=arguments,
            id=seen.id,
            call_separator=seen.call_separator,
            lines=seen.lines,
        )
        return msgspec.structs.replace(derived, tools=tools, spellings=own.spellings)

    return apply


def own_markers(own: OutputFormat) -> Sign:
    """The sign of a format whose very markers were derived from a template: its settings are used."""
    return Sign(
        name=own.name,
        what="the template writes calls with its markers",
        test=lambda seen: same_markers(own.tools, seen.derived.tools),
        apply=settings(own),
        used_for="what a template does not show of its calls",
    )


def same_markers(one: Tools | None, other: Tools | None) -> bool:
    """Whether two descriptions write calls alike, white space around markers aside. Line breaks around a value count:
    they are part of the value or not."""
    if one is None or other is None:
        return False
    return _call_markers(one) == _call_markers(other)


def _call_markers(tools: Tools) -> tuple[object, ...]:
    arguments = tools.arguments
    written = [_markers(tools), _markers(tools.id), _markers(arguments)]
    values = arguments.value_prefix.strip() or arguments.value_prefix
    return (tools.style, tools.json, tools.id.position, arguments.style, values, *written)


def _markers(description: Description) -> dict[str, str]:
    """Field → marker of the fields that hold one marker each; what stands between two calls or arguments may be left
    out by a template that was seen with one."""
    names = marker_fields(type(description))
    return {name: str(getattr(description, name)).strip() for name in names if "separator" not in name}


def _with_markers_of(own: D, derived: D) -> D:
    names = marker_fields(type(own))
    return msgspec.structs.replace(own, **{name: getattr(derived, name) for name in names})
