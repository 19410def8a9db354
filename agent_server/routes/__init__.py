"""The routes, one module a wire. Each is thin: read bytes, call the adapter, subscribe to a run, write frames."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

if TYPE_CHECKING:
    from agent_server.server import Server

LAST = "demo_routes"


def all_routes(server: Server) -> list[BaseRoute]:
    """Every route of every module here that has some; the demo's static files come last, since they answer all."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    found: list[BaseRoute] = []
    for name in sorted(names, key=lambda name: (name == LAST, name)):
        module = importlib.import_module(f"{__name__}.{name}")
        if hasattr(module, "routes"):
            found += module.routes(server)
    return found
