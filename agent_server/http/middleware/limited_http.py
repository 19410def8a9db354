"""uvicorn's HTTP protocol with limits: on the length of a head, the time for head and body to arrive, the time that an
answer may stay unread, and the bytes that may wait behind it.

uvicorn's HTTP protocol has none of these. Its parser appends every piece of an incomplete header or URL to the previous
ones, at quadratic cost, and a connection that sends nothing, or half of a head, stays open forever. All of that happens
before authentication.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Any, Literal, cast

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from agent_server.http.middleware.connections import Claim, Connections, Reason, UnreadTimeout, network, refusal
from agent_server.http.middleware.context import note_connection

SLICE = 1024
"""Bytes that are passed to the parser at once, and so the most that it reads beyond a limit."""
HEAD_END = b"\r\n\r\n"
TINY = 64
"""The smallest piece of a body that is passed to the parser."""
HEADERS = 128
"""Limit on the header fields of one request; every header look-up scans all of them."""
_OTHER_UPGRADE = re.compile(rb"\r\nupgrade:(?![ \t]*websocket[ \t]*\r\n)", re.IGNORECASE)
"""The header `Upgrade` for another protocol than WebSocket, such as the `h2c` that Java's client offers with its first
request. It may be ignored (RFC 9110, section 7.8), but the parser ends the message at its head and drops the body."""
CLOSE_SECONDS = 5.0
"""How long a refused client has to read the error."""


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with the limits.

    A connection is in one of three phases: "head" until the headers are complete, "body" until the message is complete,
    and "between" messages. `_pending` counts the bytes that the parser has consumed without completing anything. One
    timer limits a phase; most requests never start it, since they arrive in one piece.

    Pipelined requests wait unparsed until the earlier one is answered: uvicorn would create an object for each, and
    resume reading with every answer.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self.address = ""
        self.reserved = False
        self.is_closed = False
        self._connections = connections
        self._claim = Claim(connections, self)
        self._unparsed: list[bytes] = []
        self._abort_timer: asyncio.TimerHandle | None = None
        self._limits = connections.limits
        self._phase: Literal["head", "body", "between"] = "between"
        self._is_upgrading = False
        self._message = 0
        self._pending = 0
        self._head = 0
        self._fields = 0
        self._refusal: Reason | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timed: tuple[Reason, int] | None = None
        self._disconnected: asyncio.Future[None] | None = None
        self._answering: RequestResponseCycle | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = self._read_gate = GatedFlowControl(transport)
        self._unread = UnreadTimeout(transport, self, self._connections)
        self.address = network(self.client[0] if self.client else "")
        if self._connections.admit(self, len(self.connections)):
            self._update_timer()
        else:
            self.refuse("connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_pool()
        self.resume_writing()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        for cycle in (self._answering, *(cycle for cycle, _ in self.pipeline)):  # uvicorn notifies only the last one
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)

    def handle_websocket_upgrade(self) -> None:
        """Queue the upgrade: opening a WebSocket costs as much as a pipelined request, and takes turns with those."""
        if self._refusal is None:
            self._is_upgrading = True
            self._read_gate.hold()
            self._connections.take_turn(self._upgrade)

    def _upgrade(self) -> None:
        if not self.is_closed and not self.transport.is_closing():
            self._leave_pool()
            self._read_gate.release()
            upgraded: Any = partial(cast("Any", self.config.ws_protocol_class), reserved=self.reserved)
            self.ws_protocol_class = upgraded
            super().handle_websocket_upgrade()

    def _leave_pool(self) -> None:
        self.is_closed = True
        self._connections.leave(self)
        self._connections.hold(self, -sum(map(len, self._unparsed)))
        self._unparsed = []
        self._cancel_timer()

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client, either to send a request or to read an answer."""
        return not self.is_closed and (self._is_idle or self.flow.write_paused)

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    # ---- receiving

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._keep_unparsed(data)
            return
        start = 0
        while start < len(data) and not self.is_closed and not self.transport.is_closing():
            if self._is_full:
                self._keep_unparsed(data[start:])
                break
            # No chunk contains the ends of two heads, except with tiny bodies: a pipelined request has to wait.
            head_end = data.find(HEAD_END, start + (TINY if self._phase == "body" else 0), start + SLICE)
            end = start + SLICE if head_end < 0 else head_end + len(HEAD_END)
            chunk = data[start:end]
            start = end
            self._pending += len(chunk)
            if self._phase != "body":
                chunk = _OTHER_UPGRADE.sub(b"\r\nignored:", chunk)
            super().data_received(chunk)
            if self._pending > self._limits.head_bytes + SLICE:
                self._refusal = "head_bytes"
            if self._refusal is not None:
                self.refuse(self._refusal)
        if not self.is_closed:
            self._update_timer()

    @property
    def _is_full(self) -> bool:
        """Whether a request is being answered or an answer is unread, so that no further request may be parsed."""
        waits = self._is_upgrading or not self._is_idle or self.flow.write_paused
        return self._phase == "between" and waits

    def _keep_unparsed(self, data: bytes) -> None:
        self._unparsed.append(data)
        self._read_gate.hold()
        self._connections.hold(self, len(data))

    def on_response_complete(self) -> None:
        self._answering = None
        self._connections.unclaim(self)
        super().on_response_complete()
        self._resume_parsing()

    def _resume_parsing(self) -> None:
        """Queue the parsing of waiting requests."""
        if self._unparsed and not self.pipeline and not self.transport.is_closing():
            self._unset_keepalive_if_required()  # the delay is the server's, not the client's
            if not self._is_full:
                self._connections.take_turn(self._parse_waiting)

    def _parse_waiting(self) -> None:
        if self.is_closed or not self._unparsed or self.transport.is_closing():
            return
        data, self._unparsed = b"".join(self._unparsed), []
        self._connections.hold(self, -len(data))
        self._read_gate.release()
        self.data_received(data)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def on_message_begin(self) -> None:
        self._phase = "head"
        self._message += 1
        self._pending = self._head = self._fields = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._head += len(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head += len(name) + len(value)
        self._fields += 1
        if self._head > self._limits.head_bytes or self._fields > HEADERS:
            self._refusal = "head_bytes"
        if self._phase == "head":  # trailers are dropped: they must not change headers that were checked
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = "body"
        self._pending = 0
        if self._refusal is None:
            if self._disconnected is None:
                self._disconnected = self.loop.create_future()
            note_connection(cast("Scope", self.scope), self._disconnected, self._claim)
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._pending = 0
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._phase = "between"
        self._pending = 0
        if self._refusal is None:
            super().on_message_complete()
            # Reading was paused if much of the body had arrived at once. Nothing else resumes it now, and a paused
            # connection does not report a disconnect. With another request in the queue it stays paused.
            if not self.pipeline and not self.transport.is_closing():
                self.flow.resume_reading()

    # ---- time

    def _update_timer(self) -> None:
        """Start the timer for what the client has to send next, unless it already runs for that."""
        waits_for: Reason | None = None
        waits = self._is_idle and not self._unparsed and not self._is_upgrading
        if self._phase == "body":
            waits_for = "body_seconds"
        elif self._phase == "head" or waits:
            waits_for = "head_seconds"
        timed = None if waits_for is None else (waits_for, self._message)
        if timed == self._timed:
            return
        self._cancel_timer()
        if waits_for is not None:
            self._timed = timed
            seconds = self._limits.head_seconds if waits_for == "head_seconds" else self._limits.body_seconds
            self._timer = self.loop.call_later(seconds, self._time_out, waits_for)

    def _cancel_timer(self) -> None:
        self._timed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self, reason: Reason) -> None:
        self._timed = None
        if reason == "body_seconds" and self.flow.read_paused:  # the server has paused reading
            self._update_timer()
        else:
            self.refuse(reason)

    # ---- refusing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.end()
        self._resume_parsing()

    def refuse(self, reason: Reason) -> None:
        """Close the connection; send the reason as an HTTP error if no answer has begun."""
        if self.is_closed:
            return
        answering = self._answering is not None and self._answering.response_started
        self._refusal = reason
        self._leave_pool()
        self._connections.refused(reason)
        if not answering:
            self.transport.write(refusal(reason))
        if reason == "unread_bytes":  # frees the write buffer at once
            self.transport.abort()
            return
        self.transport.close()
        # Closing waits until the client has read everything, which may never happen.
        self._abort_timer = self.loop.call_later(CLOSE_SECONDS, self.transport.abort)


class GatedFlowControl(FlowControl):
    """uvicorn's flow control, which also pauses reading while received bytes wait to be parsed."""

    _is_held = False

    def hold(self) -> None:
        self._is_held = True
        self.pause_reading()

    def release(self) -> None:
        self._is_held = False
        self.resume_reading()

    def resume_reading(self) -> None:
        if not self._is_held:
            super().resume_reading()
