"""Runs cut and resumed over HTTP."""

from __future__ import annotations

import asyncio
import json

import httpx

from adapters import sse
from agent_server.engines.scripted import Script
from tests.agents.harness import client_tool
from tests.agents.models import call
from tests.server import scripted, serving


async def test_over_http_the_rest_is_byte_for_byte_the_same():
    text = "<think>\nWell.\n</think>\n\nHello out there, ☃!" + call("change_background", color="red")
    body = {
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [{"id": "u", "role": "user", "content": "hi"}],
        "tools": [client_tool("change_background").model_dump()], "context": [], "state": {}, "forwardedProps": {},
    }  # fmt: skip
    async with serving(scripted(text)) as running, httpx.AsyncClient(base_url=running.url) as client:
        whole = (await client.post("/agui", json=body)).content
        frames = list(sse.parse([whole]))
        assert [int(frame["id"]) for frame in frames] == list(range(1, len(frames) + 1))
        for index in range(len(frames) + 1):
            response = await client.get("/agui/runs/r/events", headers={"last-event-id": str(index)} if index else {})
            rest = list(sse.parse([response.content]))
            assert [(frame["id"], frame["data"]) for frame in rest] == [(f["id"], f["data"]) for f in frames[index:]]
        assert (await client.get(f"/agui/runs/r/events?after={len(frames) - 1}")).content == whole[
            whole.rstrip().rfind(b"\n\n") + 2 :
        ]


async def test_a_client_that_lost_its_connection_finds_the_run_going_on():
    slow = scripted([Script(text="one two three four five six seven eight nine ten " * 4, delay=0.01)])
    body = {
        "threadId": "t",
        "runId": "r",
        "protocolVersion": "1.0",
        "messages": [{"id": "u", "role": "user", "content": "hi"}],
    }
    async with serving(slow, grace=5.0) as running, httpx.AsyncClient(base_url=running.url) as client:
        seen = []
        async with client.stream("POST", "/agui", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("id:"):
                    seen.append(int(line[3:]))
                if len(seen) == 7:
                    break
        await asyncio.sleep(0.1)
        status = (await client.get("/agui/runs/r")).json()
        assert status["status"] == "running" and status["lastEvent"] > 7
        response = await client.get(f"/agui/runs/r/events?after={seen[-1]}")
        events = [json.loads(frame["data"]) for frame in sse.parse([response.content])]
        assert events[-1]["type"] == "RUN_FINISHED" and "cancelled" not in json.dumps(events[-1])
        text = "".join(event.get("delta", "") for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
        assert text.endswith("nine ten ")


async def test_a_request_that_is_sent_again_with_the_last_event_s_number_begins_no_second_run():
    """TanStack AI reconnects so: the same POST, while the run goes on and after its end."""
    engine = scripted([Script(text="one two three four five six seven eight nine ten " * 4, delay=0.01)])
    body = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "hi"}]}
    async with serving(engine, grace=5.0) as running, httpx.AsyncClient(base_url=running.url) as client:
        async with client.stream("POST", "/agui", json=body) as response:
            async for line in response.aiter_lines():
                if line == "id: 7":
                    break
        going_on = await client.post("/agui", json=body, headers={"last-event-id": "7"})
        ended = await client.post("/agui", json=body, headers={"last-event-id": "7"})
        frames = list(sse.parse([going_on.content]))
        assert frames[0]["id"] == "8" and json.loads(frames[-1]["data"])["type"] == "RUN_FINISHED"
        assert ended.content == going_on.content
        assert len(engine.requests) == 1
        other = {**body, "runId": "unknown"}
        assert (await client.post("/agui", json=other, headers={"last-event-id": "7"})).status_code == 404
        other = {**body, "threadId": "other"}
        assert (await client.post("/agui", json=other, headers={"last-event-id": "7"})).status_code == 409
        assert len(engine.requests) == 1


async def test_without_a_reader_the_run_ends_after_its_grace():
    slow = scripted([Script(text="word " * 500, delay=0.01)])
    body = {
        "threadId": "t",
        "runId": "r",
        "protocolVersion": "1.0",
        "messages": [{"id": "u", "role": "user", "content": "hi"}],
    }
    async with serving(slow, grace=0.2) as running, httpx.AsyncClient(base_url=running.url) as client:
        async with client.stream("POST", "/agui", json=body) as response:
            async for _ in response.aiter_lines():
                break
        run = running.server.runs.get("r")
        async with asyncio.timeout(30):
            terminal = await run.wait()
        assert terminal.metadata["finishReason"] == "cancelled" and not running.engine.running
        rows = await running.server.store.runs("", "t")
        assert [row.status for row in rows] == ["cancelled"]
