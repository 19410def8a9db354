"""Connections under limits: long heads, slow heads and bodies, and too many at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from agent_server.http.middleware.connections import Connections, network
from agent_server.http.middleware.limited_http import LimitedProtocol
from agent_server.http.middleware.limited_websocket import LimitedWebSocket
from agent_server.settings import ConnectionLimits

LONG = 16 * 1024
SMALL = ConnectionLimits(connections=3, head_bytes=20_000, head_seconds=0.3, body_seconds=0.3)
ROOMY = ConnectionLimits(connections=100, head_bytes=20_000, head_seconds=30, body_seconds=30)


class Service:
    """A web server under limits, what it was asked, and what it refused."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.refused: Counter[str] = Counter()
        self.asked: list[str] = []
        self.left = 0
        self.release = asyncio.Event()
        self.connections = Connections(limits, lambda reason: self.refused.update([reason]))
        self.port = 0

    async def echo(self, request: Request) -> Any:
        self.asked.append(request.url.path)
        try:
            body = await request.body()
        except ClientDisconnect:
            self.left += 1
            raise
        names = ",".join(name for name in request.headers if name.startswith("x-"))
        return PlainTextResponse(f"{len(body)} {names}")

    async def stream(self, request: Request) -> Any:
        async def parts() -> AsyncIterator[str]:
            yield "begun"
            await self.release.wait()
            yield "ended"

        return StreamingResponse(parts())

    async def socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await asyncio.wait_for(websocket.receive_text(), 10))
        await websocket.close()

    async def talk(self, websocket: WebSocket) -> None:
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await websocket.send_text("a" * 65536)
        self.left += 1

    def app(self) -> Starlette:
        routes = [
            Route("/echo", self.echo, methods=["GET", "POST"]),
            Route("/stream", self.stream),
            WebSocketRoute("/ws", self.socket),
            WebSocketRoute("/talk", self.talk),
        ]
        return Starlette(routes=routes, exception_handlers={ClientDisconnect: lambda *_: PlainTextResponse("", 499)})

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, *parts: bytes) -> bytes:
        """Send parts one after the other, and read until the server closes."""
        reader, writer = await self.connect()
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            return await reader.read()
        except ConnectionError:
            return b"reset"
        finally:
            writer.close()


@asynccontextmanager
async def service(limits: ConnectionLimits = ROOMY) -> AsyncIterator[Service]:
    made = Service(limits)
    config = uvicorn.Config(
        made.app(), http=partial(LimitedProtocol, connections=made.connections),
        ws=partial(LimitedWebSocket, connections=made.connections), port=0, log_config=None, lifespan="off",
        timeout_graceful_shutdown=1,
    )  # fmt: skip
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    made.port = server.servers[0].sockets[0].getsockname()[1]
    ticking = asyncio.create_task(server.main_loop())
    try:
        yield made
    finally:
        made.release.set()
        server.should_exit = True
        await ticking
        await server.shutdown()


HEAD = b"GET /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"


async def test_what_is_within_the_limits_is_served():
    async with service() as made:
        fits = b"x-a: " + b"a" * 19_000
        assert b"200 OK" in await made.say(HEAD + fits + b"\r\n\r\n")
        assert b"200 OK" in await made.say(*[bytes([byte]) for byte in HEAD + b"\r\n"])
        large = b"b" * 1_000_000
        post = b"POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 1000000\r\n\r\n"
        assert (await made.say(post + large)).endswith(b"1000000 ")
        two = b"GET /echo HTTP/1.1\r\nhost: localhost\r\n\r\n" + HEAD + b"\r\n"
        assert (await made.say(two)).count(b"200 OK") == 2
    assert not made.refused


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD + b"x-a: " + b"a" * 21_000 + b"\r\n\r\n"],
        [HEAD + b"x-a: ", *[b"a" * LONG] * 20],
        [HEAD, *[b"x-a: " + b"a" * 1000 + b"\r\n"] * 40],
        [HEAD, *[b"x" * LONG] * 20],
        [HEAD + b"a:\r\n" * 200 + b"\r\n"],
        [b"GET /" + b"a" * 21_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n"],
        [b"GET /", *[b"a" * LONG] * 20],
        [b"\r\n" * 40_000],
    ],
    ids=[
        "one field",
        "endless value",
        "endless fields",
        "endless name",
        "many fields",
        "url",
        "endless url",
        "nothing",
    ],
)
async def test_a_long_head_is_refused_before_it_is_complete(parts: list[bytes]):
    async with service() as made:
        answer = await made.say(*parts)
    assert answer == b"reset" or b" 431 " in answer
    assert (made.refused, made.asked) == ({"head_bytes": 1}, [])


async def test_a_websocket_with_a_long_head_is_refused_too():
    upgrade = b"GET /ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    async with service() as made:
        answer = await made.say(upgrade + b"x-a: " + b"a" * 21_000 + b"\r\n\r\n")
    assert b" 431 " in answer and made.refused == {"head_bytes": 1}


