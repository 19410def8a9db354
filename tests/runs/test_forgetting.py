"""What is let go of without another request: an idle server keeps nothing of runs beyond their time."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import httpx
import pytest

from agent_server.engines.scripted import Script
from tests.runs.agents import OPTIONS, ask, manager_of, read_all, say
from tests.server import scripted, serving

QUESTION = [{"role": "user", "content": "Hello"}]
CHAT = {"model": "default", "stream": True, "messages": QUESTION, "max_tokens": 3000}
WIRES: dict[str, dict[str, Any]] = {
    "/agui": {"messages": [{"id": "u", **QUESTION[0]}]},
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT,
    "/v1/responses": {"model": "default", "stream": True, "input": QUESTION, "store": False},
}


async def gone(reference: weakref.ref[Any]) -> None:
    async with asyncio.timeout(20):
        while reference() is not None:
            await asyncio.sleep(0.01)
            gc.collect()


async def test_a_finished_run_is_forgotten_when_its_time_is_over():
    manager = manager_of(say, replay_seconds=0.01)
    run = await manager.start(ask(), OPTIONS)
    await read_all(run)
    reference = weakref.ref(run.log)
    del run
    await gone(reference)
    await manager.close(drain=0.0)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_client_that_vanishes_in_its_stream_leaves_nothing(wire: str):
    engine = scripted([Script(text="the " * 3000, delay=0.001)])
    async with serving(engine, local=True, grace=0.0, replay_seconds=0.01) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=20) as client:
            body = WIRES[wire] | ({"threadId": "t", "runId": "r"} if wire == "/agui" else {})
            async with client.stream("POST", wire, json=body) as response:
                assert response.status_code == 200, await response.aread()
                await anext(response.aiter_raw())
                (run,) = running.server.runs._runs.values()
                reference = weakref.ref(run.log)
                del run
        await gone(reference)
        assert running.server.runs.active == 0
