"""The versions of A2UI that pages take. Messages are made as 0.9 has them, and told as the page's version has them.

1.0 is as `@a2ui/web_core` 0.11.0 and `a2ui-core` 0.4.0 publish its schemas (v1_0/agent_to_renderer.json,
renderer_capabilities.json). A page says that it takes 1.0 with the object in which A2UI has renderers tell it,
`a2uiRendererCapabilities: {"v1.0": {"supportedCatalogIds": [...], "inlineCatalogs": [...]}}`, in forwardedProps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from agent_server.agents.generative_ui.catalog import Catalog, catalog_from
from agent_server.agents.generative_ui.operations import VERSION, Wire, update_components, update_data

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
