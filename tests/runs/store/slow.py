"""A server's inside that is killed while a run waits for a slow tool: `python -m tests.runs.store.slow URL FILE KIND`.

The model calls `add`, which ends at once, and `report`, which adds a line to FILE and does not end. Prints "kept" once
the store has the run with the result of `add`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Literal

from sqlalchemy import select

from agent_server.agents import Agent, tool
from agent_server.runs.store import Store, schema
from tests.agents.harness import House
from tests.agents.models import Model, call

Kind = Literal["idempotent", "tell", "ask"]
TURN = "I add first." + call("add", a=1, b=2) + call("report", of="may")


def agent(file: Path, kind: Kind, *, ends: bool) -> Agent:
    """ends: whether the slow call comes to its end."""

    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        with file.with_name("added").open("a") as lines:
            lines.write("added\n")
        return a + b

    @tool(idempotent=kind == "idempotent", interrupted="ask" if kind == "ask" else "tell")
    async def report(of: str) -> str:
        """Report."""
        with file.open("a") as lines:
            lines.write(f"{of}\n")
        if not ends:
            await asyncio.Event().wait()
        return f"all of {of}"

    return Agent(name="default", tools=[add, report], state={"n": 1})


async def kept(store: Store) -> list[str]:
    """The checkpoints that the store has of runs that go on."""
    table = schema.kept_runs
    return [row.body for row in await store._database.rows(select(table).where(table.c.ended_at.is_(None)))]


async def main(url: str, file: Path, kind: Kind) -> None:
    store = Store(url)
    async with House(agent(file, kind, ends=False), Model([TURN]), store) as house:
        await house.start("report may")
        while not any('"ended":true' in body for body in await kept(store)):
            await asyncio.sleep(0.01)
        print("kept", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))  # type: ignore[arg-type]
