"""What a page with A2UI sends: its catalog, as `@copilotkit/react-core` 1.74 wrote it (six of the basic components)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ag_ui_a2ui_toolkit import A2UI_SCHEMA_CONTEXT_DESCRIPTION

CATALOG = Path(__file__).with_name("catalog.json").read_text()
CONTEXT = [{"description": A2UI_SCHEMA_CONTEXT_DESCRIPTION, "value": CATALOG}]
PAGE: dict[str, Any] = {"context": CONTEXT, "forwardedProps": {"a2uiCatalogAvailable": True}}

FORM: list[dict[str, Any]] = [
    {"id": "root", "component": "Column", "children": ["name", "send"]},
    {"id": "name", "component": "TextField", "label": "Name", "value": {"path": "/form/name"}},
    {
        "id": "send",
        "component": "Button",
        "child": "word",
        "action": {"event": {"name": "book", "context": {"name": {"path": "/form/name"}}}},
    },
    {"id": "word", "component": "Text", "text": "Book"},
]
DATA: dict[str, Any] = {"form": {"name": "Ada"}}
LIST: list[dict[str, Any]] = [
    {"id": "root", "component": "List", "children": {"componentId": "item", "path": "/items"}},
    {"id": "item", "component": "Text", "text": {"path": "title"}},
]
