"""The components that a page can show: its catalog, as `render_a2ui` declares it to the model and to the grammar.

CopilotKit's provider sends its catalog with every run, as a context entry whose value is JSON: {catalogId, components:
{Name: {allOf: [a reference, {properties, required}]}}} (`@copilotkit/a2ui-renderer` 1.74). In there a `$ref` points
into the component's own properties, and a description that begins with "REF:common_types.json#/$defs/Name|" says which
of A2UI's shared types the schema is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from ag_ui.core import Context, Tool
from ag_ui_a2ui_toolkit import A2UI_SCHEMA_CONTEXT_DESCRIPTION, BASIC_CATALOG_ID, validate_a2ui_components

from events.grammar.lint import SchemaRefused, prepare

Schema = dict[str, Any]
BASIC: str = BASIC_CATALOG_ID
RENDER = "render_a2ui"
ACTION_CALL = "log_a2ui_event"
DESCRIPTION = (
    "Show the user an interactive surface: a form, a list, cards, a dashboard. The components are a flat list: each "
    'has an id of its own, the first one is the root and has the id "root", and children are named by their ids '
    '("children": ["a", "b"], or "child": "a"). A value in the data is {"path": "/form/name"}. To repeat a component '
    'for each item of a list, write "children": {"componentId": "card", "path": "/items"}, and paths without a leading '
    'slash inside of it. A button has "action": {"event": {"name": "save", "context": {"x": {"path": "/form/x"}}}}. '
    f"What the user does there is told to you as a call of {ACTION_CALL} with its result, which you never make "
    "yourself: answer to it."
)
_LISTED = re.compile(r"^\s*-\s+(\S+)", re.MULTILINE)
_SHARED = re.compile(r"REF:[^#]*#/\$defs/(\w+)\|?(.*)", re.DOTALL)
DEPTH = 32
COMPONENTS = 200


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """id: what surfaces name. components: type → JSON schema of one component, whose references are `#/$defs/...` of
    `shared`; {} where the page does not say what it has."""

    id: str = BASIC
    components: Mapping[str, Schema] = {}
    shared: Mapping[str, Schema] = {}

    def declaration(self) -> Tool:
        """`render_a2ui` for this catalog. Its schema admits the catalog's components and properties alone, and begins
        with the root, so that a model that is held to it writes no other."""
        return Tool(name=RENDER, description=DESCRIPTION, parameters=self.parameters())

    def parameters(self) -> Schema:
        named = {f"component{name}": schema for name, schema in self.components.items()}
        loose: Schema = {
            "type": "object",
            "properties": {"id": {"type": "string"}, "component": {"type": "string"}},
            "required": ["id", "component"],
        }
        some: Schema = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in named]} if named else loose
        root: Schema = {"allOf": [{"$ref": "#/$defs/component"}, {"properties": {"id": {"const": "root"}}}]}
        listed = {"type": "array", "prefixItems": [root], "items": {"$ref": "#/$defs/component"}, "minItems": 1}
        return {
            "type": "object",
            "$defs": {**self.shared, **named, "component": some},
            "properties": {"surfaceId": {"type": "string"}, "components": listed, "data": {"type": "object"}},
            "required": ["surfaceId", "components"],
            "additionalProperties": False,
        }

    def faults(self, components: object, data: object, *, whole: bool) -> list[dict[str, str]]:
        """What is wrong with components, as `{code, path, message}`. whole: the data is complete, so that what is bound
        to it must be there."""
        given = data if isinstance(data, dict) else {}
        known = {"components": dict(self.components)} if self.components else None
        found = validate_a2ui_components(components=components, data=given, catalog=known, validate_bindings=whole)
        faults: list[dict[str, str]] = found["errors"]
        return faults


def catalog_in(context: Iterable[Context]) -> Catalog | None:
    """The catalog that a page sent with its run; None if it sent none. One that cannot be read, or that no grammar can
    be made of, counts by its id alone."""
    for entry in context:
        if entry.description == A2UI_SCHEMA_CONTEXT_DESCRIPTION:
            try:
                wire = msgspec.json.decode(entry.value)
            except (msgspec.DecodeError, ValueError, RecursionError):
                return Catalog()
            return catalog_from(wire if isinstance(wire, dict) else {})
    for entry in context:
        if "A2UI catalog" in entry.description and (listed := _LISTED.search(entry.value)):
            return Catalog(id=listed[1])
    return None


def is_catalog(entry: Context) -> bool:
    """Whether the entry says what `render_a2ui` declares: the model need not be told twice."""
    return bool(entry.description == A2UI_SCHEMA_CONTEXT_DESCRIPTION)


def catalog_from(told: Mapping[str, object]) -> Catalog:
    """A catalog {catalogId, components}. One that no grammar can be made of counts by its id alone."""
    name, given = told.get("catalogId"), told.get("components")
    id = name if isinstance(name, str) and name else BASIC
    reader = _SchemaMerger()
    listed = list(given.items())[:COMPONENTS] if isinstance(given, dict) else []
    components = {name: reader.component(name, schema) for name, schema in listed if isinstance(schema, dict)}
    catalog = Catalog(id=id, components=components, shared=reader.shared)
    try:
        prepare(catalog.parameters())
    except (SchemaRefused, RecursionError):
        return Catalog(id=id)
    return catalog


class _SchemaMerger:
    """Brings components' schemas into one with shared definitions."""

    def __init__(self) -> None:
        self.shared: dict[str, Schema] = {}

    def component(self, name: str, schema: Schema) -> Schema:
        """A component alone: id and type first, nothing but its own properties."""
        given = schema.get("allOf")
        parts = [part for part in (given if isinstance(given, list) else [schema]) if isinstance(part, dict)]
        properties: Schema = {"id": {"type": "string"}, "component": {"const": name}}
        required = ["id", "component"]
        for part in parts:
            own, wanted = part.get("properties"), part.get("required")
            for key, value in own.items() if isinstance(own, dict) else ():
                if key not in properties:
                    properties[key] = self._brought(value, part, 0)
            required += [key for key in wanted if key not in required] if isinstance(wanted, list) else []
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _brought(self, node: Any, root: Schema, depth: int) -> Any:
        if depth > DEPTH:
            return {}
        if isinstance(node, list):
            return [self._brought(each, root, depth + 1) for each in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            return self._brought(_pointed(root, node["$ref"]), root, depth + 1)
        body = {key: self._keyword(key, value, root, depth + 1) for key, value in node.items()}
        # A reference to A2UI's shared type that the description names; the schema itself where two differ.
        said = body.get("description")
        found = _SHARED.match(said) if isinstance(said, str) else None
        if found is None:
            return body
        name, words = found[1], found[2]
        bare = {key: value for key, value in body.items() if key != "description"}
        if self.shared.setdefault(name, bare) != bare:
            return {**bare, "description": words} if words else bare
        return {"$ref": f"#/$defs/{name}"}

    def _keyword(self, key: str, value: Any, root: Schema, depth: int) -> Any:
        if key in ("description", "enum", "const", "default"):
            return value
        if key == "properties" and isinstance(value, dict):
            return {name: self._brought(each, root, depth) for name, each in value.items()}
        return self._brought(value, root, depth)


def _pointed(root: Schema, reference: str) -> Any:
    """What a JSON pointer means in the component's schema; {}, which is anything, for one that leads nowhere."""
    node: Any = root
    if not reference.startswith("#/"):
        return {}
    for step in reference[2:].split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(key)
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return {}
    return {} if node is None else node
