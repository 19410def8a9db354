"""What the text in a field of an `OutputFormat` is, declared on the field itself.

Everybody who needs a format's markers (the vocabulary's look-up, the grammar's list of excluded tokens, the random
outputs of the tests) asks `texts` for them. So a new field is known everywhere once it is annotated; a test refuses a
text field without an annotation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

Part = Literal["reasoning", "content", "calls", "messages", "turn"]


class Marker(NamedTuple):
    """The field holds markers: text that the model writes exactly like this, and that may contain tokens of the
    vocabulary. part: the part of the output that they delimit."""

    part: Part


class Words(NamedTuple):
    """The field holds text that is no marker: a key of JSON, a name, the header that only the prompt writes."""


class TextField(NamedTuple):
    """A text field: of a description's class, or of one that is nested in it."""

    name: str
    declared: Marker | Words | None


@lru_cache(maxsize=64)
def text_fields(description: type[msgspec.Struct]) -> tuple[TextField, ...]:
    """The fields of a class that hold text, alone or in tuples, with what is declared of them."""
    hints = get_type_hints(description, include_extras=True)
    return tuple(TextField(name, _declared(hint)) for name, hint in hints.items() if _holds_text(hint))


def _declared(hint: object) -> Marker | Words | None:
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else get_args(hint)
    for each in metadata:
        if isinstance(each, Marker | Words):
            return each
        if get_origin(each) is Annotated:  # within a union: `Annotated[...] | None`
            return _declared(each)
    return None


def _holds_text(hint: object) -> bool:
    """Whether values of this type hold free text; the words of a Literal are settings, not text."""
    if get_origin(hint) is Literal:
        return False
    return hint is str or any(_holds_text(part) for part in get_args(hint) if not isinstance(part, Marker | Words))


def marker_fields(description: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the fields of a class that hold markers."""
    return tuple(field.name for field in text_fields(description) if isinstance(field.declared, Marker))


def texts(description: msgspec.Struct, *parts: Part) -> Iterator[str]:
    """The markers of these parts (of all parts where none is named), as they are written, in the order of the fields.
    Nested descriptions are searched too."""
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
