"""Requests that offer another protocol than HTTP/1.1, as Java's client does with its first one."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.server import scripted, serving

BODY = json.dumps({"model": "default", "messages": [{"role": "user", "content": "Hi"}]}).encode()


@pytest.mark.parametrize("protocol", [b"h2c", b"H2C", b"TLS/1.0, HTTP/1.1"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upgrade_to_another_protocol_is_ignored(protocol: bytes, chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(BODY)
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nHost: localhost\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: %s\r\nContent-Type: application/json\r\n%s\r\n\r\n"
    ) % (protocol, length)
    async with serving(scripted("Hello.")) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
        for _ in range(2):  # the connection goes on
            writer.write(head + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200 ")
            (size,) = (int(line[15:]) for line in answer.lower().splitlines() if line.startswith(b"content-length:"))
            assert b"Hello." in await reader.readexactly(size)
        writer.close()
