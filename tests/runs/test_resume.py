"""Runs cut and resumed: at every event of 50 different runs, live and afterwards, inside and over HTTP."""

from __future__ import annotations

import asyncio
import json
import random

import httpx

from adapters import sse
from agent_server.agent import Agent, ToolContext, tool
from agent_server.engine.scripted import Fault, Script
from agent_server.runs import Run
from agent_server.store import Store
from tests.agent.harness import House, client_tool
from tests.agent.models import Model, call
from tests.server import scripted, serving


@tool
def add(a: int, b: int, context: ToolContext) -> int:
    """Add."""
    context.state["sums"] = context.state.get("sums", 0) + 1
    context.progress({"adding": a})
    return a + b


@tool(requires_approval=True)
def send(to: str) -> str:
    """Send."""
    return "sent"


AGENT = Agent(name="default", tools=[add, send], state={}, max_steps=4)


def scripts(chance: random.Random) -> list[str | Script]:
    """A conversation of one to four turns with a bit of everything."""
    words = lambda count: " ".join(chance.choice(["one", "zwei", "☃", "\n", "{", "<b>"]) for _ in range(count))  # noqa: E731
    turns: list[str | Script] = []
    for _ in range(chance.randint(0, 3)):
        thought = f"<think>\n{words(chance.randint(1, 12))}\n</think>\n\n" if chance.random() < 0.5 else ""
        calls = "".join(call("add", a=chance.randint(0, 9), b=1) for _ in range(chance.randint(1, 3)))
        turns.append(thought + words(chance.randint(0, 8)) + calls)
    end = chance.choice(["text", "text", "client", "interrupt", "fault"])
    if end == "client":
        turns.append(call("change_background", color=words(3)))
    elif end == "interrupt":
        turns.append(call("send", to="x"))
    elif end == "fault":
        turns.append(Script(text=words(9), fault=Fault(action="error", after=5, kind="timeout")))
    turns.append(words(chance.randint(1, 30)))
    return turns


async def cut_and_resume(run: Run, index: int) -> list:
    """What a client gets that loses its connection after `index` events and comes back."""
    got = []
    reader = run.events()
    while len(got) < index:
        try:
            got.append(await anext(reader))
        except StopAsyncIteration:
            break
    await reader.aclose()
    await asyncio.sleep(0)
    return got + [item async for item in run.events(got[-1][0] if got else 0)]


async def test_fifty_runs_cut_at_every_event_are_whole_again():
    resumed = 0
    for seed in range(50):
        chance = random.Random(seed)
        async with House(AGENT, Model(scripts(chance)), Store("sqlite://")) as house:
            run = await house.start("go", tools=[client_tool("change_background")])
            live = [asyncio.create_task(cut_and_resume(run, index)) for index in range(0, 120)]
            whole = [item async for item in run.events()]
            assert [number for number, _ in whole] == list(range(1, len(whole) + 1))
            for answer in await asyncio.gather(*live):
                assert answer == whole
            for index in range(len(whole) + 1):
                assert await cut_and_resume(run, index) == whole
            resumed += len(whole) + 1 + len(live)
    assert resumed > 6_000


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
        assert (await client.get(f"/agui/runs/r/events?after={len(frames) - 1}")).content == whole[whole.rstrip().rfind(b"\n\n") + 2 :]


async def test_a_client_that_lost_its_connection_finds_the_run_going_on():
    slow = scripted([Script(text="one two three four five six seven eight nine ten " * 4, delay=0.01)])
    body = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [{"id": "u", "role": "user", "content": "hi"}]}
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


async def test_without_a_reader_the_run_ends_after_its_grace():
    slow = scripted([Script(text="word " * 500, delay=0.01)])
    body = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [{"id": "u", "role": "user", "content": "hi"}]}
    async with serving(slow, grace=0.2) as running, httpx.AsyncClient(base_url=running.url) as client:
        async with client.stream("POST", "/agui", json=body) as response:
            async for _ in response.aiter_lines():
                break
        run = running.server.runs.get("r")
        async with asyncio.timeout(3):
            terminal = await run.wait()
        assert terminal.metadata["finishReason"] == "cancelled" and not running.engine.running
        rows = await running.server.store.runs("", "t")
        assert [row.status for row in rows] == ["cancelled"]
