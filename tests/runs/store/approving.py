"""A server's inside that is killed while a run waits for a person, or makes the call that the person approved:
`python -m tests.runs.store.approving URL FILE ask|answer`.

ask: prints the interrupt's id once the run has ended with it, and stays. answer: approves what is open; the call adds a
line to FILE and prints "paid", and then does not end, so that it is killed before its outcome is known.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agent_server.agents import Agent, tool
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome, RunFinished
from tests.agents.harness import House
from tests.agents.models import Model, call


def agent(file: Path, *, ends: bool) -> Agent:
    """ends: whether the call comes to its end once it has done its work."""

    @tool(requires_approval=True)
    def pay(amount: int) -> str:
        """Pay."""
        with file.open("a") as lines:
            lines.write(f"{amount}\n")
        return f"paid {amount}"

    @tool(requires_approval=True, name="pay")
    async def pay_and_hang(amount: int) -> str:
        """Pay."""
        with file.open("a") as lines:
            lines.write(f"{amount}\n")
        print("paid", flush=True)
        await asyncio.Event().wait()
        return ""

    return Agent(name="default", tools=[pay if ends else pay_and_hang], state={"paid": 0})


def answer(interrupt_id: str) -> dict[str, object]:
    return {"interruptId": interrupt_id, "status": "resolved", "payload": {"approved": True}}


async def main(url: str, file: Path, what: str) -> None:
    store = Store(url)
    async with House(agent(file, ends=False), Model([call("pay", amount=5)]), store) as house:
        if what == "ask":
            ended = (await house.ask("pay 5"))[-1]
            assert isinstance(ended, RunFinished) and isinstance(ended.outcome, InterruptOutcome)
            print(ended.outcome.interrupts[0].id, flush=True)
        else:
            (asked,) = await store.interrupts("", "t")
            await house.start(resume=[answer(asked.id)], runId="run_2")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
