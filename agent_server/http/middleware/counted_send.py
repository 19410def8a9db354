"""The outermost `send`: adds the request's id to every answer and counts it, whichever middleware sent it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Message, Scope, Send

from adapters.errors import RequestError
from agent_server.http.middleware.connections import Claim
from agent_server.http.middleware.context import RequestContext, warning_headers
from agent_server.http.middleware.errors import deny_websocket

Count = Callable[[Scope, RequestContext, int], None]


SWITCHING = 101
START_MESSAGES = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
SLICE_BYTES = 64 * 1024
"""The most that is written to a connection in one turn of the event loop: the system call for 3.5 MB takes 8 ms. It is
also the high-water mark of write buffers, so that sending one slice does not wait for the client."""


def in_slices(send: Send, claim: Claim | None) -> Send:
    """Return a `send` that sends a large body in slices, between which other requests have their turn.

    What a client is too slow to take is sent in one piece, since the connection's limits count what waits there.
    Nothing else may send a part of the same answer meanwhile. claim: of the request; None if the ASGI server has no
    such limits.
    """

    async def send_slices(message: Message) -> None:
        body, more = message["body"], message.get("more_body", False)
        start, end = 0, SLICE_BYTES
        while start < len(body):
            await send({**message, "body": body[start:end], "more_body": more or end < len(body)})
            await asyncio.sleep(0)
            start, end = end, end + SLICE_BYTES
            if claim is not None and claim.unsent_bytes:
                end = len(body)

    def send_message(message: Message) -> Awaitable[None]:
        return send(message) if len(message.get("body", b"")) <= SLICE_BYTES else send_slices(message)

    return send_message


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
