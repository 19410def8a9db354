"""The order of the parts of calls, for writing them as text and as a grammar.

A layout is a sequence of items: `Text` is written unchanged, a `Slot` is filled by the writer. The diagram in
`events.formats.output_format` shows the whole.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from events.formats.output_format import Arguments, IdPosition, Tools


class Text(NamedTuple):
    """A marker; "" if the format has none."""

    text: str


class Slot(NamedTuple):
    """A place that is filled for each call or argument. "index": the call's number in its message."""

    holds: Literal["name", "id", "index", "arguments", "key", "type", "value"]


Item = Text | Slot


class CallSection(NamedTuple):
    """The markers around all calls and between two. repeats: each call has a section of its own."""

    start: str
    end: str
    separator: str
    repeats: bool


def section(tools: Tools) -> CallSection:
    """Return the section of calls. Calls in a JSON array are in brackets, even if the section's markers do not contain
    them. Calls without markers are on a line each."""
    start, end, separator = tools.section_start, tools.section_end, tools.call_separator
    if tools.style == "json" and tools.json.array:
        start = start if start.rstrip().endswith("[") else start + "["
        end = end if end.lstrip().startswith("]") else "]" + end
        separator = separator or ", "
    elif not (tools.section_start or tools.call_start or tools.name_prefix):
        separator = separator or "\n"
    return CallSection(start, end, separator, tools.repeats_section)


def tag_call(tools: Tools) -> tuple[Item, ...]:
    """Return the layout of a call whose name is outside of JSON, between `call_start` and `call_end`."""
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
    """Return the layout of an argument's name in the "tagged" style."""
    return (Text(style.name_prefix), Slot("key"), Text(style.name_suffix))


def argument_value(style: Arguments) -> tuple[Item, ...]:
    """Return the layout of an argument's value, with its declared type if the format has one, and its end."""
    declared = (Text(style.type_prefix), Slot("type"), Text(style.type_suffix)) if style.type_prefix else ()
    return (*declared, Text(style.value_prefix), Slot("value"), Text(style.value_suffix))


def element(style: Arguments, name: str) -> tuple[str, str]:
    """Return the opening and closing tag of a value in the "nested" style."""
    return f"{style.element_prefix}<{name}>", f"{style.element_prefix}</{name}>"


def call_opener(tools: Tools) -> str:
    """Return the first marker of a section of calls that is always written, or ""."""
    before = tag_call(tools) if tools.style == "tag" else ()
    name = before.index(Slot("name")) if before else 0
    marks = [tools.section_start, tools.call_start, *(item.text for item in before[:name] if isinstance(item, Text))]
    return next((mark.strip() for mark in marks if mark.strip()), "")


def call_closer(tools: Tools) -> str:
    """Return the last marker of a section of calls, or ""."""
    marks = (tools.section_end, tools.call_end, tools.arguments.end)
    return next((mark.strip() for mark in marks if mark.strip()), "")
