"""A run that waits for a person outlives kill -9 of its server, and what the person approved is done once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_server.runs.store import Store
from events.vocabulary import RunError, RunFinished, SuccessOutcome, TextMessageContent, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model
from tests.runs.store.approving import agent, answer

ROOT = Path(__file__).parents[3]


@contextmanager
def server(url: str, file: Path, what: str) -> Iterator[subprocess.Popen[str]]:
    """A server that is killed in the end."""
    command = [sys.executable, "-m", "tests.runs.store.approving", url, str(file), what]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait() == -9


def asked(url: str, file: Path) -> str:
    """The id of the interrupt with which a run ended before its server was killed."""
    with server(url, file, "ask") as process:
        assert process.stdout is not None
        return process.stdout.readline().strip()


async def test_a_run_that_waits_for_a_person_goes_on_after_a_kill_and_acts_once(url: str, tmp_path: Path):
    file, store = tmp_path / "paid", Store(url)
    id = asked(url, file)
    assert id and not file.exists()
    async with House(agent(file, ends=True), Model(["It is paid."]), store) as house:
        refused = await house.ask("and?", runId="run_other")
        assert isinstance(refused[-1], RunError) and "Send a resume" in refused[-1].message
        house.messages = []  # a client that was reloaded shows nothing: the thread has it all
        events = await house.resume(answer(id), runId="run_2")
        assert [each.content for each in of(events, ToolCallResult)] == ["paid 5"]
        assert "".join(each.delta for each in of(events, TextMessageContent)) == "It is paid."
        assert isinstance(events[-1], RunFinished) and events[-1].outcome == SuccessOutcome()
        assert [each["role"] for each in await store.messages("", "t")] == ["user", "assistant", "tool", "assistant"]
        again = await house.resume(answer(id), runId="run_3")
        assert isinstance(again[-1], RunFinished)
        assert next(each.status for each in await store.runs("", "t")) == "interrupted"
    assert file.read_text() == "5\n"


async def test_an_approved_call_that_was_under_way_at_the_kill_is_not_made_again(url: str, tmp_path: Path):
    file, store = tmp_path / "paid", Store(url)
    id = asked(url, file)
    with server(url, file, "answer") as process:
        assert process.stdout is not None and process.stdout.readline() == "paid\n"
    async with House(agent(file, ends=True), Model(["I do not know whether it is paid."]), store) as house:
        assert [each.status for each in await store.runs("", "t")] == ["interrupted", "running"]
        house.messages = []
        events = await house.resume(answer(id), runId="run_3")
        (result,) = of(events, ToolCallResult)
        assert "its outcome was known. It was not repeated" in result.content
        assert isinstance(events[-1], RunFinished) and of(events, TextMessageContent)
    assert file.read_text() == "5\n"
