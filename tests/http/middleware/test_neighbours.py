"""What one connection, address or tenant may take of a running server, while others are answered."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import socket as sockets
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from agent_server.engines.scripted import Script
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest, remove_key
from agent_server.http.middleware.limited_websocket import CONTROL_FRAMES, FRAGMENTS
from tests.server import Running, scripted, serving

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
MASK = b"\0\0\0\0"
KEYS = ("bad:bad-key", "good:good-key")


async def wait_until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.01)


async def opened(running: Running, buffer: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """buffer: bytes that the client's system takes of what the client does not read; 0 for what it takes by itself."""
    line = sockets.socket()
    if buffer:
        line.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, buffer)
    line.setblocking(False)
    await asyncio.get_running_loop().sock_connect(line, ("127.0.0.1", int(running.url.rsplit(":", 1)[1])))
    return await asyncio.open_connection(sock=line)


@contextlib.asynccontextmanager
async def unread(running: Running, data: bytes) -> Any:
    """A client that has sent as much of it as the server takes, and has read nothing."""
    reader, writer = await opened(running)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(data)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def requests_in_memory() -> int:
    return sum(type(each) is RequestResponseCycle for each in gc.get_objects())


async def test_requests_sent_ahead_wait_unread_and_are_all_answered_in_order():
    count = 4000
    async with (
        serving(scripted("Hi")) as running,
        httpx.AsyncClient(base_url=running.url) as other,
        unread(running, HEALTH * count) as (reader, writer),
    ):
        for _ in range(20):
            assert (await other.get("/health")).status_code == 200
        assert requests_in_memory() < 20
        writer.write(b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            answers = await reader.read()
    statuses = [part[:3] for part in answers.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [b"200"] * count + [b"404"]


async def test_a_request_with_a_body_may_be_sent_ahead_of_the_answer_before_it():
    def post(content: str) -> bytes:
        body = json.dumps({"prompt": content}).encode()
        head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return head + b"content-length: %d\r\n\r\n" % len(body) + body

    async with serving(scripted("Hi")) as running:
        reader, writer = await opened(running)
        writer.write(b"".join(post("\r\n\r\n a" * number) for number in range(1, 40)) + HEALTH)
        counts = []
        async with asyncio.timeout(20):
            for _ in range(39):
                await reader.readuntil(b"\r\n\r\n")
                counts.append(json.loads(await reader.readuntil(b"}"))["count"])
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert counts == sorted(counts) and len(set(counts)) == 39


async def test_a_client_that_leaves_with_requests_sent_ahead_is_noticed_by_the_one_that_runs():
    endless = scripted([Script(text="word " * 2000, delay=0.01)])
    body = b'{"messages":[{"role":"user","content":"Hi"}],"stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    async with serving(endless, grace=0.0) as running:
        reader, writer = await opened(running)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body + HEALTH)
        await reader.readuntil(b"data: ")
        assert running.server.runs.active == 1
        writer.transport.abort()
        await wait_until(lambda: running.server.runs.active == 0)


async def test_an_answer_that_nobody_reads_is_not_kept():
    endless = scripted([Script(text="word " * 4000)])
    body = b'{"messages":[{"role":"user","content":"Hi"}],"stream":true}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    asked = head + b"content-length: %d\r\n\r\n" % len(body) + body
    async with serving(endless, send_timeout=0.3, grace=0.0) as running:
        async with unread(running, asked * 400) as (_, writer):
            await wait_until(lambda: b"send_seconds" in running.server.telemetry.exposition())
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x01nothing like a request\r\n" * 10_000,
        b"GET / HTTP/1.1\r\nhost: localhost\r\nno field\r\n\r\n" * 5000,
        b"POST / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
        + b"x" * 250_000,
    ],
    ids=["no head", "no field", "no chunk"],
)
async def test_what_is_no_http_is_refused_once_however_much_of_it_there_is(
    sent: bytes, caplog: pytest.LogCaptureFixture
):
    async with serving(scripted("Hi")) as running:
        caplog.set_level(logging.WARNING)
        reader, writer = await opened(running)
        writer.write(sent)
        answers = b""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionResetError):
                while data := await reader.read(65536):
                    answers += data
        writer.close()
    assert answers.count(b"HTTP/1.1 ") <= 1
    assert len(caplog.records) <= 1


