"""Servers that are killed with -9 again and again under clients that come back: what is broken, done twice or lost.

    python -m tests.gateways.kills [--kills 1000] [--clients 6] [--gateways 2] [--seed 1]

With one gateway (the default) the server is alone on an SQLite file; with two they share a PostgreSQL and a Redis, and
one of them is killed at a time. A client asks for a long answer, or for a call that may not be made twice, and reads. When
its stream is cut it reads on behind the last event that it has, or, one time in three, asks again as a person does who
was told that the server died: with the same message, under a new run. In the end each thread must have one answer. Its
last line says "kept" or "missed".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from agent_server.agents.interrupts import UNKNOWN
from events.encode import from_wire
from events.lifecycle import LifecycleError, Verifier
from tests.gateways.client import Frame, body, frames, goes_on, text_of
from tests.gateways.conftest import Process
from tests.gateways.gateway import CHARGED
from tests.gateways.redis_server import RedisServer
from tests.runs.store import postgres

AIM_BROKEN = 0.02
PATIENCE_SECONDS = 300.0
WORDS = 90


class Fleet:
    """The servers, some of which are dead at any time."""

    def __init__(self, count: int, store: str, redis: str) -> None:
        self._store, self._redis = store, redis
        self._prefix = secrets.token_hex(4)
        self._processes: list[Process | None] = [None] * count
        self.kills = 0

    async def start(self, at: int) -> None:
        process = Process(self._store, self._redis, redis_prefix=self._prefix, drain=1.0)
        await asyncio.to_thread(process.ready)
        self._processes[at] = process

    async def start_all(self) -> None:
        await asyncio.gather(*(self.start(at) for at in range(len(self._processes))))

    async def kill(self, at: int) -> None:
        process, self._processes[at] = self._processes[at], None
        assert process is not None
        await asyncio.to_thread(process.kill)
        self.kills += 1

    def url(self, rng: random.Random) -> str | None:
        living = [each.url for each in self._processes if each is not None]
        return rng.choice(living) if living else None

    def close(self) -> None:
        for process in self._processes:
            if process is not None:
                process.close()


class Client:
    """One client, a thread after the other."""

    def __init__(self, fleet: Fleet, folder: Path, seed: int, counts: Counter[str]) -> None:
        self._fleet = fleet
        self._folder = folder
        self._rng = random.Random(seed)
        self._counts = counts
        self._http = httpx.AsyncClient(timeout=20)
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            await self._thread()
        await self._http.aclose()

    async def _thread(self) -> None:
        file = self._folder / secrets.token_hex(6)
        charges = self._rng.random() < 0.5
        said = f"charge {file}" if charges else f"count {WORDS} 0.01"
        expected = CHARGED if charges else " ".join(map(str, range(1, WORDS + 1)))
        ask = body(said)
        seen, cuts = await self._follow(ask)
        self._counts["runs"] += 1
        self._counts["cut"] += cuts > 0
        last = seen[-1][1] if seen else {}
        if last.get("type") != "RUN_FINISHED":
            self._counts["broken"] += 1
            self._tell("broken", ask, cuts, last)
            return
        faults = self._seams(seen, expected)
        self._counts["seams"] += bool(faults)
        if faults:
            self._tell("seam", ask, cuts, faults)
        messages = await self._messages(ask["threadId"])
        finals = [each for each in messages if each["role"] == "assistant" and not each.get("toolCalls")]
        results = [each for each in messages if each["role"] == "tool"]
        if not any(each["content"] == expected for each in finals):
            self._counts["lost"] += 1
            self._tell("lost", ask, cuts, messages)
        if len(finals) > 1 or len(results) > 1:
            self._counts["two"] += 1
            self._tell("two", ask, cuts, messages)
        lines = file.read_text().count("\n") if file.exists() else 0
        self._counts["paid twice"] += lines > 1
        self._counts["unknown"] += any(each["content"] == UNKNOWN for each in results)
        if charges and lines == 0:
            self._counts["never paid"] += 1
        file.unlink(missing_ok=True)

    def _tell(self, what: str, ask: dict[str, Any], cuts: int, more: object) -> None:
        print(f"{what}: {ask['threadId']} {ask['runId']} after {cuts} cuts: {str(more)[:600]}", flush=True)

    async def _follow(self, ask: dict[str, Any]) -> tuple[list[Frame], int]:
        """The run's events to its end, whatever dies on the way, and how often the stream was cut."""
        seen: list[Frame] = []
        cuts = 0
        until = time.monotonic() + PATIENCE_SECONDS
        asking = True
        while time.monotonic() < until:
            url = self._fleet.url(self._rng)
            if url is None:  # a busy machine needs long for a start, which is no time that the run was waited for
                dead = time.monotonic()
                await asyncio.sleep(0.02)
                until += time.monotonic() - dead
                continue
            try:
                async with contextlib.aclosing(self._read(url, ask, seen, asking)) as more:
                    async for frame in more:
                        if goes_on(frame):
                            break
                        seen.append(frame)
                        asking = False
                        if frame[1]["type"] in ("RUN_FINISHED", "RUN_ERROR"):
                            return seen, cuts
            except NotThere:
                # The request was lost with the server before it was accepted, or nobody has resumed it yet.
                asking = not seen
                await asyncio.sleep(0.05)
                continue
            except httpx.HTTPError:
                pass
            cuts += 1
            if seen and self._rng.random() < 1 / 3:
                ask, seen, asking = {**ask, "runId": f"run-{secrets.token_hex(4)}"}, [], True
                self._counts["asked again"] += 1
            await asyncio.sleep(self._rng.random() * 0.2)
        return seen, cuts

    async def _read(self, url: str, ask: dict[str, Any], seen: list[Frame], asking: bool) -> AsyncIterator[Frame]:
        """The events from a request, or from reading on."""
        if asking:
            request = self._http.stream("POST", f"{url}/agui", json=ask)
        else:
            after = {"last-event-id": str(seen[-1][0] if seen else 0)}
            request = self._http.stream("GET", f"{url}/agui/runs/{ask['runId']}/events", headers=after)
        async with request as response:
            if response.status_code in (404, 409, 503):
                await response.aread()
                self._counts[str(response.status_code)] += 1
                if seen and response.status_code == 404:  # what a reader was shown is saved, so the run is known
                    self._counts["unknown while read"] += 1
                    self._tell("unknown while read", ask, 0, {"after": seen[-1][0]})
                if asking and response.status_code == 409:  # it is known, so it can be read
                    async for frame in self._read(url, ask, seen, False):
                        yield frame
                    return
                raise NotThere
            assert response.status_code == 200, (response.status_code, await response.aread())
            async for frame in frames(response):
                yield frame

    @staticmethod
    def _seams(seen: list[Frame], expected: str) -> list[str]:
        faults = []
        numbers = [number for number, _ in seen]
        if numbers != list(range(1, len(seen) + 1)):
            faults.append(f"numbers {numbers}")
        verifier = Verifier(strict=True)
        try:
            for _, event in seen:
                verifier.check(from_wire(event))
        except LifecycleError as error:
            faults.append(str(error))
        if text_of(seen) != expected:
            faults.append(f"text {text_of(seen)!r}")
        return faults

    async def _messages(self, thread: str) -> list[dict[str, Any]]:
        while True:
            if (url := self._fleet.url(self._rng)) is not None:
                with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError, KeyError):
                    response = await self._http.get(f"{url}/agui/threads/{thread}/messages")
                    if response.status_code == 200:
                        return list(response.json()["messages"])
            await asyncio.sleep(0.05)


