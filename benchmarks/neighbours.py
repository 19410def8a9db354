"""A well-behaved tenant beside one that attacks the server: latency, memory and connections.

    python benchmarks/neighbours.py ATTACK [--scale 1.0] [--seconds 10] [--model FOLDER]

pipelined: 100 clients without a key that send requests, 6 MB each, and read no answer. pings, pongs, fragments,
messages: 20 WebSockets of one tenant that send small frames as fast as the server reads. sockets: one tenant opens a
WebSocket for every connection that the server may have, and keeps it. silent: the same without a key, and without a
word. tokenize: one tenant posts texts of 4 MB to /tokenize. chats: 40 clients of one tenant post conversations of
1,901 messages, which are refused once they are rendered; counts: the same to /v1/messages/count_tokens. unread: 100
connections of one tenant ask for a conversation of 3.5 MB again and again and read nothing of it. slow-readers: the
same, 1 KB a second. slow-bodies: 100 connections of one tenant that send the body of a run, a byte every tenth of a
second. --scale multiplies the number of clients, and the number of texts that are posted at once.

The server is `agent-server serve` with the model of --model (the bundled one), in a process of its own, at most 300
connections and a key for each of two tenants; the attackers are another process, with the lowest priority, since
theirs is another machine. The other tenant asks for /v1/models on a connection of its own every 20 ms, first alone,
then beside the attack; both are measured in one run. Printed: its latency, its refusals, and the server's memory. The
last line says "kept" or "missed".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chat_http import Target, get_ready, running

START = "from agent_server.cli.main import main; main()"
BAD, GOOD = "bad-tenant-key", "good-tenant-key"
CONNECTIONS = 300
EVERY_SECONDS = 0.02
WARM_UP_SECONDS = 4.0
"""Before anything is measured: the server completes its start while it answers."""
SLOWER = 2.0
GROWTH_MB = {"pipelined": 100.0, "tokenize": 400.0, "unread": 400.0, "slow-readers": 400.0}
PIPELINED_BYTES = 6 * 2**20
MASK = b"\0\0\0\0"
FRAMES = {
    "pings": b"\x89\x80" + MASK,
    "pongs": b"\x8a\x80" + MASK,
    "fragments": b"\x00\x81" + MASK + b"a",
    "messages": b"\x81\x82" + MASK + b"{}",
}


def request(method: str, path: str, key: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", *([f"authorization: Bearer {key}"] if key else [])]
    lines += [*headers, *([f"content-length: {len(body)}"] if body else [])]
    return "\r\n".join([*lines, "\r\n"]).encode() + body


async def pour(port: int, data: bytes, most: int) -> None:
    """Send so many bytes, and read nothing."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        for _ in range(most // len(data)):
            writer.write(data)
            await writer.drain()
        await asyncio.sleep(3600)


async def pipelined(port: int, count: int) -> None:
    await asyncio.gather(*(pour(port, request("GET", "/health", "") * 1000, PIPELINED_BYTES) for _ in range(count)))


