"""The server's own routes of fixed paths, answered without the framework's layers in between.

Between an application and a route stand nine layers, each of which costs every request a coroutine and most of them a
`send` of their own, and none of which does anything for these routes that is not done here: the same checks in the same
order, and the same answers to what a route raises. Whatever else there is to do, because somebody has asked for it,
goes the long way.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Mapping

from starlette.middleware.body_limit import MAX_BODY_SIZE_SCOPE_KEY
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, request_response
from starlette.types import Receive, Scope

from adapters.errors import RequestError
from agent_server.http.auth import Authority, Quotas, admit, refused_answer
from agent_server.http.middleware.counted_send import CountedSend
from agent_server.http.middleware.errors import error_response
from agent_server.http.middleware.origins import BrowserPolicy
from agent_server.http.middleware.route_table import RouteTable

Handler = Callable[[Request, Exception], Coroutine[object, object, Response]]
LOOK_SECONDS = 1.0
"""How long it may take until tracing is noticed that is set up while the server runs."""


class DirectAnswers:
    """handlers: what answers an exception, by its class; the one of `Exception` gets all that has none of its own.
    observed: whether somebody watches the framework's requests."""

    def __init__(
        self,
        table: RouteTable,
        *,
        policy: BrowserPolicy,
        authority: Authority,
        quotas: Quotas | None,
        handlers: Mapping[int | type[Exception], Handler],
        observed: Callable[[], bool],
    ) -> None:
        self._table = table
        self._plain = {id(route) for route in table if _is_plain(route)}
        self._policy = policy
        self._authority = authority
        self._quotas = quotas
        self._handlers = handlers
        self._observed = observed
        self._looked = float("-inf")
        self._watched = False

    def find(self, scope: Scope) -> Route | None:
        """The route of a request that can be answered here; None for any other request."""
        if scope["type"] != "http" or MAX_BODY_SIZE_SCOPE_KEY in scope:
            return None
        route = self._table.find(scope)
        return None if route is None or id(route) not in self._plain or self._is_watched() else route

    def _is_watched(self) -> bool:
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked, self._watched = now, self._observed()
        return self._watched

    async def answer(
        self, route: Route, scope: Scope, headers: Mapping[bytes, bytes], receive: Receive, send: CountedSend
    ) -> None:
        try:
            request = Request(scope, receive, send)
            response = await self._refused(scope, headers)
            if response is None:
                self._table.enter(scope, route)
                response = await route.endpoint(request)
            await response(scope, receive, send)
        except Exception as error:
            kinds = type(error).__mro__ if not send.begun else (Exception,)
            handler = next(self._handlers[kind] for kind in kinds if kind in self._handlers)
            response = await handler(Request(scope), error)
            if not send.begun:
                await response(scope, receive, send)

    async def _refused(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Response | None:
        """The answer to a request that may not be made; None where it may, and is counted."""
        if (forbidden := self._policy.refusal(scope, headers)) is not None:
            return error_response(scope, forbidden)
        try:
            await admit(scope, self._authority, self._quotas, headers)
        except RequestError as refusal:
            return refused_answer(scope, refusal)
        return None


def _is_plain(route: Route) -> bool:
    """Whether the endpoint is a coroutine function and stands alone: a route's own middleware, such as compression, is
    told only by what the framework put in the place of `app`, and is not left out."""
    if not inspect.iscoroutinefunction(route.endpoint):
        return False
    return getattr(route.app, "__code__", None) is request_response(route.endpoint).__code__
