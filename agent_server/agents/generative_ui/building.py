"""Surfaces built in Python: a tool returns one, and clients that render A2UI 0.9 show it.

Components are nested here and flat on the wire, where each has an id and names its children by theirs (A2UI 0.9,
"updateComponents"). Anything in a component's properties may be a component, `bound(...)`, `each(...)` or `event(...)`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, model_serializer, model_validator

from agent_server.agents.generative_ui.operations import (
    OPERATIONS,
    Wire,
    create_surface,
    update_components,
    update_data,
)

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
