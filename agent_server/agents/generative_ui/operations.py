"""A2UI messages ("operations"): those in a tool's result, their versions, and surfaces built in Python.

Clients dispatch on the key: createSurface, updateComponents, updateDataModel or deleteSurface, one per message. The
version is "v0.9"; the renderer in use (`@a2ui/web_core` 0.10.4) ignores messages of other versions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from ag_ui_a2ui_toolkit import (
    A2UI_OPERATIONS_KEY,
)
from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from agent_server.agents.generative_ui.catalog import Catalog, catalog_from

OPERATIONS: str = A2UI_OPERATIONS_KEY
VERSION = "v0.9"
KINDS = ("createSurface", "updateComponents", "updateDataModel", "deleteSurface")
ACTIVITY = "a2ui-surface"
Wire = dict[str, Any]


def create_surface(surface_id: str, catalog_id: str | None) -> Wire:
    """A createSurface message. catalog_id: None to insert the page's when the surface is shown."""
    body = {"surfaceId": surface_id} if catalog_id is None else {"surfaceId": surface_id, "catalogId": catalog_id}
    return {"version": VERSION, "createSurface": body}


def update_components(surface_id: str, components: Sequence[Mapping[str, object]]) -> Wire:
    return {"version": VERSION, "updateComponents": {"surfaceId": surface_id, "components": list(components)}}


def update_data(surface_id: str, value: object, path: str = "/") -> Wire:
    return {"version": VERSION, "updateDataModel": {"surfaceId": surface_id, "path": path, "value": value}}


def operations_in(content: object, catalog_id: str) -> dict[str, list[Wire]]:
    """The operations in a tool's result by surface, in order; {} for any other result.

    Such a result is JSON text `{"a2ui_operations": [...]}`. Invalid operations are left out, and a surface without a
    catalog gets `catalog_id`.
    """
    if not isinstance(content, str) or OPERATIONS not in content or not content.lstrip().startswith("{"):
        return {}
    try:
        wire = msgspec.json.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    raw_operations = wire.get(OPERATIONS) if isinstance(wire, dict) else None
    by_surface: dict[str, list[Wire]] = {}
    for operation in raw_operations if isinstance(raw_operations, list) else ():
        bodies = [operation[kind] for kind in KINDS if kind in operation] if isinstance(operation, dict) else []
        # Leave out what clients would refuse or not understand.
        if len(bodies) != 1 or not isinstance(bodies[0], dict):
            continue
        surface = bodies[0].get("surfaceId")
        if not isinstance(surface, str) or not surface:
            continue
        versioned = {**operation, "version": VERSION}
        if "createSurface" in operation and not bodies[0].get("catalogId"):
            versioned["createSurface"] = {**bodies[0], "catalogId": catalog_id}
        by_surface.setdefault(surface, []).append(versioned)
    return by_surface


Version = Literal["v0.9", "v1.0"]
NEWER: Version = "v1.0"
CAPABILITIES = "a2uiRendererCapabilities"
NEWER_BASIC = "https://a2ui.org/specification/v1_0/catalogs/basic/catalog.json"
RETURNS = "returnType"
"""A key in a function call that 1.0 does not allow: there the catalog has the return type."""


def version_of(props: object) -> Version:
    """The A2UI version that a page supports, according to its forwardedProps."""
    return "v0.9" if _renderer_capabilities(props) is None else NEWER


def renderer_catalog(props: object) -> Catalog | None:
    """The catalog of a page with A2UI 1.0: its first inline one, or else the first that it supports; None for a page
    without 1.0."""
    capabilities = _renderer_capabilities(props)
    if capabilities is None:
        return None
    inline, supported = _first(capabilities.get("inlineCatalogs")), _first(capabilities.get("supportedCatalogIds"))
    if isinstance(inline, dict):
        return catalog_from(inline)
    return Catalog(id=supported if isinstance(supported, str) and supported else NEWER_BASIC)


