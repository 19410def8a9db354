"""What a framework adds to the first token: a LangGraph agent whose model is ours, in process, beside a plain run.

    python benchmarks/guest_first_token.py [--rounds 50]

Both over CopilotKit's endpoint, in turn, of one server whose engine replays a script, so that all of the time is the
server's and the framework's. Printed: the median milliseconds from the request to the first byte of text, of each, and
their difference; the aim is at most 5 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parents[1]))

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agent_server import Agent, ServerModel
from tests.agents.guests.talking import body, user
from tests.server import scripted, serving

AIM = 5.0
WARM_UP = 5


def graph() -> Any:
    model = ServerModel()

    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("talk", talk)
    builder.add_edge(START, "talk")
    compiled = builder.compile(checkpointer=InMemorySaver())
    compiled.name = "graph"
    return compiled


async def first_text(client: httpx.AsyncClient, agent: str, number: int) -> float:
    """Milliseconds."""
    request = body(user("hi"), thread=f"{agent}-{number}", run=f"{agent}-{number}")
    begun = time.perf_counter()
    async with client.stream("POST", f"/copilotkit/agent/{agent}/run", json=request) as answer:
        lines = answer.aiter_lines()
        async for line in lines:
            if "TEXT_MESSAGE_CONTENT" in line:
                found = (time.perf_counter() - begun) * 1000
                break
        else:
            raise SystemExit(f"{agent} said nothing")
        async for _ in lines:
            pass
    return found


async def measure(rounds: int) -> None:
    took: dict[str, list[float]] = {"plain": [], "graph": []}
    async with (
        serving(scripted("Hello there."), agents=[Agent(name="plain"), graph()]) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as client,
    ):
        for number in range(rounds + WARM_UP):
            for agent, times in took.items():
                found = await first_text(client, agent, number)
                if number >= WARM_UP:
                    times.append(found)
    plain, of_graph = (statistics.median(took[agent]) for agent in ("plain", "graph"))
    more = of_graph - plain
    print(f"plain {plain:.1f} ms, LangGraph {of_graph:.1f} ms: {more:.1f} ms more ({of_graph / plain:.2f} times)")
    print(f"aim, at most {AIM:g} ms more: {'held' if more <= AIM else 'missed'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    asyncio.run(measure(parser.parse_args().rounds))
