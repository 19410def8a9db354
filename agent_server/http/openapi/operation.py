"""What a row about a route may hold: its purpose, its request and its responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from adapters.request_fields import Field

Tag = Literal[
    "AG-UI",
    "Runs",
    "Threads",
    "CopilotKit",
    "AI SDK",
    "OpenAI",
    "Anthropic",
    "Ollama",
    "Generate",
    "Tokens",
    "Agents",
    "Operation",
    "Page",
]


class Fields(NamedTuple):
    """A request body described by a parser's table of fields. name: of the schema. required: names of fields."""

    name: str
    table: Mapping[str, Field]
    required: tuple[str, ...]


class FreeForm(NamedTuple):
    """A JSON object with a description and its known properties."""

    description: str = ""
    properties: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()


class Envelope(NamedTuple):
    """An object with one value, or a list of values, under one name. extra: schemas of further properties."""

    name: str
    of: type
    many: bool = False
    extra: Mapping[str, object] = {}


Body = type | Fields | FreeForm | Envelope


class Operation(NamedTuple):
    """The description of one route.

    body: of the request, as JSON or (form) as multipart/form-data. answer: the body for `status`; None for no body.
    stream: the data of each server-sent event, if the route can stream. end_mark: the text of the last event instead.
    accepts: other media types of the stream. query: name → (schema, description). answers_also: further statuses with
    the same body; 204 has none. lines: the route can stream JSON lines, each a partial answer. refusals: media type →
    schema of errors that do not have the wire's format.
    """

    tag: Tag
    summary: str
    description: str = ""
    body: Body | None = None
    form: bool = False
    answer: Body | str | None = None
    status: int = 200
    stream: Any = None
    end_mark: str = ""
    accepts: tuple[str, ...] = ()
    query: Mapping[str, tuple[Mapping[str, object], str]] = {}
    example: Mapping[str, object] | None = None
    answers_also: tuple[int, ...] = ()
    lines: bool = False
    refusals: Mapping[str, Mapping[str, object]] = {}
