"""Whether a stream notices that bodies meant to stall the server are being refused beside it.

    python benchmarks/refusals.py [--seconds 5] [--spaces 3900000]

A client reads a stream with a token every 10 ms, first alone, then while another posts bodies of 600 KB with 200,000
empty messages, one after the other; with --spaces, one user's message of so many spaces instead, which a tokenizer
takes for one piece. Printed: how late tokens came at the median, at the 99th percentile and at most, and how long a
refusal took. The server is a process of its own; so is the client that posts.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chat_http import Target, get_ready, running

STEP = 0.01
BOMB = b'{"threadId":"t","runId":"r","model":"default","messages":[' + b"{}," * 200_000 + b"{}]}"
PATHS = ("/agui", "/v1/chat/completions", "/v1/messages", "/v1/responses")
HELLO = b'{"model":"default","messages":[{"role":"user","content":"Hello"}],"stream":true}'


def spaces(count: int) -> bytes:
    """A request whose prompt is not refused by the number of its messages."""
    message = b'{"id":"m","role":"user","content":"' + b" " * count + b'"}'
    return b'{"threadId":"t","runId":"r","model":"default","max_tokens":1,"messages":[' + message + b"]}"


def post(port: int, seconds: float, times: Any, bomb: bytes, statuses: tuple[int, ...]) -> None:
    """Post the body to each path in turn for so long; how long each answer took."""
    ends = time.perf_counter() + seconds
    number = 0
    while time.perf_counter() < ends:
        begun = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", PATHS[number % len(PATHS)], bomb, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
        if answer.status not in statuses or len(body) > 16 * 1024:
            raise RuntimeError(f"{PATHS[number % len(PATHS)]} answered {answer.status} with {len(body)} bytes")
        connection.close()
        times.append(time.perf_counter() - begun)
        number += 1


async def gaps(port: int, seconds: float, path: str = PATHS[1], body: bytes = HELLO) -> list[float]:
    """Seconds between the tokens of one stream, read for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    writer.write(head % (path.encode(), len(body)) + body)
    await reader.readuntil(b"data: {")
    found: list[float] = []
    last = begun = time.perf_counter()
    while last - begun < seconds and await reader.readuntil(b"data: {"):
        now = time.perf_counter()
        found.append(now - last)
        last = now
    writer.close()
    return found


def told(name: str, found: list[float]) -> None:
    found = sorted(found)
    figures = (statistics.median(found), found[int(len(found) * 0.99)], found[-1])
    print(f"{name:34} " + " ".join(f"{figure * 1000:9.1f}" for figure in figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--spaces", type=int, default=0)
    given = parser.parse_args()
    seconds = given.seconds
    bomb = spaces(given.spaces) if given.spaces else BOMB
    statuses = (200, 400, 503, 504, 529) if given.spaces else (400, 413)
    command = [sys.executable, str(Path(__file__).parent / "_scripted_server.py"), "{descriptor}", "20000", str(STEP)]
    target = Target("this server", command, "default", "/ready", 20000)
    times = multiprocessing.Manager().list()
    with running(target) as (pid, port):
        asyncio.run(get_ready(target, pid, port))
        asyncio.run(gaps(port, 1.0))
        alone = asyncio.run(gaps(port, seconds))
        poster = multiprocessing.get_context("fork").Process(
            target=post, args=(port, seconds + 1, times, bomb, statuses)
        )
        poster.start()
        beside = asyncio.run(gaps(port, seconds))
        poster.join()
    if poster.exitcode or not times:
        raise SystemExit("a body was not refused as it should be")
    print(f"{'milliseconds':34} {'median':>9} {'p99':>9} {'most':>9}")
    told("between tokens, alone", alone)
    told("between tokens, beside refusals", beside)
    told(f"a refusal ({len(times)} of them)", list(times))


if __name__ == "__main__":
    main()
