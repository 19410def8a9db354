"""Kill -9 in the middle of 20 runs: what was committed is there, what was not goes on, every thread is usable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agent_server.agents import Agent
from agent_server.runs.store import Store
from events.vocabulary import RunFinished, TextMessageContent
from tests.agents.harness import House, of
from tests.agents.models import Model
from tests.runs.store.doomed import RUNS
from tests.slow import slow

ROOT = Path(__file__).parents[3]


def killed_after(url: str, finished: int) -> dict[str, tuple[str, str]]:
    """Run the server until so many of its runs ended, then kill it; thread → (run, text) of those that ended."""
    command = [sys.executable, "-m", "tests.runs.store.doomed", url]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(finished)]
    process.kill()
    lines += process.stdout.readlines()
    process.stdout.close()
    assert process.wait() == -9
    ended = [line.rstrip("\n").split("\t") for line in lines if line.endswith("\n")]
    return {thread: (run, text) for thread, run, text in ended}


@pytest.mark.parametrize("finished", [*slow([1]), 7])
async def test_a_killed_server_leaves_threads_that_can_be_read_and_used(url: str, finished: int):
    committed = killed_after(url, finished)
    assert finished <= len(committed) < RUNS
    store = Store(url)
    async with House(Agent(name="default"), Model(lambda _: "Still here."), store) as house:
        threads, _ = await store.threads("")
        assert {thread.id for thread in threads} == {f"t{number}" for number in range(RUNS)}
        left = 0
        for number in range(RUNS):
            thread = f"t{number}"
            (run,) = await store.runs("", thread)
            messages = await store.messages("", thread)
            assert messages[0]["content"] == f"question {number}"
            if thread in committed:
                assert (run.id, run.status) == (committed[thread][0], "finished")
                assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
                assert messages[3]["content"].strip() == committed[thread][1]
                assert await store.state("", thread) == {"n": number}
            else:
                assert run.status in ("running", "finished")  # ended and kept, but killed before anyone was told
                left += run.status == "running"
            house.messages, house.state = messages, None
            events = await house.ask("and?", threadId=thread, runId=f"again-{number}")
            assert isinstance(events[-1], RunFinished) and of(events, TextMessageContent)
            assert [each.status for each in await store.runs("", thread)] == ["finished", "finished"]
        assert left > 0
