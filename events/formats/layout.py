"""The order in which the parts of calls are written, for those who write them: as text and as a grammar.

A sequence of items says it: `Text` is written as it is, a `Slot` is filled by the writer. The drawing in
`events.formats.output_format` shows the whole.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from events.formats.output_format import Arguments, IdPosition, Tools


class Text(NamedTuple):
    """A marker, "" where the format has none."""

    text: str


class Slot(NamedTuple):
    """A place that is filled for each call or argument. "index": the call's number in its message."""

    holds: Literal["name", "id", "index", "arguments", "key", "type", "value"]


Item = Text | Slot


class CallSection(NamedTuple):
    """What stands around all calls, and between two. repeats: each call has a section of its own."""

    start: str
    end: str
    separator: str
    repeats: bool


def section(tools: Tools) -> CallSection:
    """Calls in a JSON array stand in brackets, whether the section's markers name them or not. Calls that nothing
    announces stand each on a line of its own."""
    start, end, separator = tools.section_start, tools.section_end, tools.call_separator
    if tools.style == "json" and tools.json.array:
        start = start if start.rstrip().endswith("[") else start + "["
        end = end if end.lstrip().startswith("]") else "]" + end
        separator = separator or ", "
    elif not (tools.section_start or tools.call_start or tools.name_prefix):
        separator = separator or "\n"
    return CallSection(start, end, separator, tools.repeats_section)


def tag_call(tools: Tools) -> tuple[Item, ...]:
    """A call whose name stands outside of JSON, between `call_start` and `call_end`."""
    before, index, behind = tools.name_suffix.partition("{index}")
    return (
        *_id(tools, "before_name"),
        Text(tools.name_prefix),
        Slot("name"),
        *_id(tools, "between"),
        *((Text(before), Slot("index"), Text(behind)) if index else (Text(tools.name_suffix),)),
        Text(tools.arguments.start),
        Slot("arguments"),
        Text(tools.arguments.end),
        *_id(tools, "after_arguments"),
    )


def _id(tools: Tools, position: IdPosition) -> tuple[Item, ...]:
    if tools.id.position != position:
        return ()
    return (Text(tools.id.prefix), Slot("id"), Text(tools.id.suffix))


def argument_head(style: Arguments) -> tuple[Item, ...]:
    """The name of one argument in the "tagged" style."""
    return (Text(style.name_prefix), Slot("key"), Text(style.name_suffix))


def argument_value(style: Arguments) -> tuple[Item, ...]:
    """The value behind the name, with its declared type where the format has one, and what closes it."""
    declared = (Text(style.type_prefix), Slot("type"), Text(style.type_suffix)) if style.type_prefix else ()
    return (*declared, Text(style.value_prefix), Slot("value"), Text(style.value_suffix))


def element(style: Arguments, name: str) -> tuple[str, str]:
    """The tags around a value in the "nested" style: (opening, closing)."""
    return f"{style.element_prefix}<{name}>", f"{style.element_prefix}</{name}>"


def call_opener(tools: Tools) -> str:
    """The first marker of a section of calls that is certain to be written; "" if there is none."""
    before = tag_call(tools) if tools.style == "tag" else ()
    name = before.index(Slot("name")) if before else 0
    marks = [tools.section_start, tools.call_start, *(item.text for item in before[:name] if isinstance(item, Text))]
    return next((mark.strip() for mark in marks if mark.strip()), "")


def call_closer(tools: Tools) -> str:
    """The last marker of a section of calls; "" if there is none."""
    marks = (tools.section_end, tools.call_end, tools.arguments.end)
    return next((mark.strip() for mark in marks if mark.strip()), "")
