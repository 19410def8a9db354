"""A2UI messages ("operations"): those a tool's result holds, their versions, and surfaces built in Python.

Clients dispatch on the key: createSurface, updateComponents, updateDataModel or deleteSurface, one in a message. The
version is "v0.9"; the renderer in the field (`@a2ui/web_core` 0.10.4) shows nothing for other versions' messages.
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
    """catalog_id: None where the page's is put in when it is painted."""
    body = {"surfaceId": surface_id} if catalog_id is None else {"surfaceId": surface_id, "catalogId": catalog_id}
    return {"version": VERSION, "createSurface": body}


def update_components(surface_id: str, components: Sequence[Mapping[str, object]]) -> Wire:
    return {"version": VERSION, "updateComponents": {"surfaceId": surface_id, "components": list(components)}}


def update_data(surface_id: str, value: object, path: str = "/") -> Wire:
    return {"version": VERSION, "updateDataModel": {"surfaceId": surface_id, "path": path, "value": value}}


def operations_in(content: object, catalog_id: str) -> dict[str, list[Wire]]:
    """The operations in a tool's result, by their surfaces, in order; {} for a result that is something else.

    A result is JSON text `{"a2ui_operations": [...]}`. What is no operation is left out, and a surface that names no
    catalog gets `catalog_id`.
    """
    if not isinstance(content, str) or OPERATIONS not in content or not content.lstrip().startswith("{"):
        return {}
    try:
        wire = msgspec.json.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}
    given = wire.get(OPERATIONS) if isinstance(wire, dict) else None
    found: dict[str, list[Wire]] = {}
    for operation in given if isinstance(given, list) else ():
        if (surface := _surface_of(operation)) is not None:
            found.setdefault(surface, []).append(_with_catalog(operation, catalog_id))
    return found


def _surface_of(operation: object) -> str | None:
    """The surface that an operation is about; None for what clients would refuse, or not understand."""
    if not isinstance(operation, dict):
        return None
    bodies = [operation[kind] for kind in KINDS if kind in operation]
    if len(bodies) != 1 or not isinstance(bodies[0], dict):
        return None
    surface = bodies[0].get("surfaceId")
    return surface if isinstance(surface, str) and surface else None


def _with_catalog(operation: Wire, catalog_id: str) -> Wire:
    body = operation.get("createSurface")
    told = {**operation, "version": VERSION}
    if body is None or body.get("catalogId"):
        return told
    return {**told, "createSurface": {**body, "catalogId": catalog_id}}


Version = Literal["v0.9", "v1.0"]
NEWER: Version = "v1.0"
CAPABILITIES = "a2uiRendererCapabilities"
NEWER_BASIC = "https://a2ui.org/specification/v1_0/catalogs/basic/catalog.json"
RETURNS = "returnType"
"""Of a function's call: in 1.0 the catalog says it, and a call may not."""


def version_of(props: object) -> Version:
    """The version that a page takes, by its forwardedProps."""
    return "v0.9" if _told(props) is None else NEWER


def renderer_catalog(props: object) -> Catalog | None:
    """The catalog that a page of 1.0 tells: its first inline one, or else the first that it supports; None if the page
    is none of 1.0."""
    told = _told(props)
    if told is None:
        return None
    inline, supported = _first(told.get("inlineCatalogs")), _first(told.get("supportedCatalogIds"))
    if isinstance(inline, dict):
        return catalog_from(inline)
    return Catalog(id=supported if isinstance(supported, str) and supported else NEWER_BASIC)


def in_version(operations: Iterable[Wire], version: Version) -> list[Wire]:
    """Messages of either version as this one has them. What 1.0 may write into createSurface is told apart from it in
    both: pages that have the surface already pass over a second createSurface."""
    apart = [each for operation in operations for each in _apart(operation)]
    return apart if version == VERSION else [_newer(each) for each in apart]


def _told(props: object) -> Mapping[str, object] | None:
    told = props.get(CAPABILITIES) if isinstance(props, dict) else None
    found = told.get(NEWER) if isinstance(told, dict) else None
    return found if isinstance(found, dict) else None


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) and value else None


def _apart(operation: Wire) -> Iterator[Wire]:
    """A createSurface that brings its components and data, as the messages of 0.9."""
    body = operation.get("createSurface")
    if not isinstance(body, dict):
        yield operation
        return
    kept = {key: value for key, value in body.items() if key not in ("components", "dataModel")}
    yield {**operation, "createSurface": kept}
    surface, components, data = body["surfaceId"], body.get("components"), body.get("dataModel")
    if isinstance(components, list):
        yield update_components(surface, components)
    if isinstance(data, dict):
        yield update_data(surface, data)


def _newer(operation: Wire) -> Wire:
    """A message of 0.9 as 1.0 has it: surfaces have no theme, what is deleted is set to null, calls name no type."""
    told = {**operation, "version": NEWER}
    if isinstance(body := operation.get("createSurface"), dict):
        told["createSurface"] = {key: value for key, value in body.items() if key != "theme"}
    elif isinstance(body := operation.get("updateDataModel"), dict):
        told["updateDataModel"] = {"value": None, **body}
    elif isinstance(body := operation.get("updateComponents"), dict):
        told["updateComponents"] = {**body, "components": _untyped(body.get("components"))}
    return told


def _untyped(value: object) -> object:
    """Without the types that calls of functions name."""
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
    """One component: its type in the client's catalog and its properties. id: given where the data or an action names
    it; else the surface makes one."""

    def __init__(self, component: str, /, *, id: str = "", **properties: object) -> None:
        self.component = component
        self.id = id
        self.properties = properties


class Each:
    """The children of a component that stand once for every item of a list in the data."""

    def __init__(self, component: Component, path: str) -> None:
        self.component = component
        self.path = path


def bound(path: str) -> Bound:
    """A value in the data: `/form/name`; inside of `each`, `name` of the item."""
    return {"path": path}


def each(component: Component, path: str) -> Each:
    """One `component` for every item of the list at `path`."""
    return Each(component, path)


def event(name: str, /, **context: object) -> Action:
    """What a button tells the agent: the event's name, and values, usually bound ones."""
    return {"event": {"name": name, "context": context}}


class Surface(BaseModel):
    """A surface with its first component and its data. Return it from a tool.

    id: unique in the thread; a later surface of that id stands for the same thing. catalog_id: None takes the one of
    the page that shows it. ValueError for two components of one id.
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
        """The components as the wire has them, the root first."""
        numbers = itertools.count(1)
        return list(_flattened(self.root, ROOT, numbers))

    def operations(self) -> list[Wire]:
        """The A2UI 0.9 messages that paint it."""
        made = [create_surface(self.id, self.catalog_id), update_components(self.id, self.components())]
        return [*made, update_data(self.id, self.data)] if self.data else made

    @model_serializer
    def _wire(self) -> dict[str, Any]:
        return {OPERATIONS: self.operations()}


def _flattened(component: Component, id: str, numbers: Iterator[int]) -> Iterator[Wire]:
    """The component and those in its properties, each before its own children."""
    inner: list[tuple[Component, str]] = []

    def named(value: object) -> object:
        match value:
            case Component():
                inner.append((value, value.id or f"{value.component.lower()}-{next(numbers)}"))
                return inner[-1][1]
            case Each():
                return {"componentId": named(value.component), "path": value.path}
            case dict():
                return {key: named(each) for key, each in value.items()}
            case list() | tuple():
                return [named(each) for each in value]
        return value

    properties = {key: named(value) for key, value in component.properties.items()}
    yield {"id": id, "component": component.component, **properties}
    for child, name in inner:
        yield from _flattened(child, name, numbers)
