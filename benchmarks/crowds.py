"""Many clients at once, each kind with the aim that it must keep: its last line says "kept" or "missed".

    python benchmarks/crowds.py streams|disconnects|silent|overload|signals|soak [--scale 1.0] [--seconds 30]

streams: 1,000 streams of 500 tokens; every number and every word must come, once and in order. disconnects: 10,000
clients of whom 30 % leave at a random moment; nothing of them may be left a second after the last. silent: 200 clients
that read nothing; the server may hold 1 MB for each, and a stream beside them must keep its pace. overload: ten times
as many requests at once as there are places; each beyond is refused with Retry-After within 20 ms. signals: SIGTERM,
SIGHUP and SIGINT twice while 500 answers are under way; every stream is told its end, nothing new is taken, and the
server exits with 0. soak: every wire in turn for so many seconds; memory may not grow in the second half. --scale
multiplies the numbers of clients. The server is a process of its own with the scripted engine; the clients share one
other process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chat_http import Target, get_ready, running
from benchmarks.refusals import gaps

SERVER = str(Path(__file__).parent / "_scripted_server.py")
WORD = "the "
AT_ONCE = 500
START = "from agent_server.cli.main import main; main()"


@contextmanager
def scripted(tokens: int, delay: float, *runs: int) -> Iterator[tuple[int, int]]:
    """(process id, port) of a server whose answers have so many words, one every `delay` seconds."""
    command = [sys.executable, SERVER, "{descriptor}", str(tokens), str(delay), *map(str, runs)]
    target = Target("this server", command, "default", "/ready", tokens)
    with running(target) as (pid, port):
        asyncio.run(get_ready(target, pid, port))
        yield pid, port


def agui(number: int) -> dict[str, Any]:
    message = {"id": "u", "role": "user", "content": "Hi"}
    props = {"max_tokens": 4000}
    given = {"threadId": f"t{number}", "runId": f"r{number}", "messages": [message], "forwardedProps": props}
    return {**given, "protocolVersion": "1.0", "tools": [], "context": [], "state": {}}


CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


async def send(port: int, path: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data)
    return reader, writer


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text


async def open_runs(port: int) -> float:
    lines = (await get(port, "/metrics")).splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("agent_server:runs_open"))


def verdict(text: str, kept: bool) -> None:
    print(f"{text}: {'kept' if kept else 'missed'}")


# ---- streams --------------------------------------------------------------------------------------------------------


async def whole_stream(port: int, number: int, tokens: int) -> str:
    """What is wrong with one stream; "" if nothing is."""
    reader, writer = await send(port, "/agui", agui(number))
    text, last, ended = "", 0, False
    async for line in reader:
        if line.startswith(b"id: "):
            if int(line[4:]) != last + 1:
                return f"event {int(line[4:])} after {last}"
            last += 1
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            ended = event["type"] == "RUN_FINISHED"
            text += event["delta"] if event["type"] == "TEXT_MESSAGE_CONTENT" else ""
    writer.close()
    if not ended:
        return "no end"
    return "" if text.strip() == (WORD * tokens).strip() else f"{len(text)} characters of {len(WORD) * tokens}"


def streams(scale: float, seconds: float) -> None:
    count, tokens = round(1000 * scale), 500

    async def all_of_them(port: int) -> list[str]:
        return await asyncio.gather(*(whole_stream(port, number, tokens) for number in range(count)))

    with scripted(tokens, 0.05) as (_, port):
        begun = time.perf_counter()
        faults = [each for each in asyncio.run(all_of_them(port)) if each]
        took = time.perf_counter() - begun
    print(*Counter(faults).most_common(5), sep="\n")
    verdict(
        f"{count} streams of {tokens} tokens in {took:.0f} s, {len(faults)} with something lost or twice", not faults
    )


# ---- disconnects ----------------------------------------------------------------------------------------------------


async def perhaps_leaving(port: int, chance: random.Random, gate: asyncio.Semaphore) -> bool:
    async with gate:
        leaves, wait = chance.random() < 0.3, chance.random() * 0.4
        reader, writer = await send(port, "/v1/chat/completions", CHAT)
        if leaves:
            await asyncio.sleep(wait)
            writer.transport.abort()
            return True
        answer = await reader.read()
        writer.close()
        if not answer.rstrip().endswith(b"0") and b"[DONE]" not in answer:
            raise RuntimeError("a client that stayed got no end")
        return False


def disconnects(scale: float, seconds: float) -> None:
    count, chance = round(10_000 * scale), random.Random(7)

    async def crowd(port: int) -> tuple[int, float]:
        gate = asyncio.Semaphore(AT_ONCE)
        left = await asyncio.gather(*(perhaps_leaving(port, chance, gate) for _ in range(count)))
        await asyncio.sleep(1.0)
        return sum(left), await open_runs(port)

    with scripted(20, 0.02) as (_, port):
        left, runs = asyncio.run(crowd(port))
    verdict(f"{count} clients, {left} left in mid-stream; runs open 1 s after the last: {runs:g}", not runs)


# ---- clients that read nothing --------------------------------------------------------------------------------------


def silent(scale: float, seconds: float) -> None:
    count = round(200 * scale)

    async def beside(port: int, pid: int) -> tuple[list[float], list[float], int]:
        await gaps(port, 1.0)
        alone = await gaps(port, seconds)
        before = psutil.Process(pid).memory_info().rss
        writers = [await mute(port, number) for number in range(count)]
        found = await gaps(port, seconds)
        grown = psutil.Process(pid).memory_info().rss - before
        for writer in writers:
            writer.transport.abort()
        return alone, found, grown

    async def mute(port: int, number: int) -> asyncio.StreamWriter:
        _, writer = await send(port, "/agui", agui(number))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        return writer

    with scripted(20_000, 0.01) as (pid, port):
        alone, found, grown = asyncio.run(beside(port, pid))
    each = grown / count / 2**20
    p99 = [statistics.quantiles(times, n=100)[98] * 1000 for times in (alone, found)]
    print(f"p99 between tokens of another stream: {p99[0]:.1f} ms alone, {p99[1]:.1f} ms beside them (aim 10 % more)")
    verdict(f"{count} clients that read nothing for {seconds:g} s: {each:.2f} MB for each (aim 1 MB)", each <= 1)


# ---- overload -------------------------------------------------------------------------------------------------------


def overload(scale: float, seconds: float) -> None:
    places = round(64 * scale)

    async def one(port: int) -> tuple[int, bool, float]:
        begun = time.perf_counter()
        reader, writer = await send(port, "/v1/chat/completions", CHAT)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        took = time.perf_counter() - begun
        status = int(head.split()[1])
        if status == 200:
            await reader.read()
        writer.close()
        return status, b"retry-after:" in head, took

    async def crowd(port: int) -> list[tuple[int, bool, float]]:
        return await asyncio.gather(*(one(port) for _ in range(10 * places)))

    async def later(port: int) -> list[float]:
        """How long refusals take, one at a time, while all places are taken."""
        held = [asyncio.create_task(one(port)) for _ in range(places)]
        async with asyncio.timeout(30):
            while await open_runs(port) < places:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        times = [took for status, _, took in [await one(port) for _ in range(100)] if status != 200]
        await asyncio.gather(*held)
        return times

    with scripted(100, 0.05, places) as (_, port):
        found = asyncio.run(crowd(port))
        times = sorted(asyncio.run(later(port)))
    refused = [each for each in found if each[0] != 200]
    sound = all(status in (429, 503) and told for status, told, _ in refused) and len(refused) <= 9 * places
    burst = sorted(took for _, _, took in refused)
    print(f"burst of {10 * places}: median {statistics.median(burst) * 1000:.0f} ms, most {burst[-1] * 1000:.0f} ms")
    p99 = times[int(len(times) * 0.99)] * 1000
    verdict(
        f"{len(refused)} of {len(found)} refused with Retry-After: {sound}; a refusal beside full places takes "
        f"{statistics.median(times) * 1000:.1f} ms, p99 {p99:.1f} ms (aim 20 ms)", sound and p99 <= 20,
    )  # fmt: skip


# ---- signals --------------------------------------------------------------------------------------------------------

SENT = {"SIGTERM": [signal.SIGTERM], "SIGHUP": [signal.SIGHUP], "SIGINT twice": [signal.SIGINT, signal.SIGINT]}
EXIT_SECONDS = 60.0


async def told_its_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    """The last event of a stream of /agui: RUN_FINISHED or RUN_ERROR; "cut off" where it has none."""
    events = [json.loads(line[6:])["type"] async for line in reader if line.startswith(b"data: ")]
    writer.close()
    return events[-1] if events and events[-1] in ("RUN_FINISHED", "RUN_ERROR") else "cut off"


async def is_taken(port: int, number: int) -> bool:
    """Whether a new run is begun."""
    try:
        reader, writer = await send(port, "/agui", agui(number))
        status = await reader.readline()
        writer.close()
    except OSError:
        return False
    return b" 200 " in status


async def signalled(server: psutil.Process, port: int, numbers: list[signal.Signals], count: int) -> list[str]:
    """How each of so many streams ended; what was taken in the meantime is "taken"."""
    begun = [await send(port, "/agui", agui(number)) for number in range(count)]
    for reader, _ in begun:
        await reader.readuntil(b"TEXT_MESSAGE_CONTENT")
    ends = [asyncio.create_task(told_its_end(*stream)) for stream in begun]
    for number in numbers:
        server.send_signal(number)
        await asyncio.sleep(0.5)  # signals do not queue: the second of two at once would be lost
    new = await is_taken(port, count)
    return [*await asyncio.gather(*ends), *["taken"] * new]


def signals(scale: float, seconds: float) -> None:
    count, fine, found = round(500 * scale), True, ""
    for name, numbers in SENT.items():
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it may be ignored here, which a child is handed on
        with scripted(200, 0.05) as (pid, port):
            signal.signal(signal.SIGHUP, before)
            server = psutil.Process(pid)
            ends = Counter(asyncio.run(signalled(server, port, numbers, count)))
            status = server.wait(EXIT_SECONDS)
        wanted = "RUN_ERROR" if len(numbers) > 1 else "RUN_FINISHED"
        fine = fine and ends == {wanted: count} and status == 0
        found += f"{name}: {dict(ends)}, exit {status}; "
    verdict(found.removesuffix("; "), fine)


# ---- soak -----------------------------------------------------------------------------------------------------------

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": TOOL}
WIRES: dict[str, Callable[[int], dict[str, Any]]] = {
    "/agui": lambda number: {**agui(number), "tools": [FUNCTION]},
    "/v1/chat/completions": lambda number: {**CHAT, "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/messages": lambda number: {
        "model": "default", "max_tokens": 50, "stream": True, "messages": CHAT["messages"],
        "tools": [{"name": "weather", "description": "The weather.", "input_schema": TOOL}],
    },
    "/v1/responses": lambda number: {
        "model": "default", "input": "Hi", "stream": True, "tools": [{"type": "function", **FUNCTION}],
    },
}  # fmt: skip


def soak(scale: float, seconds: float) -> None:
    clients = max(1, round(16 * scale))

    async def client(port: int, first: int, ends: float, done: Counter[str]) -> None:
        number = first
        while time.monotonic() < ends:
            path = list(WIRES)[number % len(WIRES)]
            reader, writer = await send(port, path, WIRES[path](number))
            answer = await reader.read()
            writer.close()
            done[path if b" 200 " in answer[:20] else f"{path} failed: {answer[:20]!r}"] += 1
            number += clients * len(WIRES) + 1

    async def watch(pid: int, ends: float) -> list[int]:
        sizes = []
        while time.monotonic() < ends:
            await asyncio.sleep(1)
            sizes.append(psutil.Process(pid).memory_info().rss)
        return sizes

    async def whole(port: int, pid: int) -> tuple[list[int], Counter[str]]:
        done: Counter[str] = Counter()
        ends = time.monotonic() + seconds
        work: list[Awaitable[Any]] = [client(port, number, ends, done) for number in range(clients)]
        sizes, *_ = await asyncio.gather(watch(pid, ends), *work)
        return sizes, done

    target = [sys.executable, "-c", START, "serve", "--engine", "scripted", "--port", "{port}"]
    with tempfile.TemporaryDirectory() as folder:  # what is kept goes to a file: in memory it would be what grows
        settings = {"AGENT_SERVER_DATA_DIR": folder, "AGENT_SERVER_REPLAY_SECONDS": "1"}
        server = Target("this server", target, "default", "/ready", 0, settings)
        with running(server) as (pid, port):
            asyncio.run(get_ready(server, pid, port))
            sizes, done = asyncio.run(whole(port, pid))
    print(*(f"{count} {path}" for path, count in sorted(done.items())), sep="\n")
    third, last = (
        statistics.median(sizes[len(sizes) // 2 : len(sizes) * 3 // 4]),
        statistics.median(sizes[-len(sizes) // 4 :]),
    )
    grown = last / third - 1
    fine = grown <= 0.02 and not any("failed" in name for name in done)
    print("MB at each tenth:", *(round(sizes[len(sizes) * at // 10] / 2**20) for at in range(10)))
    verdict(
        f"{done.total()} answers in {seconds:g} s; memory {last / 2**20:.0f} MB, {grown:+.1%} in the second half", fine
    )


def main() -> None:
    kinds = {"streams": streams, "disconnects": disconnects, "silent": silent, "overload": overload}
    kinds |= {"signals": signals, "soak": soak}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    kinds[given.kind](given.scale, given.seconds)


if __name__ == "__main__":
    main()
