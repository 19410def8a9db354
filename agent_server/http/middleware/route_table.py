"""The routes of fixed paths, found by looking the path up instead of trying one route after the other."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_server.http.middleware.errors import route_path

TELEMETRY = "fastapi.telemetry"
"""Where FastAPI keeps the trace of a request, if one is made; its router notes the route there."""


class RouteTable:
    """Stands in the place of a router's own matching. What it finds is what the router would find: for each path
    without parameters and each method, the first route of the list that matches was looked for when the table was made.
    Whatever else is asked for is left to the router, and so are routes that are added later, behind those of the table.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._others: ASGIApp = router.middleware_stack
        fixed = [route for route in router.routes if isinstance(route, Route) and not route.param_convertors]
        asked = [(route.path, method) for route in fixed for method in route.methods or ()]
        self._routes = {each: route for each in asked if (route := self._first(*each)) is not None}

    def _first(self, path: str, method: str) -> Route | None:
        scope: Scope = {"type": "http", "path": path, "root_path": "", "method": method}
        found = next((route for route in self._router.routes if route.matches(scope)[0] is Match.FULL), None)
        return found if type(found) is Route and not found.param_convertors else None

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def find(self, scope: Scope) -> Route | None:
        """The route of a request; None where the router is to look for it."""
        if scope["type"] != "http" or scope.get(TELEMETRY) is not None:
            return None
        return self._routes.get((route_path(scope), scope["method"]))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (route := self.find(scope)) is None:
            await self._others(scope, receive, send)
            return
        self.enter(scope, route)
        await route.app(scope, receive, send)

    def enter(self, scope: Scope, route: Route) -> None:
        """Make known to a route what the router would."""
        scope.setdefault("router", self._router)
        scope["endpoint"] = route.endpoint
        scope["path_params"] = dict(scope.get("path_params", {}))
