"""The routes, one module per wire. Each is thin: read bytes, call the adapter, subscribe to a run, write frames."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute, Route, WebSocketRoute

if TYPE_CHECKING:
    from agent_server.http.server import Server

LAST = "demo_routes"


def all_routes(server: Server) -> list[BaseRoute]:
    """The routes of all modules of this package. Those of the demonstration come last: its mounts match many paths."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    routes: list[BaseRoute] = []
    for name in sorted(names, key=lambda name: (name == LAST, name)):
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "routes"):
            routes += module.routes(server)
    for route in routes:
        if isinstance(route, Route | WebSocketRoute):
            # Starlette ends its patterns with `$`, which also matches before a line break: "/metrics\n" would be
            # answered as /metrics, while code that compares paths, such as authorization, sees another path.
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z")
    return routes