async def test_a_client_that_reads_late_and_slowly_gets_every_answer():
    """Its answers wait for longer than a head may take."""
    count = 2500
    async with serving(scripted("Hi"), header_timeout=0.3) as running:
        reader, writer = await opened(running, buffer=4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEALTH * count + HEALTH.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
        await asyncio.sleep(1)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        answers = b""
        async with asyncio.timeout(60):
            while data := await reader.read(1024):
                answers += data
        writer.close()
    assert answers.count(b"HTTP/1.1 200") == count + 1


async def test_answers_that_one_tenant_does_not_read_take_its_own_connections(monkeypatch: pytest.MonkeyPatch):
    """Eight answers of 6 MB wait for a client that reads none; another reads its own late."""
    monkeypatch.setattr("agent_server.http.middleware.connections.UNREAD_BYTES", 14 * 2**20)
    text = "word " * 600_000

    async def asked(running: Running, key: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await opened(running, buffer=4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        head = (
            f"GET {paths[key]} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
        )
        writer.write(head.encode())
        return reader, writer

    async with serving(scripted("Hi"), api_keys=KEYS) as running:
        paths = {}
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            items = [{"type": "message", "role": "user", "content": text}]
            for key in ("bad-key", "good-key"):
                headers = {"authorization": f"Bearer {key}"}
                made = await client.post("/v1/conversations", json={"items": items}, headers=headers)
                paths[key] = f"/v1/conversations/{made.json()['id']}/items"
                await client.post(paths[key], json={"items": items}, headers=headers)  # more than a socket holds
        slow, writer = await asked(running, "good-key")
        greedy = [await asked(running, "bad-key") for _ in range(8)]
        await wait_until(lambda: b'reason="unread_bytes"' in running.server.telemetry.exposition())
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            answer = await slow.read()
        for _, each in (*greedy, (slow, writer)):
            each.transport.abort()
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["data"][1]["content"][0]["text"] == text


async def test_a_websocket_does_not_inflate_what_clients_send():
    async with serving(scripted("Hi")) as running, socket(running) as client:
        assert client.protocol.extensions == []  # although it offers compression


async def test_what_waits_is_taken_from_the_connection_with_the_most(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agent_server.http.middleware.connections.HELD_BYTES", 64 * 1024)
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(scripted("Hi")))
        client = await stack.enter_async_context(socket(running))
        greedy = [await stack.enter_async_context(unread(running, HEALTH * 20_000)) for _ in range(4)]
        await wait_until(lambda: b"held_bytes" in running.server.telemetry.exposition())
        await client.send(json.dumps(run("a", content="Hi " * 2000)))
        assert (await heard(client))[-1] == "RUN_FINISHED"
        for reader, writer in greedy[:1]:
            writer.transport.resume_reading()
            async with asyncio.timeout(20):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()


async def upgraded(running: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await opened(running)
    writer.write(
        b"GET /agui/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    return reader, writer


@pytest.mark.parametrize("frame", [b"\x89\x80" + MASK, b"\x8a\x80" + MASK, b"\x00\x80" + MASK], ids=["ping", "pong", "fragment"])  # fmt: skip
async def test_a_flood_of_frames_ends_with_1008(frame: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        "agent_server.http.middleware.limited_websocket.SMALL_FRAMES", 10 * FRAGMENTS
    )  # not to wait half a minute
    async with serving(scripted("Hi")) as running:
        reader, writer = await upgraded(running)
        writer.write(b"\x01\x81" + MASK + b"a" if frame[0] == 0 else b"")
        writer.write(frame * (FRAGMENTS + 2))
        async with asyncio.timeout(20):
            answer = await reader.read()
        writer.close()
        assert b"\x03\xf0" in answer  # 1008
        assert answer.count(b"\x8a\x00") < 2 * CONTROL_FRAMES


async def test_a_client_that_pings_now_and_then_is_served_beside_its_run():
    async with serving(scripted([Script(text="one two three", delay=0.01)])) as running, socket(running) as client:
        await client.send(json.dumps(run("a")))
        for _ in range(CONTROL_FRAMES // 2):
            await (await client.ping())
        assert (await heard(client))[-1] == "RUN_FINISHED"


async def test_a_message_in_many_small_fragments_is_read():
    text = json.dumps(run("a", content="Hi " * 100))
    async with serving(scripted("Hi")) as running, socket(running) as client:
        await client.send(text[start : start + 2] for start in range(0, len(text), 2))
        assert (await heard(client))[-1] == "RUN_FINISHED"


def run(run_id: str, content: str = "Hi") -> dict[str, Any]:
    message = {"id": f"m{run_id}", "role": "user", "content": content}
    input = {"threadId": f"t{run_id}", "runId": run_id, "messages": [message], "tools": [], "context": []}
    return {"type": "run", "input": {**input, "state": {}, "forwardedProps": {}}}


def socket(running: Running, key: str = "") -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return connect(running.url.replace("http", "ws") + "/agui/ws", additional_headers=headers)


async def heard(client: ClientConnection) -> list[str]:
    """The events up to a run's end."""
    kinds: list[str] = []
    async with asyncio.timeout(20):
        while not kinds or kinds[-1] not in ("RUN_FINISHED", "RUN_ERROR"):
            kinds.append(json.loads(await client.recv())["type"])
    return kinds


# ---- tenants


async def fill(stack: contextlib.AsyncExitStack, running: Running, key: str, most: int) -> int:
    """Open WebSockets until they are refused; how many were opened."""
    for number in range(most):
        client = await stack.enter_async_context(socket(running, key))
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                with contextlib.suppress(ConnectionClosed):
                    await client.recv()
                return number
    return most


async def test_a_tenants_idle_websockets_leave_places_for_others_and_for_the_operator():
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            serving(scripted("Hi"), api_keys=KEYS, operator_keys=("op-key",), max_connections=32)
        )
        assert await fill(stack, running, "bad-key", 32) == 15
        async with httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer bad-key"}) as more:
            refused = await more.get("/v1/models")
            assert refused.status_code == 429 and "retry-after" in refused.headers
        async with httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer good-key"}) as good:
            assert [(await good.get("/v1/models")).status_code for _ in range(5)] == [200] * 5


async def test_operators_and_probes_are_answered_when_one_tenant_has_all_connections():
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(
            serving(scripted("Hi"), api_keys=("only-key",), operator_keys=("op-key",), max_connections=32)
        )
        for _ in range(30):
            await stack.enter_async_context(socket(running, "only-key"))
        async with httpx.AsyncClient(base_url=running.url) as client:
            only = await client.get("/v1/models", headers={"authorization": "Bearer only-key"})
            assert only.status_code == 503
            assert (await client.get("/health")).status_code == 200
            metrics = await client.get("/metrics", headers={"authorization": "Bearer op-key"})
            assert metrics.status_code == 200


async def test_a_key_gets_the_place_of_a_client_that_says_nothing():
    async with contextlib.AsyncExitStack() as stack:
        running = await stack.enter_async_context(serving(scripted("Hi"), api_keys=KEYS, max_connections=32))
        silent = [await opened(running) for _ in range(40)]
        await asyncio.sleep(0)
        for _ in range(5):
            async with httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer good-key"}) as good:
                assert (await good.get("/v1/models")).status_code == 200
            async with httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer wrong"}) as wrong:
                assert (await wrong.get("/v1/models")).status_code == 401
        for _, writer in silent:
            writer.transport.abort()


# ---- keys


def entry(**more: Any) -> KeyEntry:
    return KeyEntry(name="ci", hash=digest("secret"), tenant="acme", **more)


async def test_a_revoked_key_starts_no_run_on_an_open_websocket(tmp_path: Path):
    add_key(file := tmp_path / "keys.toml", entry())
    async with serving(scripted("Hi"), keys_file=file) as running, socket(running, "secret") as client:
        await client.send(json.dumps(run("a")))
        assert (await heard(client))[-1] == "RUN_FINISHED"
        remove_key(file, "ci")
        running.server.authority.file.refresh()  # type: ignore[union-attr]
        await client.send(json.dumps(run("b")))
        assert (await heard(client))[-1] == "RUN_ERROR"
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008


async def test_an_expired_key_starts_no_run_on_an_open_websocket(tmp_path: Path):
    add_key(file := tmp_path / "keys.toml", entry(expires=datetime.now(UTC) + timedelta(hours=1)))
    async with serving(scripted("Hi"), keys_file=file) as running, socket(running, "secret") as client:
        await client.send(json.dumps(run("a")))
        assert (await heard(client))[-1] == "RUN_FINISHED"
        running.server.authority.file._clock = lambda: time.time() + 7200  # type: ignore[union-attr]
        await client.send(json.dumps(run("b")))
        assert (await heard(client))[-1] == "RUN_ERROR"
        with pytest.raises(ConnectionClosed):
            await client.recv()


async def test_a_revoked_key_ends_the_stream_that_it_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agent_server.http.middleware.connections.LAPSE_SECONDS", 0.05)
    add_key(file := tmp_path / "keys.toml", entry())
    endless = scripted([Script(text="word " * 3000, delay=0.01)])
    headers = {"authorization": "Bearer secret"}
    asked = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with (
        serving(endless, keys_file=file, grace=0.0) as running,
        httpx.AsyncClient(base_url=running.url, headers=headers) as client,
        client.stream("POST", "/v1/chat/completions", json=asked) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        remove_key(file, "ci")
        running.server.authority.file.refresh()  # type: ignore[union-attr]
        with pytest.raises(httpx.RemoteProtocolError):
            async with asyncio.timeout(20):
                async for _ in lines:
                    pass
        await wait_until(lambda: running.server.runs.active == 0)