def in_version(operations: Iterable[Wire], version: Version) -> list[Wire]:
    """Convert messages of either version to this one. Components and data, which 1.0 allows in createSurface, become
    separate messages in both versions: pages that already have the surface ignore a second createSurface."""
    split: list[Wire] = []
    for operation in operations:
        create = operation.get("createSurface")
        if not isinstance(create, dict):
            split.append(operation)
            continue
        rest = {key: value for key, value in create.items() if key not in ("components", "dataModel")}
        split.append({**operation, "createSurface": rest})
        surface, components, data = create["surfaceId"], create.get("components"), create.get("dataModel")
        if isinstance(components, list):
            split.append(update_components(surface, components))
        if isinstance(data, dict):
            split.append(update_data(surface, data))
    if version == VERSION:
        return split
    # In 1.0 surfaces have no theme, deleted values are set to null, and calls have no return type.
    newer: list[Wire] = []
    for operation in split:
        converted = {**operation, "version": NEWER}
        if isinstance(body := operation.get("createSurface"), dict):
            converted["createSurface"] = {key: value for key, value in body.items() if key != "theme"}
        elif isinstance(body := operation.get("updateDataModel"), dict):
            converted["updateDataModel"] = {"value": None, **body}
        elif isinstance(body := operation.get("updateComponents"), dict):
            converted["updateComponents"] = {**body, "components": _untyped(body.get("components"))}
        newer.append(converted)
    return newer


def _renderer_capabilities(props: object) -> Mapping[str, object] | None:
    capabilities = props.get(CAPABILITIES) if isinstance(props, dict) else None
    newer = capabilities.get(NEWER) if isinstance(capabilities, dict) else None
    return newer if isinstance(newer, dict) else None


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _untyped(value: object) -> object:
    """Remove the return types from function calls."""
    if isinstance(value, list):
        return [_untyped(each) for each in value]
    if not isinstance(value, dict):
        return value
    calls = isinstance(value.get("call"), str)
    return {key: _untyped(each) for key, each in value.items() if not (calls and key == RETURNS)}


ROOT = "root"


Bound = dict[str, str]


Action = dict[str, object]


class Component:
    """One component: its type in the client's catalog and its properties. id: needed only if the data or an action
    refers to it; otherwise the surface generates one."""

    def __init__(self, component: str, /, *, id: str = "", **properties: object) -> None:
        self.component = component
        self.id = id
        self.properties = properties


class RepeatedChildren:
    """The children of a component, one for every item of a list in the data."""

    def __init__(self, component: Component, path: str) -> None:
        self.component = component
        self.path = path


def bound(path: str) -> Bound:
    """A value in the data: `/form/name`; inside of `each`, `name` of the item."""
    return {"path": path}


def each(component: Component, path: str) -> RepeatedChildren:
    """One `component` for every item of the list at `path`."""
    return RepeatedChildren(component, path)


def event(name: str, /, **context: object) -> Action:
    """The event that a button sends to the agent: its name, and values, usually bound ones."""
    return {"event": {"name": name, "context": context}}


class Surface(BaseModel):
    """A surface with its root component and its data. Return it from a tool.

    id: unique in the thread; a later surface with the same id replaces it. catalog_id: None uses the catalog of the
    page. Raises ValueError for two components with the same id.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: str
    root: Component
    data: dict[str, Any] = {}
    catalog_id: str | None = None

    @model_validator(mode="after")
    def _flat(self) -> Surface:
        ids = [component["id"] for component in self.components()]
        if twice := sorted({id for id in ids if ids.count(id) > 1}):
            raise ValueError(f"surface {self.id}: two components have the id {twice[0]}")
        return self

    def components(self) -> list[Wire]:
        """The components in wire form, the root first."""
        numbers = itertools.count(1)
        return list(_flattened(self.root, ROOT, numbers))

    def operations(self) -> list[Wire]:
        """The A2UI 0.9 messages that create the surface."""
        messages = [create_surface(self.id, self.catalog_id), update_components(self.id, self.components())]
        return [*messages, update_data(self.id, self.data)] if self.data else messages

    @model_serializer
    def _wire(self) -> dict[str, Any]:
        return {OPERATIONS: self.operations()}


def _flattened(component: Component, id: str, numbers: Iterator[int]) -> Iterator[Wire]:
    """The component and those nested in its properties, each before its own children."""
    inner: list[tuple[Component, str]] = []

    def reference_or_value(value: object) -> object:
        match value:
            case Component():
                inner.append((value, value.id or f"{value.component.lower()}-{next(numbers)}"))
                return inner[-1][1]
            case RepeatedChildren():
                return {"componentId": reference_or_value(value.component), "path": value.path}
            case dict():
                return {key: reference_or_value(each) for key, each in value.items()}
            case list() | tuple():
                return [reference_or_value(each) for each in value]
        return value

    properties = {key: reference_or_value(value) for key, value in component.properties.items()}
    yield {"id": id, "component": component.component, **properties}
    for child, name in inner:
        yield from _flattened(child, name, numbers)
