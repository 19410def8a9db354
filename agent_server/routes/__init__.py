"""The routes, one module a wire. Each is thin: read bytes, call the adapter, subscribe to a run, write frames."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from starlette.routing import BaseRoute

if TYPE_CHECKING:
    from agent_server.server import Server

MODULES = ("operations", "agui", "openai", "copilotkit", "demo")


def all_routes(server: Server) -> list[BaseRoute]:
    """Every route of every module in order; the demo's static files come last because they answer everything."""
    found: list[BaseRoute] = []
    for name in MODULES:
        found += importlib.import_module(f"agent_server.routes.{name}").routes(server)
    return found
