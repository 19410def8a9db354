"""The outermost `send`: adds the request's id to every answer and counts it, whichever middleware sent it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.types import Message, Scope, Send

from adapters.errors import RequestError
from agent_server.http.middleware.context import RequestContext, warning_headers
from agent_server.http.middleware.errors import deny_websocket

Count = Callable[[Scope, RequestContext, int], None]


SWITCHING = 101


START_MESSAGES = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class CountedSend:
    """ASGI's `send` for one request.

    count: called with the status when the answer starts. ids: the headers with the request's id. started: whether the
    answer has started.
    """

    __slots__ = ("_context", "_count", "_ids", "_scope", "_send", "started")

    def __init__(
        self, scope: Scope, context: RequestContext, send: Send, count: Count, ids: Sequence[tuple[bytes, bytes]]
    ) -> None:
        self._scope = scope
        self._context = context
        self._send = send
        self._count = count
        self._ids = ids
        self.started = False

    async def __call__(self, message: Message) -> None:
        kind = message["type"]
        if kind == "websocket.close" and not self.started:  # sent by the router for an unknown path
            self.started = True
            await deny_websocket(self._scope, self, RequestError("not_found", "There is no WebSocket at this path."))
            return
        if kind in START_MESSAGES:
            self.started = True
            context = self._context
            message = {
                **message,
                "headers": [*message.get("headers", ()), *self._ids, *context.headers, *warning_headers(context)],
            }
            self._count(self._scope, context, message.get("status", SWITCHING))
        await self._send(message)
