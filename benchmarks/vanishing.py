"""How soon a generation is gone after its client vanished while nothing was being sent to it.

    python benchmarks/vanishing.py [--rounds 10]

The bundled model in the embedded engine, in a process of its own as always. The client closes its socket during a long
prefill (before any token) and during a pause. Printed: milliseconds until the
run has ended, and until the engine's process reports that it generates nothing, at the median and at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.server import Running, serving

Silence = Callable[[Running], Awaitable[None]]


def body(words: int, number: int) -> bytes:
    message = {"id": "1", "role": "user", "content": f"{number} " + "word " * words}
    props = {"max_tokens": 900, "ignore_eos": True, "temperature": 0}
    asked: dict[str, Any] = {"threadId": f"t{number}", "runId": f"r{number}", "messages": [message], "tools": []}
    return json.dumps({**asked, "state": {}, "context": [], "forwardedProps": props}).encode()


async def opened(running: Running, words: int, number: int) -> asyncio.StreamWriter:
    """A client that has asked and reads nothing."""
    port = int(running.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    data = body(words, number)
    writer.write(b"POST /agui HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return writer


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> float:
    begun = time.perf_counter()
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return time.perf_counter() - begun


def generating(running: Running) -> float:
    return float(running.engine.metrics().get("num_requests_running", 0.0))


async def in_prefill(running: Running) -> None:
    await until(lambda: generating(running) > 0)
    if any(run.log.last > 1 for run in runs_of(running)):
        raise RuntimeError("the prefill was over already: give it more words")


async def in_pause(running: Running) -> None:
    await until(lambda: any(run.log.last > 5 for run in runs_of(running)))
    await asyncio.gather(*(run.pause() for run in runs_of(running)))
    await asyncio.sleep(0.1)


def runs_of(running: Running) -> list[Any]:
    return [run for run in running.server.runs._runs.values() if not run.finished]


async def vanish(running: Running, words: int, silence: Silence, number: int) -> tuple[float, float]:
    """(until the run has ended, until the engine reports nothing), in seconds."""
    writer = await opened(running, words, number)
    await silence(running)
    begun = time.perf_counter()
    writer.transport.abort()
    await until(lambda: not running.server.runs.active)
    ended = time.perf_counter() - begun
    await until(lambda: generating(running) == 0)
    return ended, time.perf_counter() - begun


async def main(rounds: int) -> None:
    situations: dict[str, tuple[int, Silence]] = {"a long prefill": (1500, in_prefill), "a pause": (3, in_pause)}
    print(f"{'ms, median and most, during':30} {'run ended':>16} {'engine empty':>16}")
    number = 0
    async with serving(engine_process=True, grace=0.0, step_tokens=16) as running:
        for name, (words, silence) in situations.items():
            found = []
            for _ in range(rounds):
                number += 1
                found.append(await vanish(running, words, silence, number))
            columns = [
                f"{statistics.median(times) * 1000:8.1f}{max(times) * 1000:8.1f}" for times in zip(*found, strict=True)
            ]
            print(f"{name:30} {columns[0]} {columns[1]}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    asyncio.run(main(parser.parse_args().rounds))
