"""Who may have a connection: a share for each address that has not said who it is, one for each tenant, and a reserve.

A connection belongs to its address until a request on it is admitted, and then to the request's tenant until that is
answered; a WebSocket until it is closed. What belongs to an address is closed for others where it waits for its
client, so that connections which a proxy keeps open for the next request take no place from anybody.
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
"""The part of all connections, one in so many, that only operators and probes of health get."""
TENANT_SHARE = 1
"""So many times what is free one of several tenants may have: half of all, when it is alone."""
HELD_BYTES = 64 * 2**20
"""Bytes that wait in all connections together behind requests which are not answered yet."""
UNREAD_BYTES = 256 * 2**20
"""Bytes of answers that wait in all connections together for clients to read them."""
TURN_SECONDS = 0.002
"""Between two requests that were sent ahead, of all connections."""
LAPSE_SECONDS = 2.0
"""How long a connection may stay that was opened with a key which is not valid any more."""
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
    "connections": (HTTPStatus.SERVICE_UNAVAILABLE, "The server has as many connections as it may have."),
    "head_bytes": (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The URL and the headers are longer than may be."),
    "head_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The headers did not arrive in time."),
    "body_seconds": (HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time."),
    "held_bytes": (
        HTTPStatus.SERVICE_UNAVAILABLE,
        "Too much is waiting behind requests that are not answered yet. Read the answers before you send more.",
    ),
}


class PooledConnection(Protocol):
    """A connection, as those who share out connections know it.

    address: where it comes from. reserved: it was let in for an operator or a probe alone. is_waiting: the server
    waits for its client, and answers nothing.
    """

    address: str
    reserved: bool
    is_closed: bool

    @property
    def is_waiting(self) -> bool: ...

    def refuse(self, reason: Reason) -> None:
        """Close it."""


class Connections:
    """The connections of one server.

    refused: called with the reason for every connection, and every request, that was refused or closed for a limit.
    """

    def __init__(self, limits: ConnectionLimits, refused: Callable[[Reason], None] = lambda _: None) -> None:
        self.limits = limits
        self.refused = refused
        self._held: dict[PooledConnection, int] = {}
        self._held_bytes = 0
        self._unread: dict[PooledConnection, tuple[str, int]] = {}
        self._open = limits.connections - limits.connections // RESERVE_SHARE
        self._by_address: dict[str, dict[PooledConnection, None]] = {}
        self._claimed: dict[PooledConnection, str] = {}
        self._of_tenant: dict[str, int] = {}
        self._lapsing: dict[PooledConnection, Callable[[], bool]] = {}
        self._check_timer: asyncio.TimerHandle | None = None
        self._turns: deque[Callable[[], None]] = deque()

    # ---- of addresses

    def admit(self, new: PooledConnection, total: int) -> bool:
        """Whether `new`, the last of `total` connections, may stay. When there are too many, addresses with less than
        an equal share get in, and the address with the most loses one on which it was taking its time; else `new` is
        reserved, while there is a reserve."""
        own = self._by_address.get(new.address, {})
        if total > self._open:
            share = max(1, self._open // len({*self._by_address, new.address}))
            largest: dict[PooledConnection, None] = max(self._by_address.values(), key=len, default={})
            if len(own) >= share or not _evict(largest):
                new.reserved = True
                if total > self.limits.connections and not _evict(each for each in self._all if each.reserved):
                    return False
        self._by_address.setdefault(new.address, {})[new] = None
        return True

    @property
    def _all(self) -> Iterable[PooledConnection]:
        return (each for own in self._by_address.values() for each in own)

    def enter(self, upgraded: PooledConnection) -> None:
        """A connection that was admitted has become a WebSocket."""
        self._by_address.setdefault(upgraded.address, {})[upgraded] = None

    def leave(self, old: PooledConnection) -> None:
        """It is closed."""
        self.unclaim(old)
        own = self._by_address.get(old.address, {})
        own.pop(old, None)
        if not own:
            self._by_address.pop(old.address, None)

    # ---- of tenants

    def claim(
        self, connection: PooledConnection, tenant: str | None, *, shares: bool, lapsed: Callable[[], bool] | None
    ) -> None:
        """A request of `tenant` begins on it; None for one without a key, which has its address's share. shares: there
        may be other tenants. lapsed: whether its key is not valid any more; None where keys stay valid. RequestError
        where there are too many."""
        if connection.is_closed:
            return
        is_known = tenant is not None
        if tenant is None:
            tenant, shares = f"address {connection.address}", not _is_loopback(connection.address)
        count = self._of_tenant.get(tenant, 0)
        if shares and count >= (most := max(1, TENANT_SHARE * (self._open - len(self._claimed)))):
            self.refused("tenant_connections")
            message = f"Your {count} connections are your share of this server's; {most} are free. Close idle ones."
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
        """RequestError where it was let in for an operator or a probe alone, and there is still no room for others. For
        a client that is known by its key, one that waits for a client which has not said who it is makes room."""
        if connection.reserved:
            if len(self._claimed) + sum(map(len, self._by_address.values())) > self._open:
                largest: dict[PooledConnection, None] = max(self._by_address.values(), key=len, default={})
                if not is_known or not _evict(largest):
                    self.refused("connections")
                    raise RequestError("unavailable", REFUSALS["connections"][1], retry_after=RETRY_AFTER)
            connection.reserved = False

    def unclaim(self, connection: PooledConnection) -> None:
        """The request is answered; the connection is its address's again."""
        if (tenant := self._claimed.pop(connection, None)) is None:
            return  # a request that needed no key
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

    # ---- of what waits

    def hold(self, connection: PooledConnection, size: int) -> None:
        """So many bytes more wait in `place`. Where all wait for too much together, the one with the most is closed,
        and not the one whose bytes came last."""
        self._held_bytes += size
        own = self._held.pop(connection, 0) + size
        if own:
            self._held[connection] = own
        if self._held_bytes > HELD_BYTES:
            max(self._held, key=self._held.__getitem__).refuse("held_bytes")

    def note_unread(self, connection: PooledConnection, size: int) -> None:
        """So many bytes wait for the client of `place`. Where all wait for too much together, whoever has the most of
        it, a tenant or an address, loses the connection with the most."""
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
        victim = max((each for each in self._unread if self._unread[each][0] == largest), key=self._unread_size)
        del self._unread[victim]
        victim.refuse("unread_bytes")

    def _unread_size(self, connection: PooledConnection) -> int:
        return self._unread[connection][1]

    def take_turn(self, resume: Callable[[], None]) -> None:
        """Call it when no other connection has gone on with what waits for TURN_SECONDS: however many have sent
        requests ahead, others wait for one of them."""
        self._turns.append(resume)
        if len(self._turns) == 1:
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        try:
            self._turns[0]()
        finally:
            self._turns.popleft()
            if self._turns:
                asyncio.get_running_loop().call_later(TURN_SECONDS, self._run_next)


def _evict(places: Iterable[PooledConnection]) -> bool:
    """Close the oldest one on which nothing is being answered."""
    victim = next((each for each in places if each.is_waiting), None)
    if victim is None:
        return False
    victim.refuse("connections")
    return True


class Claim:
    """What a request can ask of the connection that it came on."""

    __slots__ = ("_connections", "_place")

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


class UnreadTimeout:
    """Takes a client that reads nothing of what waits for it, for `send_seconds`, for one that is gone.

    begin: what waits has become much. end: it is little again, or the connection is lost.
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
    """What is one place: an IPv4 address, or the 64 bits of an IPv6 address that one subscriber has whole."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))


def _is_loopback(address: str) -> bool:
    """Whether it is this machine's, and so perhaps a proxy's before all of the clients."""
    try:
        return ipaddress.ip_network(address).is_loopback
    except ValueError:
        return not address  # a Unix socket's


def refusal(reason: Reason) -> bytes:
    """The answer over HTTP with which a connection is closed; b"" where there is none."""
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
