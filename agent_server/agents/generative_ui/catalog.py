"""The components that a page can show: its catalog, as `render_a2ui` declares it to the model and to the grammar.

CopilotKit's provider sends its catalog with every run, as a context entry whose value is JSON: {catalogId, components:
{Name: {allOf: [a reference, {properties, required}]}}} (`@copilotkit/a2ui-renderer` 1.74). A `$ref` in it points into
the component's own properties, and a description that begins with "REF:common_types.json#/$defs/Name|" names the
shared A2UI type of the schema.
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
    """The components that a page can show.

    id: the catalog's name in surfaces. components: type → JSON schema of one component, with references to
    `#/$defs/...` in `shared`; {} if the page does not list its components.
    """

    id: str = BASIC
    components: Mapping[str, Schema] = {}
    shared: Mapping[str, Schema] = {}

    def declaration(self) -> Tool:
        """Declare `render_a2ui` for this catalog. Its schema admits only the catalog's components and properties, the
        root first, so that a model constrained to it writes nothing else."""
        return Tool(name=RENDER, description=DESCRIPTION, parameters=self.parameters())

    def parameters(self) -> Schema:
        components = {f"component{name}": schema for name, schema in self.components.items()}
        open_schema: Schema = {
            "type": "object",
            "properties": {"id": {"type": "string"}, "component": {"type": "string"}},
            "required": ["id", "component"],
        }
        component: Schema = (
            {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in components]} if components else open_schema
        )
        root: Schema = {"allOf": [{"$ref": "#/$defs/component"}, {"properties": {"id": {"const": "root"}}}]}
        component_list = {"type": "array", "prefixItems": [root], "items": {"$ref": "#/$defs/component"}, "minItems": 1}
        return {
            "type": "object",
            "$defs": {**self.shared, **components, "component": component},
            "properties": {"surfaceId": {"type": "string"}, "components": component_list, "data": {"type": "object"}},
            "required": ["surfaceId", "components"],
            "additionalProperties": False,
        }

    def faults(self, components: object, data: object, *, whole: bool) -> list[dict[str, str]]:
        """The errors in components, as `{code, path, message}`. whole: the data is complete, so every path that a
        component is bound to must exist."""
        values = data if isinstance(data, dict) else {}
        catalog = {"components": dict(self.components)} if self.components else None
        result = validate_a2ui_components(components=components, data=values, catalog=catalog, validate_bindings=whole)
        faults: list[dict[str, str]] = result["errors"]
        return faults


def catalog_in(context: Iterable[Context]) -> Catalog | None:
    """The catalog that a page sent with its run; None if it sent none. Of a catalog that cannot be parsed, or that no
    grammar can be built from, only the id is used."""
    for entry in context:
        if entry.description == A2UI_SCHEMA_CONTEXT_DESCRIPTION:
            try:
                wire = msgspec.json.decode(entry.value)
            except (msgspec.DecodeError, ValueError, RecursionError):
                return Catalog()
            return catalog_from(wire if isinstance(wire, dict) else {})
    for entry in context:
        if "A2UI catalog" in entry.description and (match := _LISTED.search(entry.value)):
            return Catalog(id=match[1])
    return None


def is_catalog(entry: Context) -> bool:
    """Whether a context entry is the catalog, which `render_a2ui` declares, so that the prompt need not repeat it."""
    return bool(entry.description == A2UI_SCHEMA_CONTEXT_DESCRIPTION)


def catalog_from(wire: Mapping[str, object]) -> Catalog:
    """Read a catalog {catalogId, components}. If no grammar can be built from it, only its id is used."""
    name, raw_components = wire.get("catalogId"), wire.get("components")
    id = name if isinstance(name, str) and name else BASIC
    reader = _SchemaMerger()
    items = list(raw_components.items())[:COMPONENTS] if isinstance(raw_components, dict) else []
    components = {name: reader.component(name, schema) for name, schema in items if isinstance(schema, dict)}
    catalog = Catalog(id=id, components=components, shared=reader.shared)
    try:
        prepare(catalog.parameters())
    except (SchemaRefused, RecursionError):
        return Catalog(id=id)
    return catalog


class _SchemaMerger:
    """Merges the components' schemas into one with shared definitions."""

    def __init__(self) -> None:
        self.shared: dict[str, Schema] = {}

    def component(self, name: str, schema: Schema) -> Schema:
        """The schema of one component: id and type first, and only its own properties."""
        all_of = schema.get("allOf")
        parts = [part for part in (all_of if isinstance(all_of, list) else [schema]) if isinstance(part, dict)]
        properties: Schema = {"id": {"type": "string"}, "component": {"const": name}}
        required = ["id", "component"]
        for part in parts:
            own, part_required = part.get("properties"), part.get("required")
            for key, value in own.items() if isinstance(own, dict) else ():
                if key not in properties:
                    properties[key] = self._resolved(value, part, 0)
            required += [key for key in part_required if key not in required] if isinstance(part_required, list) else []
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def _resolved(self, node: Any, root: Schema, depth: int) -> Any:
        if depth > DEPTH:
            return {}
        if isinstance(node, list):
            return [self._resolved(each, root, depth + 1) for each in node]
        if not isinstance(node, dict):
            return node
        if isinstance(node.get("$ref"), str):
            return self._resolved(_dereference(root, node["$ref"]), root, depth + 1)
        body: Schema = {}
        for key, value in node.items():
            if key in ("description", "enum", "const", "default"):
                body[key] = value
            elif key == "properties" and isinstance(value, dict):
                body[key] = {name: self._resolved(each, root, depth + 1) for name, each in value.items()}
            else:
                body[key] = self._resolved(value, root, depth + 1)
        # Refer to the shared A2UI type that the description names; keep the schema itself if two of them differ.
        description = body.get("description")
        match = _SHARED.match(description) if isinstance(description, str) else None
        if match is None:
            return body
        name, words = match[1], match[2]
        bare = {key: value for key, value in body.items() if key != "description"}
        if self.shared.setdefault(name, bare) != bare:
            return {**bare, "description": words} if words else bare
        return {"$ref": f"#/$defs/{name}"}


def _dereference(root: Schema, reference: str) -> Any:
    """Resolve a JSON pointer in the component's schema; {}, which allows anything, if it does not resolve."""
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
