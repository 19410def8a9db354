"""Tables of request fields: what a wire honours, accepts or refuses, so that nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from adapters.errors import RequestError


class Field(NamedTuple):
    """`neutral` are values of a refused field that ask for nothing and therefore pass; None always does."""

    status: Literal["honoured", "accepted", "refused"]
    note: str = ""
    neutral: tuple[Any, ...] = ()


def honoured(note: str = "") -> Field:
    return Field("honoured", note)


def accepted(note: str) -> Field:
    return Field("accepted", note)


def refused(note: str, *, neutral: tuple[Any, ...] = ()) -> Field:
    return Field("refused", note, neutral)


MAX_NAME = 64


def check_names(names: Iterable[str], fields: Mapping[str, Field]) -> None:
    """Refuse what the table does not know. Raises RequestError("invalid_request") naming the field."""
    for name in names:
        if name not in fields:
            shown = name[:MAX_NAME]
            raise RequestError("invalid_request", f"{shown} is not a field of this request.", param=shown)


def check_values(values: Mapping[str, Any], fields: Mapping[str, Field]) -> None:
    """Refuse what the table refuses. Raises RequestError("invalid_request") naming the field and the reason."""
    for name, value in values.items():
        field = fields[name]
        if field.status == "refused" and value is not None and value not in field.neutral:
            raise RequestError("invalid_request", f"{name} is not supported: {field.note}.", param=name)
