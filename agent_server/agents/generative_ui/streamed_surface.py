"""A surface painted while its call is being written.

What clients see of one call is a single activity, replaced as it grows: that the call has begun, the components once
all of them are there and valid, each further item of a repeated list, the whole data. Every state holds all the
operations so far, so that any one of them restores the surface (`@ag-ui/a2ui-middleware` 0.0.10 paints the same way).
"""

from __future__ import annotations

from typing import Any

from agent_server.agents.generative_ui.catalog import Catalog
from agent_server.agents.generative_ui.json_watch import JsonWatch, Path
from agent_server.agents.generative_ui.operations import (
    OPERATIONS,
    Wire,
    create_surface,
    update_components,
    update_data,
)

PROGRESS_STEP = 80
"""Characters of a call between two reports of its progress before the first paint."""
CHARACTERS_A_TOKEN = 4
Content = dict[str, object]


class Painting:
    """One call of `render_a2ui`. Feed it the arguments' text; it gives what the activity holds next."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._watch = JsonWatch(_wanted)
        self._surface = ""
        self._components: list[Wire] | None = None
        self._repeated: frozenset[str] = frozenset()
        self._items: dict[str, list[object]] = {}
        self._sent_items = 0
        self._data: Content | None = None
        self._written = self._reported = 0

    @property
    def painted(self) -> bool:
        """Whether components are shown."""
        return bool(self._surface) and self._components is not None

    def feed(self, delta: str) -> Content | None:
        """What is to be shown now; None if that has not changed."""
        self._written += len(delta)
        changed = False
        for path, value in self._watch.feed(delta):
            changed = self._take(path, value) or changed
        if changed and self.painted:
            return self.content()
        if self.painted or self._written - self._reported < PROGRESS_STEP:
            return None
        self._reported = self._written
        return {"status": "building", "progressTokens": self._written // CHARACTERS_A_TOKEN}

    def content(self) -> Content:
        """All operations so far."""
        made = [
            create_surface(self._surface, self._catalog.id),
            update_components(self._surface, self._components or ()),
        ]
        data = self._data
        if data is None:
            data = {key: list(items) for key, items in self._items.items()}
        return {OPERATIONS: [*made, update_data(self._surface, data)] if data else made}

    def _take(self, path: Path, value: Any) -> bool:
        """Whether a value that is complete changes what is shown."""
        if path == ("surfaceId",):
            self._surface = value if isinstance(value, str) else ""
            return self.painted
        if path == ("components",):
            if not self._catalog.faults(value, None, whole=False):
                self._components, self._repeated = value, _repeated(value)
            return self.painted
        if path == ("data",):
            self._data = value if isinstance(value, dict) else None
            return self._data is not None
        return len(path) == 3 and self._take_item(str(path[1]), value)

    def _take_item(self, key: str, value: object) -> bool:
        """Each item is told, until there are so many that a tenth more of them are told at once: all of them are sent
        every time."""
        if key not in self._repeated:
            return False
        self._items.setdefault(key, []).append(value)
        items = sum(map(len, self._items.values()))
        if items - self._sent_items < max(1, self._sent_items // 10):
            return False
        self._sent_items = items
        return True


def _wanted(path: Path) -> bool:
    """The arguments, and the items of lists in the data."""
    return len(path) == 1 or (len(path) == 3 and path[0] == "data" and isinstance(path[2], int))


def _repeated(components: list[Wire]) -> frozenset[str]:
    """The lists in the data that components stand once for every item of."""
    children = [component.get("children") for component in components]
    paths = [each.get("path") for each in children if isinstance(each, dict)]
    return frozenset(path.removeprefix("/") for path in paths if isinstance(path, str) and "/" not in path[1:])
