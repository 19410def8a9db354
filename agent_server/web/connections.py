"""Limits on connections: how many there are, how long a head may be, and how long head and body may take to arrive.

uvicorn's HTTP protocol has none of these. Its parser joins what has arrived of an unfinished header or URL to what
comes next, at a cost that grows with the square of the length, and a connection that sends nothing, or half of a head,
is kept for ever. All of that happens before anybody is asked for a key.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, Literal, cast

import msgspec
from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from agent_server.ids import new_id
from agent_server.settings import ConnectionLimits
from agent_server.web.context import note_connection

SLICE = 16 * 1024
"""Bytes that the parser is given at once, and so what it may have read beyond a limit."""
HEADERS = 128
"""Fields in one head; each costs a look whenever a header is looked up."""
Reason = Literal["connections", "head_bytes", "head_seconds", "body_seconds"]
REFUSALS: dict[Reason, tuple[HTTPStatus, str]] = {
    "connections": (HTTPStatus.SERVICE_UNAVAILABLE, "The server has as many connections as it may have."),
    "head_bytes": (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The URL and the headers are longer than may be."),
    "head_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The headers did not arrive in time."),
    "body_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time."),
}


class Connections:
    """The connections of one server by the addresses that they come from, and who may have another.

    refused: called with the reason for every connection that was refused or closed for a limit.
    """

    def __init__(self, limits: ConnectionLimits, refused: Callable[[Reason], None] = lambda _: None) -> None:
        self.limits = limits
        self.refused = refused
        self._of: dict[str, dict[LimitedProtocol, None]] = {}

    def protocol(self) -> Any:
        """What uvicorn's `http` setting takes: it is called like the protocol's class."""
        return partial(LimitedProtocol, connections=self)

    def admit(self, new: LimitedProtocol, total: int) -> bool:
        """Whether `new`, the last of `total` connections, may stay. When there are too many, addresses with less than
        an equal share get in, and the address with the most loses one on which it was taking its time."""
        own = self._of.get(new.address, {})
        if total > self.limits.connections:
            share = max(1, self.limits.connections // len({*self._of, new.address}))
            if len(own) >= share or not self._evict():
                return False
        self._of.setdefault(new.address, {})[new] = None
        return True

    def leave(self, old: LimitedProtocol) -> None:
        own = self._of.get(old.address, {})
        own.pop(old, None)
        if not own:
            self._of.pop(old.address, None)

    def _evict(self) -> bool:
        """Close the oldest connection on which nothing is being answered, of the address that has the most."""
        most = max(self._of.values(), key=len, default={})
        victim = next((each for each in most if each.is_waiting), None)
        if victim is None:
            return False
        victim.refuse("connections")
        return True


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol under the limits.

    A connection is in one of three phases: "head" until the headers are complete, "body" until the message is, and
    "between" messages. What the parser has been given without getting anywhere is counted in bytes; how long a phase
    takes is watched by one timer, which most requests never start, since they arrive in one piece.
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
        self._connections = connections
        self._limits = connections.limits
        self._phase: Literal["head", "body", "between"] = "between"
        self._message = 0
        self._pending = 0
        self._head = 0
        self._fields = 0
        self._refusal: Reason | None = None
        self._over = False
        self._timer: asyncio.TimerHandle | None = None
        self._timed: tuple[Reason, int] | None = None
        self._lost: asyncio.Future[None] | None = None

    # ---- the connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network(self.client[0] if self.client else "")
        if self._connections.admit(self, len(self.connections)):
            self._watch()
        else:
            self.refuse("connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self._released()
        super().connection_lost(exc)
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(None)

    def handle_websocket_upgrade(self) -> None:
        if self._refusal is None:
            self._released()
            super().handle_websocket_upgrade()

    def _released(self) -> None:
        self._over = True
        self._connections.leave(self)
        self._unwatch()

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client here, and answers nothing."""
        return not self._over and (self.cycle is None or self.cycle.response_complete)

    # ---- what arrives

    def data_received(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE):
            if self._over:
                return
            piece = data if len(data) <= SLICE else data[start : start + SLICE]
            self._pending += len(piece)
            super().data_received(piece)
            if self._pending > self._limits.head_bytes + SLICE:
                self._refusal = "head_bytes"
            if self._refusal is not None:
                self.refuse(self._refusal)
        if not self._over:
            self._watch()

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
        if self._phase == "head":  # a field behind the body is no header: nothing that was checked may change
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._phase = "body"
        self._pending = 0
        if self._refusal is None:
            if self._lost is None:
                self._lost = self.loop.create_future()
            note_connection(cast("Scope", self.scope), self._lost)
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
            # Reading was paused if much of the body had come at once. Nobody asks for more of it now, and a connection
            # that is not read does not tell that it is lost. With another request in the queue it stays paused.
            if not self.pipeline and not self.transport.is_closing():
                self.flow.resume_reading()

    # ---- time

    def _watch(self) -> None:
        """Let the timer run for what the client has to send next; a timer that runs for just that goes on."""
        waits_for = self._waits_for()
        timed = None if waits_for is None else (waits_for, self._message)
        if timed == self._timed:
            return
        self._unwatch()
        if waits_for is not None:
            self._timed = timed
            seconds = self._limits.head_seconds if waits_for == "head_seconds" else self._limits.body_seconds
            self._timer = self.loop.call_later(seconds, self._late, waits_for)

    def _waits_for(self) -> Reason | None:
        if self._phase == "body":
            return "body_seconds"
        return "head_seconds" if self._phase == "head" or self.is_waiting else None

    def _unwatch(self) -> None:
        self._timed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, reason: Reason) -> None:
        self._timed = None
        if reason == "body_seconds" and self.flow.read_paused:  # it is us who do not read
            self._watch()
        else:
            self.refuse(reason)

    # ---- refusing

    def refuse(self, reason: Reason) -> None:
        """Close the connection, with a word about it where no answer has begun."""
        if self._over:
            return
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        self._refusal = reason
        self._released()
        self._connections.refused(reason)
        if not answering:
            self.transport.write(_answer(reason))
        self.transport.close()


def network(address: str) -> str:
    """What is one place: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber has whole."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))


def _answer(reason: Reason) -> bytes:
    status, message = REFUSALS[reason]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": reason}})
    head = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"x-request-id: {new_id('req')}",
        *(["retry-after: 1"] if status >= 500 else []),
        "connection: close",
    ]
    return "\r\n".join([*head, "\r\n"]).encode() + body
