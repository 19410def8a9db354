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
    own word for the refusal, where its clients act on it. `warns`: what was accepted changes nothing, and the answer
    says so."""

    status: Literal["honoured", "accepted", "refused"]
    note: str = ""
    neutral: tuple[object, ...] = ()
    schema: Schema = ANY
    code: str | None = None
    warns: bool = False


def honoured(note: str = "", schema: Schema = ANY) -> Field:
    return Field("honoured", note, schema=schema)


def accepted(note: str, schema: Schema = ANY) -> Field:
    return Field("accepted", note, schema=schema)


def ignored(note: str) -> Field:
    """A field of other servers that steers how they work, not what they answer: taken, with a warning."""
    return Field("accepted", note, warns=True)


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


def warnings_of(values: Mapping[str, object], fields: Mapping[str, Field]) -> tuple[str, ...]:
    """A sentence for each field given that this server takes and does nothing with."""
    given = (name for name, value in values.items() if value is not None and fields[name].warns)
    return tuple(f"{name} changes nothing: {fields[name].note}." for name in given)


OTHER_SERVERS: dict[str, Field] = {
    "add_special_tokens": refused("the chat template writes them", neutral=(False,)),
    "cache_prompt": ignored("prefixes are cached by their content"),
    "id_slot": ignored("the scheduler finds a place"),
    "n_keep": ignored("nothing is left out of a prompt"),
    "n_cache_reuse": ignored("prefixes are cached by their content"),
    "request_id": ignored("the server names its runs itself"),
    "guided_decoding_backend": ignored("there is one grammar library"),
    "mm_processor_kwargs": ignored("the model's own processor is used"),
    "kv_transfer_params": ignored("caches are not handed from server to server"),
    "priority": ignored("tenants take turns"),
    "spaces_between_special_tokens": ignored("control tokens are never shown"),
    "return_progress": ignored("progress is not reported"),
    "timings_per_token": ignored("times are in the run's metadata"),
    "use_beam_search": refused("tokens are sampled", neutral=(False,)),
    "length_penalty": refused("it belongs to beam search", neutral=(1.0,)),
    "mirostat": refused("there is no such sampler", neutral=(0,)),
    "dynatemp_range": refused("there is no such sampler", neutral=(0.0,)),
    "dry_multiplier": refused("there is no such sampler", neutral=(0.0,)),
    "xtc_probability": refused("there is no such sampler", neutral=(0.0,)),
    "top_n_sigma": refused("there is no such sampler", neutral=(-1.0,)),
}
"""Fields of vLLM's and llama.cpp's requests, besides those that are honoured here."""
