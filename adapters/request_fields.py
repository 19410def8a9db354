"""Tables of request fields: what a wire honours, accepts or refuses, so that nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from adapters.errors import RequestError
from events.sampling import PARAMETERS, Wire, json_schema, names_on

Schema = Mapping[str, object]
ANY: Schema = {}
BOOLEAN: Schema = {"type": "boolean"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
OBJECTS: Schema = {"type": "array", "items": OBJECT}
STRING: Schema = {"type": "string"}
STRINGS: Schema = {"type": "array", "items": STRING}


class Field(NamedTuple):
    """`neutral` are values of a refused field that ask for nothing and therefore pass; None always does. `schema` is
    the value's form in JSON Schema, for descriptions of the API; the parsers check by themselves. `code` is the wire's
    own word for the refusal, where its clients act on it."""

    status: Literal["honoured", "accepted", "refused"]
    note: str = ""
    neutral: tuple[object, ...] = ()
    schema: Schema = ANY
    code: str | None = None


def honoured(note: str = "", schema: Schema = ANY) -> Field:
    return Field("honoured", note, schema=schema)


def accepted(note: str, schema: Schema = ANY) -> Field:
    return Field("accepted", note, schema=schema)


def refused(note: str, *, neutral: tuple[object, ...] = (), schema: Schema = ANY, code: str | None = None) -> Field:
    return Field("refused", note, neutral, schema, code)


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def sampling_fields(wire: Wire) -> dict[str, Field]:
    """A row for each field by which this wire gives a sampling parameter."""
    return {
        key: honoured(parameter.note, json_schema(name))
        for name, parameter in PARAMETERS.items()
        for key in names_on(wire, name)
    }


MAX_NAME = 64


def check_names(names: Iterable[str], fields: Mapping[str, Field]) -> None:
    """Refuse what the table does not know. Raises RequestError("invalid_request") naming the field."""
    for name in names:
        if name not in fields:
            shown = name[:MAX_NAME]
            raise RequestError("invalid_request", f"{shown} is not a field of this request.", param=shown)


def check_values(values: Mapping[str, object], fields: Mapping[str, Field]) -> None:
    """Refuse what the table refuses. Raises RequestError("invalid_request") naming the field and the reason."""
    for name, value in values.items():
        field = fields[name]
        if field.status == "refused" and value is not None and value not in field.neutral:
            message = f"{name} is not supported: {field.note}."
            raise RequestError("invalid_request", message, param=name, code=field.code)
