"""Divides the connections: a share for each unauthenticated address, one for each tenant, and a reserve.

A connection counts for its address until a request on it is admitted, and then for the request's tenant until the
answer is complete; a WebSocket until it is closed. Connections that count for an address and wait for their client are
closed to make room, so that a proxy's idle connections lock out no other client.
"""

from __future__ import annotations

import asyncio
import ipaddress
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Literal, Protocol

import msgspec

from adapters.errors import RequestError
from agent_server.ids import new_id
from agent_server.settings import ConnectionLimits

RESERVE_SHARE = 16
"""One in RESERVE_SHARE connections is reserved for operators and health probes."""
TENANT_SHARE = 1
"""One of several tenants may have TENANT_SHARE times the free connections: half of all if alone."""
HELD_BYTES = 64 * 2**20
"""Limit on received bytes, over all connections, that wait for an earlier request to be answered."""
UNREAD_BYTES = 256 * 2**20
"""Limit on bytes of answers, over all connections, that clients have not read."""
TURN_SECONDS = 0.002
"""Pause between two pipelined requests, over all connections."""
LAPSE_SECONDS = 2.0
"""How long a connection may outlive the key that it was opened with."""
RETRY_AFTER = 1.0
Reason = Literal[
    "connections",
    "tenant_connections",
    "head_bytes",
    "head_seconds",
    "body_seconds",
    "send_seconds",
    "held_bytes",
    "unread_bytes",
    "frames",
    "key",
]
REFUSALS: dict[Reason, tuple[HTTPStatus, str]] = {
    "connections": (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "The server has reached its limit of connections. Try again later.",
    ),
    "head_bytes": (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The URL and the headers exceed this server's limit."),
    "head_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The headers did not arrive in time."),
    "body_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time."),
    "held_bytes": (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Too much data waits behind unanswered requests. Read the answers before you send more.",
    ),
}