async def test_fields_behind_a_body_change_no_header_and_are_limited():
    chunked = HEAD.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n"
    async with service() as made:
        assert (await made.say(chunked + b"x-late: 1\r\n\r\n")).endswith(b"2 ")
        await made.say(chunked, *[b"x-late: " + b"a" * LONG] * 20)
    assert made.refused == {"head_bytes": 1}


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "head_seconds"),
        (b"GET /ec", "head_seconds"),
        (HEAD, "head_seconds"),
        (HEAD.replace(b"GET", b"POST") + b"content-length: 10\r\n\r\nabc", "body_seconds"),
        (HEAD.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "body_seconds"),
    ],
)
async def test_what_does_not_arrive_is_not_waited_for(sent: bytes, reason: str):
    async with service(SMALL) as made:
        answer = await made.say(sent)
        assert b" 408 " in answer and made.refused == {reason: 1}
        assert made.left == (1 if reason == "body_seconds" else 0)


async def test_a_later_request_on_a_kept_connection_is_not_waited_for_either():
    async with service(SMALL) as made:
        answer = await made.say(b"GET /echo HTTP/1.1\r\nhost: localhost\r\n\r\n", b"GET /echo HTTP/1.1\r\n")
    assert answer.count(b"200 OK") == 1 and answer.count(b" 408 ") == 1
    assert made.refused == {"head_seconds": 1}


async def test_an_answer_may_take_longer_than_its_request():
    async with (
        service(SMALL) as made,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{made.port}") as client,
        client.stream("GET", "/stream") as answer,
    ):
        parts = answer.aiter_text()
        assert await anext(parts) == "begun"
        await made.say(b"")  # waits until that connection's time is over
        made.release.set()
        assert await anext(parts) == "ended"
    assert made.refused == {"head_seconds": 1}


async def test_a_websocket_that_is_not_read_is_closed():
    limits = ConnectionLimits(send_seconds=0.2)
    async with service(limits) as made:
        reader, writer = await made.connect()
        writer.write(
            b"GET /talk HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(20):
            while not made.left:
                await asyncio.sleep(0.05)
        writer.transport.abort()
    assert made.refused == {"send_seconds": 1}


async def test_one_connection_more_than_allowed_is_refused_and_those_that_were_there_are_served():
    limits = ConnectionLimits(connections=3, head_seconds=30)
    async with service(limits) as made:
        held = [await made.connect() for _ in range(3)]
        await settled(made, 3)
        assert b" 503 " in await made.say(b"")
        reader, writer = held[0]
        writer.write(HEAD + b"\r\n")
        assert b"200 OK" in await reader.read()
        await settled(made, 2)
        assert b"200 OK" in await made.say(HEAD + b"\r\n")
        for _, writer in held:
            writer.close()
    assert made.refused == {"connections": 1}


async def settled(made: Service, count: int) -> None:
    async with asyncio.timeout(5):
        while sum(map(len, made.connections._by_address.values())) != count:
            await asyncio.sleep(0.01)


class Peer:
    """What `Connections` needs of a protocol."""

    def __init__(self, connections: Connections, address: str, waiting: bool = True) -> None:
        self.connections, self.address, self.is_waiting = connections, address, waiting
        self.reserved = self.is_closed = False
        self.refused_for = ""

    def refuse(self, reason: str) -> None:
        self.refused_for = reason
        self.connections.leave(self)  # type: ignore[arg-type]


def test_one_address_does_not_take_the_places_of_the_others():
    connections = Connections(ConnectionLimits(connections=4))
    greedy = [Peer(connections, "a", waiting=number != 0) for number in range(4)]
    assert all(connections.admit(peer, number + 1) for number, peer in enumerate(greedy))
    assert not connections.admit(Peer(connections, "a"), 5)
    assert connections.admit(Peer(connections, "b"), 5)
    assert [peer.refused_for for peer in greedy] == ["", "connections", "", ""]
    assert connections.admit(Peer(connections, "b"), 5)
    assert not connections.admit(Peer(connections, "b"), 5)


def test_nothing_that_is_being_answered_is_closed_for_a_newcomer():
    connections = Connections(ConnectionLimits(connections=2))
    busy = [Peer(connections, "a", waiting=False) for _ in range(2)]
    assert all(connections.admit(peer, number + 1) for number, peer in enumerate(busy))
    assert not connections.admit(Peer(connections, "b"), 3)
    assert [peer.refused_for for peer in busy] == ["", ""]


def test_what_counts_as_one_address():
    assert network("10.0.0.1") != network("10.0.0.2")
    assert network("2001:db8:1:2::1") == network("2001:db8:1:2:ffff::2") != network("2001:db8:1:3::1")
    assert network("") == ""
