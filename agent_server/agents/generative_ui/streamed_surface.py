"""A surface shown while its call is being written.

For one call clients see a single activity that is replaced as it grows: the start of the call, the components once all
of them are complete and valid, each further item of a repeated list, and finally the whole data. Every state contains
all operations so far, so any one of them restores the surface (as in `@ag-ui/a2ui-middleware` 0.0.10).
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
"""How many characters of a call lie between two progress reports, before the components are shown."""
CHARACTERS_A_TOKEN = 4
Content = dict[str, object]


class StreamedSurface:
    """The surface of one `render_a2ui` call. `feed` takes the text of the arguments and returns the activity's next
    content."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._watch = JsonWatch(  # arguments, and items of lists in the data
            lambda path: len(path) == 1 or (len(path) == 3 and path[0] == "data" and isinstance(path[2], int))
        )
        self._surface = ""
        self._components: list[Wire] | None = None
        self._repeated: frozenset[str] = frozenset()
        self._items: dict[str, list[object]] = {}
        self._sent_items = 0
        self._data: Content | None = None
        self._characters = self._reported = 0

    @property
    def painted(self) -> bool:
        """Whether components are shown."""
        return bool(self._surface) and self._components is not None

    def feed(self, delta: str) -> Content | None:
        """The content to show now; None if it has not changed."""
        self._characters += len(delta)
        changed = False
        for path, value in self._watch.feed(delta):
            changed = self._take(path, value) or changed
        if changed and self.painted:
            return self.content()
        if self.painted or self._characters - self._reported < PROGRESS_STEP:
            return None
        self._reported = self._characters
        return {"status": "building", "progressTokens": self._characters // CHARACTERS_A_TOKEN}

    def content(self) -> Content:
        """All operations so far."""
        operations = [
            create_surface(self._surface, self._catalog.id),
            update_components(self._surface, self._components or ()),
        ]
        data = self._data
        if data is None:
            data = {key: list(items) for key, items in self._items.items()}
        return {OPERATIONS: [*operations, update_data(self._surface, data)] if data else operations}

    def _take(self, path: Path, value: Any) -> bool:
        """Use a complete value. Returns whether it changes what is shown."""
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
        # An item of a list.
        if len(path) != 3 or str(path[1]) not in self._repeated:
            return False
        self._items.setdefault(str(path[1]), []).append(value)
        # Every update sends all items, so with many of them an update waits until a tenth more have arrived.
        items = sum(map(len, self._items.values()))
        if items - self._sent_items < max(1, self._sent_items // 10):
            return False
        self._sent_items = items
        return True


def _repeated(components: list[Wire]) -> frozenset[str]:
    """The names of lists in the data whose items components are repeated for."""
    children = [component.get("children") for component in components]
    paths = [each.get("path") for each in children if isinstance(each, dict)]
    return frozenset(path.removeprefix("/") for path in paths if isinstance(path, str) and "/" not in path[1:])
