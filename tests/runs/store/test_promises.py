"""What a server has told is there after kill -9: a real server's process, over HTTP, with SQLite."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx

from agent_server.engines.scripted import Script
from agent_server.runs.store import Store
from tests.server import READY_SECONDS, ROOT, scripted, serving


async def events_of(
    client: httpx.AsyncClient, thread: str, run: str, text: str
) -> AsyncGenerator[dict[str, object], None]:
    """The events of a run as they arrive."""
    asked = {"id": f"{run}-u", "role": "user", "content": text}
    body = {
        "threadId": thread, "runId": run, "messages": [asked], "state": {}, "tools": [], "context": [],
        "forwardedProps": {},
    }  # fmt: skip
    async with client.stream("POST", "/agui", json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


async def until(events: AsyncGenerator[dict[str, object], None], kind: str) -> None:
    async for event in events:
        if event["type"] == kind:
            return
    raise AssertionError(f"no {kind} came")


async def serve(place: str) -> None:
    """A server that tells its address, answers the first run at once and any other after ten minutes."""
    engine = scripted([Script(text="The whole answer."), Script(text="Never.", first_delay=600)])
    async with serving(engine, store_url=place) as running:
        print(running.url, flush=True)
        await asyncio.Event().wait()


async def test_what_was_told_is_kept(tmp_path: Path):
    place = f"sqlite:///{tmp_path}/threads.db"
    given = ["-m", "tests.runs.store.test_promises", place]
    server = await asyncio.create_subprocess_exec(sys.executable, *given, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert server.stdout is not None
        url = (await server.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(base_url=url, timeout=READY_SECONDS) as client:
            finished = events_of(client, "a", "run-a", "one")
            await until(finished, "RUN_FINISHED")
            started = events_of(client, "b", "run-b", "two")
            await until(started, "RUN_STARTED")
            waiting = events_of(client, "b", "run-c", "three")
            await until(waiting, "CUSTOM")
            server.kill()
            for each in (finished, started, waiting):
                await each.aclose()
    finally:
        if server.returncode is None:
            server.kill()
        await server.communicate()
    store = Store(place)
    await store.open()
    try:
        told = {thread: [each["content"] for each in await store.messages("", thread)] for thread in "ab"}
        runs = {each.id: each.status for thread in "ab" for each in await store.runs("", thread)}
    finally:
        await store.close()
    assert told == {"a": ["one", "The whole answer."], "b": ["two", "three"]}
    assert runs == {"run-a": "finished", "run-b": "running", "run-c": "waiting"}


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
