"""A server's inside that is killed in mid-run: `python -m tests.runs.store.doomed URL`.

Starts 20 runs of different lengths on 20 threads and prints "THREAD RUN TEXT" for each as soon as a reader was given
its terminal event, which is what "committed" means.
"""

from __future__ import annotations

import asyncio
import sys

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.runs import Run
from agent_server.runs.store import Store
from events.message import Folder
from events.options import GenerationOptions
from tests.agents.harness import House
from tests.agents.models import Model, call

RUNS = 20


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def script(told: dict) -> Script:
    """First a call, then an answer whose length depends on the thread."""
    if told["messages"][-1]["role"] == "user":
        return Script(text=call("add", a=1, b=2), delay=0.001)
    number = int(told["messages"][0]["content"].split()[-1])
    return Script(text=f"answer {number} " * (5 + number * 15), delay=0.004)


async def watch(run: Run) -> None:
    folder = Folder()
    async for _, event in run.events():
        folder.add(event)
    print(run.thread_id, run.id, folder.output().text.strip(), sep="\t", flush=True)


async def main(url: str) -> None:
    async with House(Agent(name="default", tools=[add]), Model(script), Store(url)) as house:
        runs = []
        for number in range(RUNS):
            house.messages = []
            input = house.input(f"question {number}", threadId=f"t{number}", state={"n": number})
            runs.append(await house.manager.start(input, GenerationOptions()))
        await asyncio.gather(*map(watch, runs))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