async def websocket(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """An open WebSocket of the tenant that attacks. Raises OSError if it is refused."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    writer.write(request("GET", "/agui/ws", BAD, *upgrade, "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="))
    try:
        if b" 101 " not in await reader.readuntil(b"\r\n\r\n"):
            raise OSError("refused")
    except (asyncio.IncompleteReadError, OSError):
        writer.close()
        raise OSError("refused") from None
    return reader, writer


def frames(kind: str) -> Callable[[int, int], Awaitable[None]]:
    async def flood(port: int) -> None:
        """Again and again, on a new connection where one was closed; what is answered is read and dropped."""
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await websocket(port)
                dropping = asyncio.create_task(reader.read())
                try:
                    writer.write(b"\x01\x81" + MASK + b"a" if kind == "fragments" else b"")
                    while not writer.transport.is_closing() and not dropping.done():
                        writer.write(FRAMES[kind] * 8192)
                        await writer.drain()
                finally:
                    dropping.cancel()
                    writer.transport.abort()
            await asyncio.sleep(0.1)

    async def all_of_them(port: int, count: int) -> None:
        await asyncio.gather(*(flood(port) for _ in range(count)))

    return all_of_them


async def sockets(port: int, count: int) -> None:
    """As many as are let in, each kept, and asked for again where refused."""
    opened = []
    while True:
        if len(opened) < count:
            with contextlib.suppress(OSError):
                opened.append(await websocket(port))
        await asyncio.sleep(0 if len(opened) < count else 1)


async def silent(port: int, count: int) -> None:
    opened = []
    while True:
        for _ in range(count - len(opened)):
            with contextlib.suppress(OSError):
                opened.append(await asyncio.open_connection("127.0.0.1", port))
        await asyncio.sleep(0.1)
        opened = [each for each in opened if not each[0].at_eof()]


async def tokenize(port: int, count: int) -> None:
    words = "".join(random.Random(1).choice(["hello ", "world ", "  ", "42 ", "é ", "{}"]) for _ in range(1_600_000))
    body = b'{"model":"default","prompt":"' + words.encode()[:3_900_000].rsplit(b" ", 1)[0] + b'"}'

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
                writer.write(request("POST", "/tokenize", BAD, "connection: close", body=body))
                while await reader.read(2**20):
                    pass
                writer.close()

    await asyncio.gather(*(again() for _ in range(count)))


def conversations(path: str) -> Callable[[int, int], Awaitable[None]]:
    messages = ",".join(
        f'{{"role":"{("user", "assistant")[number % 2]}","content":"message {number} word word"}}'
        for number in range(1901)
    )
    body = f'{{"model":"default","max_tokens":1,"messages":[{messages}]}}'.encode()

    async def again(port: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request("POST", path, BAD, "connection: close", body=body))
                while await reader.read(2**16):
                    pass
                writer.close()

    async def all_of_them(port: int, count: int) -> None:
        await asyncio.gather(*(again(port) for _ in range(count)))

    return all_of_them


async def conversation(port: int) -> bytes:
    """Store a conversation of 3.5 MB. Return a request for it."""
    words = "word " * 700_000
    body = f'{{"items":[{{"type":"message","role":"user","content":"{words}"}}]}}'.encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request("POST", "/v1/conversations", BAD, "connection: close", body=body))
    answer = await reader.read()
    writer.close()
    name = answer.partition(b'"id":"')[2].partition(b'"')[0].decode()
    return request("GET", f"/v1/conversations/{name}/items", BAD)


async def unread(port: int, count: int) -> None:
    ask = await conversation(port)

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(ask)
                await asyncio.sleep(10)
                writer.transport.abort()

    await asyncio.gather(*(again() for _ in range(count)))


async def slow_readers(port: int, count: int) -> None:
    ask = await conversation(port)

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
                writer.write(ask)
                while await reader.read(1024):  # noqa: ASYNC110
                    await asyncio.sleep(1)
                writer.transport.abort()

    await asyncio.gather(*(again() for _ in range(count)))


async def slow_bodies(port: int, count: int) -> None:
    head = request("POST", "/agui", BAD, "content-type: application/json", "content-length: 1000000")

    async def again() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head)
                while not reader.at_eof() and not writer.transport.is_closing():
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.1)
                writer.transport.abort()

    await asyncio.gather(*(again() for _ in range(count)))


ATTACKS: dict[str, tuple[Callable[[int, int], Awaitable[None]], int]] = {
    "pipelined": (pipelined, 100),
    **{kind: (frames(kind), 20) for kind in FRAMES},
    "sockets": (sockets, CONNECTIONS),
    "silent": (silent, CONNECTIONS),
    "tokenize": (tokenize, 1),
    "chats": (conversations("/v1/chat/completions"), 40),
    "counts": (conversations("/v1/messages/count_tokens"), 40),
    "unread": (unread, 100),
    "slow-readers": (slow_readers, 100),
    "slow-bodies": (slow_bodies, 100),
}


def attack(name: str, port: int, count: int) -> None:
    os.nice(19)
    asyncio.run(ATTACKS[name][0](port, count))  # type: ignore[arg-type]


class Neighbour:
    """The tenant that behaves: what it was answered, how long that took, and what the server's memory was."""

    def __init__(self, pid: int, port: int) -> None:
        self.times: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.memory = 0.0
        self._pid, self._port = pid, port

    async def ask(self) -> None:
        begun = time.perf_counter()
        status = "no answer"
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(30):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.write(request("GET", "/v1/models", GOOD, "connection: close"))
                status = (await reader.read()).decode("latin-1").split(" ", 2)[1]
                writer.close()
        self.statuses[status] += 1
        self.times.append(time.perf_counter() - begun)

    async def watch(self, seconds: float) -> None:
        ends = time.perf_counter() + seconds
        asked = []
        while time.perf_counter() < ends:
            asked.append(asyncio.create_task(self.ask()))
            self.memory = max(self.memory, psutil.Process(self._pid).memory_info().rss / 2**20)
            await asyncio.sleep(EVERY_SECONDS)
        await asyncio.gather(*asked)

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.times, n=100)[98] * 1000

    def __str__(self) -> str:
        median, most = statistics.median(self.times) * 1000, max(self.times) * 1000
        answers = ", ".join(f"{count} × {status}" for status, count in sorted(self.statuses.items()))
        return f"median {median:8.1f}  p99 {self.p99:8.1f}  most {most:8.1f}  memory {self.memory:6.0f} MB  {answers}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attack", choices=ATTACKS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--model", default="")
    given = parser.parse_args()
    count = max(1, round(ATTACKS[given.attack][1] * given.scale))
    command = [sys.executable, "-c", START, "serve", *filter(None, [given.model]), "--port", "{port}"]
    with tempfile.TemporaryDirectory() as home:
        environment = {
            "AGENT_SERVER_STORE_URL": f"sqlite:///{home}/store.db", "AGENT_SERVER_MAX_CONNECTIONS": str(CONNECTIONS),
            "AGENT_SERVER_API_KEYS": f"bad:{BAD},good:{GOOD}", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        target = Target("this server", command, "default", "/ready", 0, environment=environment)
        with running(target) as (pid, port):
            asyncio.run(get_ready(target, pid, port))
            asyncio.run(Neighbour(pid, port).watch(WARM_UP_SECONDS))
            alone, beside = Neighbour(pid, port), Neighbour(pid, port)
            asyncio.run(alone.watch(given.seconds))
            attacker = multiprocessing.get_context("fork").Process(
                target=attack, args=(given.attack, port, count), daemon=True
            )
            attacker.start()
            try:
                asyncio.run(beside.watch(given.seconds))
            finally:
                attacker.kill()
    print(f"milliseconds, alone           {alone}\nmilliseconds, beside {given.attack:9} {beside}")
    refused = beside.statuses.total() - beside.statuses["200"]
    grown, ratio = beside.memory - alone.memory, beside.p99 / alone.p99
    kept = not refused and ratio <= SLOWER and grown <= GROWTH_MB.get(given.attack, 50.0)
    print(
        f"{given.attack} by {count}: {refused} requests of the other tenant refused, its p99 {ratio:.1f} times that "
        f"alone (aim {SLOWER:g}), {grown:.0f} MB more: {'kept' if kept else 'missed'}"
    )


if __name__ == "__main__":
    main()
