"""Annotations of an `OutputFormat`'s text fields: whether a field's text is a marker.

All users of a format's markers (the vocabulary's look-up, the grammar's list of excluded tokens, the random outputs of
the tests) get them from `texts`, so annotating a new field is enough. A test refuses a text field without annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

Part = Literal["reasoning", "content", "calls", "messages", "turn"]


class Marker(NamedTuple):
    """The field contains markers: text that the model writes exactly, and that may contain tokens of the vocabulary.
    part: the part of the output that they delimit."""

    part: Part


class Words(NamedTuple):
    """The field contains text that is not a marker: a JSON key, a name, or the header that only the prompt contains."""


class TextField(NamedTuple):
    """A text field of a description's class, with its annotation."""

    name: str
    declared: Marker | Words | None


@lru_cache(maxsize=64)
def text_fields(description: type[msgspec.Struct]) -> tuple[TextField, ...]:
    """Return the fields of a class that contain text, directly or in tuples."""
    hints = get_type_hints(description, include_extras=True)
    return tuple(TextField(name, _annotation(hint)) for name, hint in hints.items() if _holds_text(hint))


def _annotation(hint: object) -> Marker | Words | None:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else get_args(hint)
    for each in metadata:
        if isinstance(each, Marker | Words):
            return each
        if get_origin(each) is Annotated:  # within a union: `Annotated[...] | None`
            return _annotation(each)
    return None


def _holds_text(hint: object) -> bool:
    """Return whether values of this type contain free text; the words of a Literal are settings, not text."""
    if get_origin(hint) is Literal:
        return False
    return hint is str or any(_holds_text(part) for part in get_args(hint) if not isinstance(part, Marker | Words))


def marker_fields(description: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the names of a class's fields that contain markers."""
    return tuple(field.name for field in text_fields(description) if isinstance(field.declared, Marker))


def texts(description: msgspec.Struct, *parts: Part) -> Iterator[str]:
    """Yield the markers of these parts, or of all parts if none is named, in the order of the fields, including those
    of nested descriptions."""
    declared = {field.name: field.declared for field in text_fields(type(description))}
    for name in description.__struct_fields__:
        value = getattr(description, name)
        field = declared.get(name)
        if isinstance(field, Marker) and (not parts or field.part in parts):
            yield from _strings(value)
        elif field is None:
            for inner in value if isinstance(value, tuple) else (value,):
                if isinstance(inner, msgspec.Struct):
                    yield from texts(inner, *parts)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, tuple):
        for inner in value:
            yield from _strings(inner)
