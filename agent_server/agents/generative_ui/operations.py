"""A2UI 0.9 messages ("operations"), and those that a tool's result holds.

Clients dispatch on the key: createSurface, updateComponents, updateDataModel or deleteSurface, one in a message. The
version is "v0.9"; the renderer in the field (`@a2ui/web_core` 0.10.4) shows nothing for other versions' messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from ag_ui_a2ui_toolkit import A2UI_OPERATIONS_KEY, BASIC_CATALOG_ID

OPERATIONS: str = A2UI_OPERATIONS_KEY
BASIC: str = BASIC_CATALOG_ID
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
