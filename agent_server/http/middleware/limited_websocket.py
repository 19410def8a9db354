"""uvicorn's WebSocket protocol with limits: on control frames per second, on small frames parsed per second, and on
waiting bytes.

uvicorn's protocol parses all received frames at once, up to 40,000 in 256 KB, puts every message into an unbounded
queue, and answers a ping whether or not the client reads.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Request

from agent_server.http.middleware.connections import Claim, Connections, Reason, UnreadTimeout, network
from agent_server.http.middleware.context import note_connection

SLICE = 128
"""Bytes that are parsed at once while frames are small: 21 empty frames."""
LARGE_SLICE = 2048
"""The same within a large frame; small frames may follow it."""
TURN_FRAMES, TURN_BYTES = 8, 64 * 1024
"""Limits of one turn, after which other connections are served; a frame takes about 15 microseconds."""
CONTROL_FRAMES = 64
"""Limit on pings and pongs per second. Clients send one in many seconds."""
SMALL_FRAMES = 256
"""Message frames below SMALL_BYTES that are parsed per second; further ones wait for the next second."""
SMALL_BYTES = 1024
FRAGMENTS = 8192
"""Limit on the frames of one message: 4 MB in frames of SMALL_BYTES / 2."""
CLOSE_SECONDS = 5.0


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """Buffers what arrives, and parses it in slices while the client reads and the application's queue is empty.

    reserved: see `PooledConnection`.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        reserved: bool = False,
    ) -> None:
        super().__init__(config=config, server_state=server_state, app_state=app_state, _loop=_loop)
        self.address = ""
        self.reserved = reserved
        self.is_closed = False
        self._connections = connections
        self._claim = Claim(connections, self)
        self._unparsed = bytearray()
        self._is_scheduled = False
        """Whether the next `_read` is scheduled already."""
        self._abort_timer: asyncio.TimerHandle | None = None
        self._second = 0.0
        self._control = self._small = self._frames = self._fragments = 0

    # ---- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.address = network(self.client[0] if self.client else "")
        self._unread = UnreadTimeout(self.transport, self, self._connections)
        self._connections.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._connections.leave(self)
        self._drop_unparsed()
        self._unread.end()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size()

    @property
    def is_waiting(self) -> bool:
        """Whether only the client's close frame is missing, as for ten seconds after a refusal."""
        return self.close_sent and not self.is_closed

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:  # the application starts when this returns
            note_connection(self.scope, None, self._claim)  # type: ignore[arg-type]

    # ---- receiving

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        self._unparsed += data
        self._connections.hold(self, len(data))
        if not self._is_scheduled:
            self._read()
        elif not self.is_closed:
            self.transport.pause_reading()

    def _read(self) -> None:
        """Parse buffered bytes for one turn."""
        self._is_scheduled = False
        if self.is_closed:
            return
        self._frames = read = 0
        size = SLICE
        while self._unparsed and self._may_read and self._frames < TURN_FRAMES and read < TURN_BYTES:
            chunk = bytes(self._unparsed[:size])
            del self._unparsed[:size]
            read += len(chunk)
            self._connections.hold(self, -len(chunk))
            before = self._frames
            super().data_received(chunk)
            size = SLICE if self._frames > before else min(2 * size, LARGE_SLICE)
        if self.is_closed or self.transport.is_closing():
            return
        if self._unparsed and self._may_read:
            self._schedule_read()
        if self._unparsed or self._is_scheduled:
            self.transport.pause_reading()
        elif not self.read_paused:
            self.transport.resume_reading()

    def _schedule_read(self) -> None:
        self._is_scheduled = True
        self._connections.take_turn(self._read)

    @property
    def _may_read(self) -> bool:
        """Whether the application has taken the previous message, and the client has read what it was sent. A closing
        connection is read for the client's close frame."""
        free = self.writable.is_set() and self.queue.empty()
        closing = self.is_closed or self.transport.is_closing()
        return not closing and not self._is_scheduled and (free or self.close_sent)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.begin()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.end()
        self._resume_parsing()

    async def receive(self) -> ASGIReceiveEvent:
        message = await super().receive()
        self._resume_parsing()
        return message

    def _resume_parsing(self) -> None:
        if self.is_closed or not self._unparsed:
            return
        self.transport.pause_reading()
        if not self._is_scheduled:
            self._schedule_read()

    async def send(self, message: ASGISendEvent) -> None:
        if self.is_closed:
            raise ClientDisconnected
        await super().send(message)

    def _drop_unparsed(self) -> None:
        self._connections.hold(self, -len(self._unparsed))
        self._unparsed.clear()

    # ---- frames

    def handle_ping(self) -> None:
        if self._is_control_allowed():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._is_control_allowed():
            super().handle_pong(event)

    def handle_text(self, event: Frame) -> None:
        self._fragments = 0
        self._count_frame(event)
        super().handle_text(event)

    def handle_bytes(self, event: Frame) -> None:
        self._fragments = 0
        self._count_frame(event)
        super().handle_bytes(event)

    def handle_cont(self, event: Frame) -> None:
        self._fragments += 1
        if self._fragments > FRAGMENTS:
            self._fail("frames", CloseCode.POLICY_VIOLATION, "a message has too many fragments")
            return
        self._count_frame(event)
        super().handle_cont(event)

    def _is_control_allowed(self) -> bool:
        self._begin_second()
        self._frames += 1
        self._control += 1
        if self._control > CONTROL_FRAMES:
            self._fail("frames", CloseCode.POLICY_VIOLATION, f"more than {CONTROL_FRAMES} control frames in a second")
        return not self.close_sent

    def _count_frame(self, event: Frame) -> None:
        self._begin_second()
        self._frames += 1
        self._small += len(event.data) < SMALL_BYTES
        if self._small > SMALL_FRAMES and not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_at(self._second + 1, self._read)

    def _begin_second(self) -> None:
        now = self.loop.time()
        if now - self._second >= 1:
            self._second = now
            self._control = self._small = 0

    # ---- refusing

    def refuse(self, reason: Reason) -> None:
        self._fail(reason, *CLOSINGS.get(reason, (CloseCode.POLICY_VIOLATION, reason)))

    def _fail(self, reason: Reason, code: CloseCode, close_reason: str) -> None:
        """Close the connection; nothing more is read."""
        if self.is_closed:
            return
        self.is_closed = True
        self._connections.refused(reason)
        self._connections.leave(self)
        self._drop_unparsed()
        self.stop_keepalive()
        if self.handshake_complete and not self.close_sent:
            self.conn.fail(code, close_reason)
            self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": close_reason})
        if reason == "unread_bytes":  # frees the write buffer at once
            self.transport.abort()
            return
        self.transport.close()
        self._abort_timer = self.loop.call_later(CLOSE_SECONDS, self.transport.abort)


CLOSINGS: dict[Reason, tuple[CloseCode, str]] = {
    "key": (CloseCode.POLICY_VIOLATION, "the key has expired or was revoked"),
    "held_bytes": (CloseCode.TRY_AGAIN_LATER, "too much is waiting to be read"),
    "unread_bytes": (CloseCode.TRY_AGAIN_LATER, "too much that was sent is not read"),
    "send_seconds": (CloseCode.POLICY_VIOLATION, "what was sent is not read"),
}