class NotThere(Exception):
    """The run is not known there, now."""


@contextlib.contextmanager
def backends(gateways: int, folder: Path) -> Iterator[tuple[str, str]]:
    """The URLs of the database and the Redis."""
    if gateways == 1:
        yield f"sqlite:///{folder}/threads.db", ""
        return
    redis = RedisServer().start()
    try:
        with postgres.server() as url:
            yield url, redis.url
    finally:
        redis.close()


async def campaign(given: argparse.Namespace) -> bool:
    rng, counts = random.Random(given.seed), Counter[str]()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as place, backends(given.gateways, Path(place)) as (store, redis):
        fleet = Fleet(given.gateways, store, redis)
        await fleet.start_all()
        clients = [Client(fleet, Path(place), given.seed + at, counts) for at in range(given.clients)]
        tasks = [asyncio.create_task(client.run()) for client in clients]
        try:
            while fleet.kills < given.kills and time.monotonic() - begun < given.seconds:
                await asyncio.sleep(0.2 + rng.random() * given.pause)
                at = rng.randrange(given.gateways)
                await fleet.kill(at)
                await asyncio.sleep(rng.random() * 0.3)
                await fleet.start(at)
                if fleet.kills % 25 == 0:
                    print(f"{fleet.kills} kills, {time.monotonic() - begun:.0f} s: {dict(counts)}", flush=True)
                for task in tasks:
                    if task.done():
                        task.result()
            for client in clients:
                client.stopping = True
            await asyncio.wait_for(asyncio.gather(*tasks), 120)
        finally:
            for task in tasks:
                task.cancel()
            fleet.close()
    broken = counts["broken"] / max(1, counts["runs"])
    never = ("two", "paid twice", "lost", "seams", "unknown while read")
    shown = fleet.kills > 0 and counts["cut"] > 0  # a campaign that cut no run shows nothing
    kept = shown and broken <= AIM_BROKEN and not any(counts[each] for each in never)
    print(
        f"{fleet.kills} kills in {time.monotonic() - begun:.0f} s, {counts['runs']} runs of which {counts['cut']} were "
        f"cut: broken {counts['broken']} ({broken:.1%}), two results {counts['two']}, paid twice "
        f"{counts['paid twice']}, lost answers {counts['lost']}, seams {counts['seams']}, unknown while "
        f"read {counts['unknown while read']}; asked again "
        f"{counts['asked again']}, told as unknown {counts['unknown']}: {'kept' if kept else 'missed'}"
    )
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="most seconds between a start and the next kill")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", type=int, default=1)
    sys.exit(not asyncio.run(campaign(parser.parse_args())))


if __name__ == "__main__":
    main()
