"""The wall clock put forward and back under runs: what is waited for is measured by the other clock."""

from __future__ import annotations

import asyncio
import json
import time

import httpx
import pytest

from agent_server.engines.scripted import Script
from tests.server import scripted, serving

DAY = 86_400


@pytest.mark.parametrize("jump", [400 * DAY, -400 * DAY])
async def test_runs_end_and_threads_keep_their_order(jump: int, monkeypatch: pytest.MonkeyPatch):
    now, now_ns = time.time, time.time_ns
    async with (
        serving(scripted([Script(text="one two three four five", delay=0.02)] * 3), run_time_limit=30) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):

        async def run(number: int) -> str:
            message = {"id": f"u{number}", "role": "user", "content": "Hi"}
            sent = {"threadId": "t", "runId": f"r{number}", "protocolVersion": "1.0", "messages": [message]}
            return (await http.post("/agui", json=sent)).text

        first = asyncio.create_task(run(1))
        async with asyncio.timeout(10):
            while not running.server.runs.active:
                await asyncio.sleep(0.005)
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + jump * 10**9)
        assert "RUN_FINISHED" in await first and "RUN_FINISHED" in await run(2)
        monkeypatch.undo()
        assert "RUN_FINISHED" in await run(3)
        assert (await http.get("/ready")).status_code == 200
        kept = (await http.get("/agui/threads/t/messages")).json()["messages"]
    assert [each["id"] for each in kept if each["role"] == "user"] == ["u1", "u2", "u3"]
    assert len(kept) == 6 and json.dumps(kept).count("five") == 3
