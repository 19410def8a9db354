"""Whether the server's memory stays flat under clients of whom many vanish in the middle of their stream.

    python benchmarks/vanishing_memory.py [--minutes 10] [--clients 16] [--dropped 0.25] [--replay 10]

A server in a process of its own, with the scripted engine (nothing is computed, so that there is much traffic) and an
SQLite file. Clients ask over every wire with a stream; some close their socket after a few bytes. Finished runs are
replayed for a short time, so that what is kept on purpose reaches its bound early. Printed about ten times: requests so
far, resident memory after a garbage collection, and the objects whose number grew most since the first line. Then the
same after all clients have left. Its last line says "kept" if the memory of the second half stayed within 5 % and no
run is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import psutil
from websockets.asyncio.client import connect

from agent_server.engines.scripted import Script
from tests.server import scripted, serving

MARGIN = 0.05
SHOWN = 12
QUESTION = [{"role": "user", "content": "Tell me about yourself."}]
ANSWER = "<think>\nOne moment.\n</think>\n" + "the " * 150


def body_of(wire: str, number: int) -> dict[str, Any]:
    if wire.startswith("/v1"):
        asked = {"input": QUESTION} if wire == "/v1/responses" else {"messages": QUESTION}
        return {"model": "default", "stream": True, "max_tokens": 400, **asked}
    ask = {
        "threadId": f"t{number}", "runId": f"r{number}", "messages": [{"id": "u", **QUESTION[0]}], "tools": [],
        "state": {}, "context": [], "forwardedProps": {},
    }  # fmt: skip
    return {"method": "agent/run", "params": {"agentId": "default"}, "body": ask} if wire == "/copilotkit" else ask


HTTP_WIRES = ("/agui", "/copilotkit", "/v1/chat/completions", "/v1/responses", "/v1/messages")


async def over_http(client: httpx.AsyncClient, wire: str, number: int, most: float) -> None:
    read = 0
    async with client.stream("POST", wire, json=body_of(wire, number)) as response:
        if response.status_code != 200:
            raise RuntimeError(f"{wire}: {response.status_code} {(await response.aread())[:300]!r}")
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > most:
                return


async def over_websocket(url: str, number: int, most: float) -> None:
    read = 0
    async with connect(f"{url.replace('http', 'ws')}/agui/ws", max_size=None) as socket:
        await socket.send(json.dumps({"type": "run", "input": body_of("/agui", number)}))
        async for message in socket:
            read += len(message)
            if read > most:
                socket.transport.abort()
                return
            if '"RUN_FINISHED"' in str(message) or '"RUN_ERROR"' in str(message):
                return


class Traffic:
    """Clients that ask again and again. asked: the requests by wire, and how many of all were dropped."""

    def __init__(self, url: str, dropped: float) -> None:
        self.asked: Counter[str] = Counter()
        self._url = url
        self._dropped = dropped
        self._random = random.Random(0)

    async def client(self, until: float) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            while time.monotonic() < until:
                wire = self._random.choice((*HTTP_WIRES, "websocket"))
                drops = self._random.random() < self._dropped
                most = self._random.uniform(1, 3000) if drops else float("inf")
                self.asked[wire] += 1
                self.asked["dropped"] += drops
                number = sum(self.asked.values())
                if wire == "websocket":
                    await over_websocket(self._url, number, most)
                else:
                    await over_http(client, wire, number, most)


async def serve(folder: str, replay: float) -> None:
    """The server's process. For each line on stdin it prints what it holds."""
    engine = scripted(lambda request: Script(text=ANSWER, delay=0.0005))
    url = f"sqlite:///{folder}/runs.db"
    async with serving(engine, store_url=url, replay_seconds=replay, grace=1.0) as running:
        print(running.url, flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            gc.collect()
            counts = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
            memory = psutil.Process().memory_info().rss
            tasks = len(asyncio.all_tasks())
            runs = running.server.runs.active
            print(json.dumps({"rss": memory, "tasks": tasks, "runs": runs, "objects": counts}), flush=True)


async def main(minutes: float, clients: int, dropped: float, replay: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--serve", folder, "--replay", str(replay),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**20,
        )  # fmt: skip
        assert server.stdin is not None and server.stdout is not None
        url = (await server.stdout.readline()).decode().strip()
        traffic, begun, lines = Traffic(url, dropped), time.monotonic(), []

        async def line(what: str) -> None:
            server.stdin.write(b"\n")
            held = json.loads(await server.stdout.readline())
            lines.append(held)
            grown = Counter(held["objects"])
            grown.subtract(lines[0]["objects"])
            most = ", ".join(f"{name} {count:+}" for name, count in grown.most_common(SHOWN) if count > 50)
            megabytes, asked = held["rss"] / 2**20, sum(traffic.asked.values()) - traffic.asked["dropped"]
            print(f"{what}: {asked} requests, {traffic.asked['dropped']} dropped, {megabytes:.1f} MB,", end=" ")
            print(f"{held['tasks']} tasks, {held['runs']} active runs; {most}", flush=True)

        asking = [asyncio.create_task(traffic.client(begun + minutes * 60)) for _ in range(clients)]
        for number in range(1, 11):
            done, _ = await asyncio.wait(asking, timeout=minutes * 6, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
            await line(f"{number * minutes / 10:.1f} min")
        await asyncio.gather(*asking)
        await asyncio.sleep(2 * replay + 5)
        await line("idle")
        server.stdin.close()
        await server.wait()
        print(dict(traffic.asked))
        late = [each["rss"] for each in lines[5:]]
        flat = max(late) <= min(late) * (1 + MARGIN) and lines[-1]["runs"] == 0
        print(f"second half: {min(late) / 2**20:.1f} to {max(late) / 2**20:.1f} MB: {'kept' if flat else 'missed'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--dropped", type=float, default=0.25)
    parser.add_argument("--replay", type=float, default=10)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(serve(options.serve, options.replay))
    else:
        asyncio.run(main(options.minutes, options.clients, options.dropped, options.replay))