class PooledConnection(Protocol):
    """A connection as `Connections` sees it.

    address: the client's network. reserved: admitted from the reserve, for operators and probes only. is_waiting: no
    request is being answered; the server waits for the client.
    """

    address: str
    reserved: bool
    is_closed: bool

    @property
    def is_waiting(self) -> bool: ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the system has not taken over yet, since the client reads too slowly."""

    def refuse(self, reason: Reason) -> None:
        """Close the connection."""


class Connections:
    """The connections of one server.

    refused: called with the reason for every connection or request that is refused or closed because of a limit.
    """

    def __init__(self, limits: ConnectionLimits, refused: Callable[[Reason], None] = lambda _: None) -> None:
        self.limits = limits
        self.refused = refused
        self._held_by_connection: dict[PooledConnection, int] = {}
        self._held_bytes = 0
        self._unread: dict[PooledConnection, tuple[str, int]] = {}
        self._open = limits.connections - limits.connections // RESERVE_SHARE
        self._by_address: dict[str, dict[PooledConnection, None]] = {}
        self._claimed: dict[PooledConnection, str] = {}
        self._of_tenant: dict[str, int] = {}
        self._lapsing: dict[PooledConnection, Callable[[], bool]] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._turns: deque[Callable[[], None]] = deque()
        self._next_turn = 0.0

    # ---- addresses

    def admit(self, new: PooledConnection, total: int) -> bool:
        """Whether `new`, the last of `total` connections, may stay.

        When there are too many, an address with less than an equal share is admitted, and the address with the most
        loses its oldest waiting connection. Otherwise `new` is marked reserved, while there is a reserve.
        """
        own = self._by_address.get(new.address, {})
        if total > self._open:
            share = max(1, self._open // len({*self._by_address, new.address}))
            largest: dict[PooledConnection, None] = max(self._by_address.values(), key=len, default={})
            if len(own) >= share or not _evict(largest):
                new.reserved = True
                reserved = (each for own in self._by_address.values() for each in own if each.reserved)
                if total > self.limits.connections and not _evict(reserved):
                    return False
        self._by_address.setdefault(new.address, {})[new] = None
        return True

    def enter(self, upgraded: PooledConnection) -> None:
        """Count an admitted connection again after its upgrade to a WebSocket."""
        self._by_address.setdefault(upgraded.address, {})[upgraded] = None

    def leave(self, old: PooledConnection) -> None:
        """Stop counting a closed connection."""
        self.unclaim(old)
        own = self._by_address.get(old.address, {})
        own.pop(old, None)
        if not own:
            self._by_address.pop(old.address, None)

    # ---- tenants

    def claim(
        self, connection: PooledConnection, tenant: str | None, *, shares: bool, lapsed: Callable[[], bool] | None
    ) -> None:
        """Count the connection for the tenant of the request that begins on it.

        tenant: None for a request without a key, which counts for its address. shares: there may be other tenants.
        lapsed: whether the request's key is no longer valid; None if keys cannot be revoked. Raises
        RequestError("rate_limited") if the tenant has too many connections.
        """
        if connection.is_closed:
            return
        is_known = tenant is not None
        if tenant is None:
            tenant, shares = f"address {connection.address}", not _is_loopback(connection.address)
        count = self._of_tenant.get(tenant, 0)
        if shares and count >= (most := max(1, TENANT_SHARE * (self._open - len(self._claimed)))):
            self.refused("tenant_connections")
            message = f"You have {count} connections, which is your limit while {most} are free. Close idle ones."
            raise RequestError("rate_limited", message, retry_after=RETRY_AFTER)
        self.check_reserve(connection, is_known=is_known)
        self.unclaim(connection)
        own = self._by_address.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._by_address.pop(connection.address, None)
        self._claimed[connection] = tenant
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        if lapsed is not None:
            self._lapsing[connection] = lapsed
            self._schedule_check()

    def check_reserve(self, connection: PooledConnection, *, is_known: bool = False) -> None:
        """Raise RequestError for a connection from the reserve if there is still no capacity for other clients.

        For an authenticated client (is_known), a waiting unauthenticated connection is closed to make room.
        """
        if connection.reserved:
            if len(self._claimed) + sum(map(len, self._by_address.values())) > self._open:
                largest: dict[PooledConnection, None] = max(self._by_address.values(), key=len, default={})
                if not is_known or not _evict(largest):
                    self.refused("connections")
                    raise RequestError("unavailable", REFUSALS["connections"][1], retry_after=RETRY_AFTER)
            connection.reserved = False

    def unclaim(self, connection: PooledConnection) -> None:
        """The request is answered; count the connection for its address again."""
        if (tenant := self._claimed.pop(connection, None)) is None:
            return  # the request needed no key
        self._lapsing.pop(connection, None)
        self._of_tenant[tenant] -= 1
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
        self._by_address.setdefault(connection.address, {})[connection] = None

    def _schedule_check(self) -> None:
        if self._check_timer is None and self._lapsing:
            self._check_timer = asyncio.get_running_loop().call_later(LAPSE_SECONDS, self._close_lapsed)

    def _close_lapsed(self) -> None:
        self._check_timer = None
        for connection, lapsed in list(self._lapsing.items()):
            if lapsed():
                connection.refuse("key")
        self._schedule_check()

    # ---- waiting bytes

    def hold(self, connection: PooledConnection, size: int) -> None:
        """Add `size` bytes (negative to subtract) that wait to be parsed. If all connections together exceed
        HELD_BYTES, the one with the most is closed, not the one whose bytes came last."""
        self._held_bytes += size
        own = self._held_by_connection.pop(connection, 0) + size
        if own:
            self._held_by_connection[connection] = own
        if self._held_bytes > HELD_BYTES:
            max(self._held_by_connection, key=self._held_by_connection.__getitem__).refuse("held_bytes")

    def note_unread(self, connection: PooledConnection, size: int) -> None:
        """Set how many bytes of answers the client has not read. If all connections together exceed UNREAD_BYTES, the
        tenant or address with the most loses its largest connection."""
        if not size:
            self._unread.pop(connection, None)
            return
        owner = (
            self._unread.get(connection, ("", 0))[0] or self._claimed.get(connection) or f"address {connection.address}"
        )
        self._unread[connection] = owner, size
        if sum(each for _, each in self._unread.values()) <= UNREAD_BYTES:
            return
        of: Counter[str] = Counter()
        for owner, each in self._unread.values():
            of[owner] += each
        ((largest, _),) = of.most_common(1)
        sizes = {each: unread for each, (owner, unread) in self._unread.items() if owner == largest}
        victim = max(sizes, key=sizes.__getitem__)
        del self._unread[victim]
        victim.refuse("unread_bytes")

    def take_turn(self, resume: Callable[[], None]) -> None:
        """Call `resume` at least TURN_SECONDS after the last such call: however many clients pipeline requests, other
        clients wait for one of them at most."""
        self._turns.append(resume)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_at(self._next_turn, self._run_next)

    def _run_next(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._turns[0]()
        finally:
            self._turns.popleft()
            self._next_turn = loop.time() + TURN_SECONDS
            if self._turns:
                loop.call_at(self._next_turn, self._run_next)


def _evict(connections: Iterable[PooledConnection]) -> bool:
    """Close the oldest waiting connection. False if every one is being answered."""
    victim = next((each for each in connections if each.is_waiting), None)
    if victim is None:
        return False
    victim.refuse("connections")
    return True


class Claim:
    """A request's access to the accounting of its own connection."""

    __slots__ = ("_connection", "_connections")

    def __init__(self, connections: Connections, connection: PooledConnection) -> None:
        self._connections = connections
        self._connection = weakref.ref(connection)

    def __call__(self, tenant: str | None, *, shares: bool, lapsed: Callable[[], bool] | None = None) -> None:
        """See `Connections.claim`."""
        if (connection := self._connection()) is not None:
            self._connections.claim(connection, tenant, shares=shares, lapsed=lapsed)

    def check_reserve(self) -> None:
        """See `Connections.check_reserve`."""
        if (connection := self._connection()) is not None:
            self._connections.check_reserve(connection)

    @property
    def unsent_bytes(self) -> int:
        """See `PooledConnection.unsent_bytes`."""
        connection = self._connection()
        return 0 if connection is None else connection.unsent_bytes


class UnreadTimeout:
    """Closes a connection whose client reads nothing of its answer for `send_seconds`.

    begin: the write buffer has exceeded its high-water mark. end: it has drained, or the connection is lost.
    """

    def __init__(
        self, transport: asyncio.WriteTransport, connection: PooledConnection, connections: Connections
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._connections = connections
        self._seconds = connections.limits.send_seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        if self._timer is None:
            self._wait()

    def end(self) -> None:
        self._connections.note_unread(self._connection, 0)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        size = self._transport.get_write_buffer_size()
        self._connections.note_unread(self._connection, size)
        if self._connection.is_closed:
            return
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._schedule_check, size)

    def _schedule_check(self, before: int) -> None:
        self._timer = None
        if self._transport.get_write_buffer_size() >= before:
            self._connection.refuse("send_seconds")
        else:
            self._wait()


def network(address: str) -> str:
    """The network that counts as one client: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def _is_loopback(address: str) -> bool:
    """Whether this is a loopback address, which may be a proxy in front of all clients."""
    try:
        return ipaddress.ip_network(address).is_loopback
    except ValueError:
        return not address  # a Unix socket


def refusal(reason: Reason) -> bytes:
    """The HTTP response to send before closing a connection; b"" if there is none for the reason."""
    if reason not in REFUSALS:
        return b""
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
