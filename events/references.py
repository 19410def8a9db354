"""References within one JSON schema: JSON pointers, anchors, ids and paths relative to ids. Nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

Place = Any
"""A `referencing` resolver: it knows the base URI at one place of a schema."""
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)
"""The errors that `referencing` raises for keywords that do not follow the specification."""


class References:
    """Resolves the references of one schema."""

    def __init__(self, root: Mapping[str, object]) -> None:
        dialect = root.get("$schema")
        self._specification = specification_with(dialect if isinstance(dialect, str) else "", default=DRAFT202012)
        nodes: list[tuple[str, object]] = []
        waiting: list[tuple[str, object]] = [("", root)]
        while waiting:
            pointer, node = waiting.pop()
            nodes.append((pointer, node))
            parts = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
            for key, value in parts:
                if isinstance(value, Mapping | list):
                    waiting.append((f"{pointer}/{escape(str(key))}", value))
        self._pointers = {id(node): pointer for pointer, node in nodes}
        anchors = ("$dynamicAnchor", "$recursiveAnchor")
        self._anchors = [
            node[each] for _, node in nodes if isinstance(node, Mapping) for each in anchors if each in node
        ]
        resource: Resource[Any] = self._specification.create_resource(root)
        name = root.get("$id")
        uri = name if isinstance(name, str) else ""
        registry: Registry[Any] = Registry().with_resource(uri, resource)
        try:
            registry = registry.crawl()
        except (*_MALFORMED, Unresolvable, RecursionError):  # anchors and ids below the root cannot be resolved then
            pass
        self.top: Place = registry.resolver(uri)

    def inside(self, node: Mapping[str, object], place: Place) -> Place:
        """Return the place within a subschema, which may have an id of its own."""
        try:
            return place.in_subresource(self._specification.create_resource(node))
        except _MALFORMED:
            return place

    def target(self, reference: object, place: Place) -> tuple[Any, Place] | None:
        """Return a reference's target and the place there, or None if the target is not within the schema."""
        if not isinstance(reference, str):
            return None
        try:
            resolved = place.lookup(reference)
        except (*_MALFORMED, Unresolvable, RecursionError):
            return None
        return resolved.contents, resolved.resolver

    def static(self, reference: object) -> bool:
        """Return whether a dynamic reference always has the same target, because there are no two of its anchors."""
        name = reference.rpartition("#")[2] if isinstance(reference, str) else ""
        return self._anchors.count(name or True) <= 1

    def pointer(self, node: object) -> str:
        """Return the JSON pointer of an object within the schema."""
        return self._pointers.get(id(node), "")


def escape(name: str) -> str:
    """Escape a name as a segment of a JSON pointer (RFC 6901, section 3)."""
    return name.replace("~", "~0").replace("/", "~1")
