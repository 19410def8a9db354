"""Builds one OpenAPI 3.1 document from the served routes and their rows (https://spec.openapis.org/oas/v3.1.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import msgspec
from pydantic import BaseModel, TypeAdapter
from starlette.routing import BaseRoute, Route

from adapters.errors import TABLE, ErrorKind, Wire, payload
from adapters.request_fields import Field
from agent_server.http.middleware.errors import wire_at
from agent_server.http.openapi.operation import Body, Envelope, Fields, FreeForm, Operation
from agent_server.http.openapi.operations import OPERATIONS

REF = "#/components/schemas/{model}"
MSGSPEC_REF = "#/components/schemas/{name}"
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
WIRES: tuple[Wire, ...] = ("agui", "openai", "anthropic", "copilotkit", "generate", "ollama")
EVERYWHERE: tuple[ErrorKind, ...] = ("invalid_request", "unauthorized", "overloaded")


def _anything(kind: type) -> dict[str, object]:
    """The schema of a value of any type: `object`, which msgspec does not describe."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError


class Components(TypedDict):
    schemas: dict[str, object]
    securitySchemes: dict[str, object]


class Description(TypedDict):
    """The document, with the fields of https://spec.openapis.org/oas/v3.1.1#openapi-object."""

    openapi: str
    info: dict[str, object]
    paths: dict[str, dict[str, object]]
    components: Components
    security: list[dict[str, list[str]]]


def document(routes: Iterable[BaseRoute], *, version: str) -> Description:
    """Describe the HTTP routes that have a row."""
    schemas = Schemas()
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        if not isinstance(route, Route):
            continue
        path = PARAMETER.sub(r"{\1}", route.path)
        slash = "_slash" if path.endswith("/") and path != "/" else ""  # such a path has an id of its own
        for method in sorted((route.methods or set()) - {"HEAD"}):
            row = OPERATIONS.get((method, path))
            if row is None:
                continue
            in_path = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in PARAMETER.findall(path)
            ]
            in_query = [
                {"name": name, "in": "query", "schema": dict(schema), "description": description}
                for name, (schema, description) in row.query.items()
            ]
            operation: dict[str, object] = {
                "tags": [row.tag],
                "summary": row.summary,
                "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").rstrip("_") + slash,
                "parameters": in_path + in_query,
                "responses": _responses(path, row, schemas),
            }
            if row.description:
                operation["description"] = row.description
            if row.body is not None:
                content: dict[str, object] = {"schema": schemas.of(row.body)}
                if row.example is not None:
                    content["example"] = dict(row.example)
                operation["requestBody"] = {
                    "required": row.example is not None,
                    "content": {"multipart/form-data" if row.form else "application/json": content},
                }
            paths.setdefault(path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "agent-server", "version": version, "description": DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.components.items())),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "anthropic": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{}, {"bearer": []}, {"anthropic": []}],
    }


DESCRIPTION = (
    "One event stream on every wire: AG-UI, OpenAI, Anthropic and CopilotKit. A key is required if the server has any "
    "(`--api-key`). WebSockets are at `/agui/ws` and `/generate`."
)


class Schemas:
    """The schemas that operations refer to, by name."""

    def __init__(self) -> None:
        self.components: dict[str, object] = {}
        for wire in WIRES:
            self.components[_error_name(wire)] = error_schema(wire)

    def of(self, body: Body | Any) -> dict[str, Any]:
        match body:
            case Fields():
                self.components[body.name] = fields_schema(body.table, body.required)
                return {"$ref": REF.format(model=body.name)}
            case FreeForm():
                schema: dict[str, object] = {"type": "object"}
                if body.description:
                    schema["description"] = body.description
                if body.properties:
                    schema["properties"] = dict(body.properties)
                if body.required:
                    schema["required"] = list(body.required)
                return schema
            case Envelope():
                one = self.of(body.of)
                content = {"type": "array", "items": one} if body.many else one
                return {"type": "object", "properties": {body.name: content, **body.extra}, "required": [body.name]}
        if body is dict:
            return {"type": "object"}
        if isinstance(body, type) and issubclass(body, msgspec.Struct):
            (reference,), components = msgspec.json.schema_components(
                [body], schema_hook=_anything, ref_template=MSGSPEC_REF
            )
            self.components |= components
            return reference
        # A pydantic model of AG-UI, with the aliases that the wire has.
        name = body.__name__ if isinstance(body, type) and issubclass(body, BaseModel) else "Event"
        model_schema = TypeAdapter(body).json_schema(by_alias=True, ref_template=REF)
        self.components |= model_schema.pop("$defs", {})
        self.components[name] = model_schema
        return {"$ref": REF.format(model=name)}


def fields_schema(table: Mapping[str, Field], required: Iterable[str]) -> dict[str, object]:
    """The schema of a request body from its table. A refused field allows only null and its neutral values."""
    properties: dict[str, object] = {}
    for name, field in table.items():
        if field.status == "refused":
            properties[name] = {"enum": [*field.neutral, None], "description": f"Refused: {field.note}."}
        else:
            note = {"description": field.note[:1].upper() + field.note[1:]} if field.note else {}
            properties[name] = {**field.schema, **note}
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _error_name(wire: Wire) -> str:
    return {"agui": "Error", "openai": "OpenAIErrorBody", "anthropic": "AnthropicError"}.get(wire, f"{wire}Error")


def error_schema(wire: Wire) -> dict[str, object]:
    """The schema of a wire's errors, derived from one of them: they differ only in their text."""
    return _shape(payload(wire, "invalid_request", "", param="messages", request_id="req_1"))


def _shape(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        return {"type": [_NAMES[type(value)], "null"]}
    inner = {name: _shape(each) for name, each in value.items()}
    return {"type": "object", "properties": inner, "required": [name for name in inner if name != "param"]}


_NAMES = {str: "string", bool: "boolean", int: "integer", type(None): "string"}


def _responses(path: str, row: Operation, schemas: Schemas) -> dict[str, object]:
    good: dict[str, object] = {"description": row.summary}
    content: dict[str, object] = {}
    if isinstance(row.answer, str):
        content[row.answer] = {"schema": {"type": "string"}}
    elif row.answer is not None:
        content["application/json"] = {"schema": schemas.of(row.answer)}
    if row.stream is not None:
        # One server-sent event.
        data = schemas.of(row.stream)
        json_data = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
        fields = {
            "data": {"anyOf": [json_data, {"const": row.end_mark}]} if row.end_mark else json_data,
            "event": {"type": "string"},
            "id": {"type": "string"},
        }
        stream = {"type": "object", "description": "The server-sent events, each of this form.", "properties": fields}
        content["text/event-stream"] = {"schema": stream}
        content |= {media: {"schema": {"type": "string", "format": "binary"}} for media in row.accepts}
    if row.lines:
        content["application/x-ndjson"] = {"schema": {"type": "string", "format": "binary"}}
    if content:
        good["content"] = content
    refused = {"$ref": REF.format(model=_error_name(wire_at(path)))}
    responses: dict[str, object] = {str(row.status): good}
    for status in row.answers_also:
        responses[str(status)] = good if status != 204 else {"description": "No content."}
    body: dict[str, object] = {"application/json": {"schema": refused}}
    for media, schema in row.refusals.items():
        shapes = [refused, dict(schema)] if media in body else [dict(schema)]
        body[media] = {"schema": {"anyOf": shapes}}
    for kind in EVERYWHERE:
        responses.setdefault(str(TABLE[kind].status), {"description": TABLE[kind].title, "content": body})
    responses["default"] = {"description": "An error; the status is its kind.", "content": body}
    return responses
