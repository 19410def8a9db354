"""Runs cut and resumed: at every event of 50 different runs, live and afterwards."""

from __future__ import annotations

import asyncio
import random

import pytest

from agent_server.agents import Agent, ToolContext, tool
from agent_server.engines.scripted import Fault, Script
from agent_server.runs import Run
from agent_server.runs.store import Store
from tests.agents.harness import House, client_tool
from tests.agents.models import Model, call


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


@pytest.mark.usefixtures("nothing_blocks")
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
