"""Calls that an MCP server carries out as tasks, in both protocols that have them."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

import pytest

from agent_server.agents import Agent, McpServer, ToolContext, tool
from agent_server.runs.store import Store
from events.vocabulary import ActivitySnapshot, InterruptOutcome, RunFinished, ToolCallResult
from tests.agents.app_server import in_this_process
from tests.agents.harness import House, of
from tests.agents.models import Model, call
from tests.agents.task_server import Tasks, task_server

SERVER = str(Path(__file__).with_name("task_server.py"))


@pytest.fixture
def tasks(monkeypatch):
    made = Tasks()
    in_this_process(monkeypatch, counting=task_server(made))
    return made


COUNTING = McpServer(name="counting", command=("x",))


def house(*scripts: str, server: McpServer = COUNTING, store: str | None = "sqlite://") -> House:
    agent = Agent(name="default", mcp_servers=[server])
    made = House(agent, Model([*scripts, "Done."]), None if store is None else Store(store))
    made.manager.new_id = lambda prefix: f"{prefix}_{secrets.token_hex(4)}"
    return made


def results(events) -> list[str]:
    return [each.content for each in of(events, ToolCallResult)]


async def test_a_task_s_state_is_progress_and_its_result_the_call_s(tasks):
    async with asyncio.timeout(30), house(call("count"), store=None) as counting:
        run = await counting.start("go")
        async for _, event in run.events():
            if isinstance(event, ActivitySnapshot):
                assert event.content["message"] == "Counting." and "progress" not in event.content
                tasks.done.set()
            if isinstance(event, ToolCallResult):
                assert event.content == "counted"
    assert tasks.requests[0] == "tools/call" and set(tasks.requests[1:]) == {"tasks/get"}


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        (
            {"status": "failed", "error": {"code": -32000, "message": "no numbers left"}},
            "count was refused: no numbers",
        ),
        ({"status": "cancelled", "statusMessage": "By its owner."}, "The task was cancelled. By its owner."),
    ],
)
async def test_how_a_task_fails_is_told_to_the_model(tasks, ending, said):
    tasks.ending = ending
    tasks.done.set()
    async with house(call("count"), store=None) as counting:
        (result,) = of(await counting.ask("go"), ToolCallResult)
    assert said in result.content and result.metadata == {"isError": True}


async def test_what_a_task_asks_is_asked_of_a_person_and_answered_at_another_gateway(tasks, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    tasks.asks = True
    tasks.done.set()
    async with house(call("count"), store=url) as first:
        last = (await first.ask("go"))[-1]
        assert isinstance(last, RunFinished) and isinstance(last.outcome, InterruptOutcome)
        (asked,) = last.outcome.interrupts
        assert asked.message == "Which year?" and "tasks/cancel" not in tasks.requests
    async with house(store=url) as second:
        second.messages, second.runs = first.messages, first.runs
        answer = {"interruptId": asked.id, "status": "resolved", "payload": {"year": 1999}}
        assert results(await second.resume(answer)) == ["counted {'year': 1999}"]
    assert tasks.requests.count("tools/call") == tasks.requests.count("tasks/update") == 1


async def test_where_no_person_can_be_asked_a_task_s_question_is_declined(tasks):
    tasks.asks = True
    tasks.done.set()
    async with house(call("count"), store=None) as counting:
        events = await counting.ask("go")
    assert results(events) == ["counted"] and tasks.answers == {"year": {"action": "decline"}}
    (warning,) = events[-1].metadata["warnings"]
    assert "declined" in warning


async def test_a_task_survives_the_gateway_that_began_it(tasks, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    async with asyncio.timeout(60):
        async with house(call("count"), store=url) as first:
            await first.start("go")
            await tasks.polled.wait()
            await first.manager.close(0)
        assert "tasks/cancel" not in tasks.requests
        tasks.done.set()
        async with house(store=url) as second:
            await second.manager.resume_orphans()
            run = await second.manager.find("run_1")
            events = [event async for _, event in run.events()]
    assert results(events) == ["counted"] and isinstance(events[-1], RunFinished)
    assert tasks.requests.count("tools/call") == 1


async def test_a_tool_of_this_server_is_continued_by_its_handle_too(tmp_path):
    url, begun, left = f"sqlite:///{tmp_path}/store.db", asyncio.Event(), []

    @tool
    async def export(context: ToolContext) -> str:
        """Export everything."""
        if context.continuation is None:
            await context.keep_handle({"job": 7})
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.append(context.is_leaving)
        return f"fetched {context.continuation}"

    agent = Agent(name="default", tools=[export])
    async with asyncio.timeout(60):
        async with House(agent, Model([call("export")]), Store(url)) as first:
            await first.start("go")
            await begun.wait()
            await first.manager.close(0)
        async with House(agent, Model(["Done."]), Store(url), first_id=1000) as second:
            await second.manager.resume_orphans()
            run = await second.manager.find("run_1")
            events = [event async for _, event in run.events()]
    assert results(events) == ["fetched {'job': 7}"] and left == [True]


async def test_a_task_is_cancelled_with_its_run(tasks):
    async with asyncio.timeout(30), house(call("count")) as counting:
        run = await counting.start("go")
        await tasks.polled.wait()
        await run.cancel()
        while "tasks/cancel" not in tasks.requests:
            await asyncio.sleep(0.01)


async def test_a_task_may_take_longer_than_a_call_but_not_than_its_server_s_limit(tasks):
    server = McpServer(name="counting", command=("x",), time_limit=0.3)
    async with house(call("count"), server=server, store=None) as counting:
        events = await counting.ask("go")
        while "tasks/cancel" not in tasks.requests:
            await asyncio.sleep(0.01)
    assert results(events) == ["Error: count took longer than 0.3 s."]


def earlier(folder: Path) -> McpServer:
    return McpServer(name="counting", command=(sys.executable, SERVER, str(folder)))


def requests_of(folder: Path) -> list[str]:
    return (folder / "requests").read_text().splitlines()


async def test_tools_of_the_earlier_protocol_that_support_tasks_are_called_as_tasks(tmp_path):
    async with asyncio.timeout(60), house(call("count"), server=earlier(tmp_path)) as counting:
        run = await counting.start("go")
        async for _, event in run.events():
            if isinstance(event, ActivitySnapshot):
                assert event.content["message"] == "Counting."
                (tmp_path / "done").write_text("3")
            if isinstance(event, ToolCallResult):
                assert event.content == "counted 3"
    assert {"tools/call", "tasks/get", "tasks/result"} <= set(requests_of(tmp_path))


async def test_a_question_of_an_earlier_task_is_asked_and_survives_the_gateway_and_the_server(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    (tmp_path / "asked").write_text("")
    async with asyncio.timeout(60), house(call("count"), server=earlier(tmp_path), store=url) as first:
        (asked,) = (await first.ask("go"))[-1].outcome.interrupts
    answer = {"interruptId": asked.id, "status": "resolved", "payload": {"year": 1999}}
    async with asyncio.timeout(60), house(server=earlier(tmp_path), store=url) as second:
        second.messages, second.runs = first.messages, first.runs
        assert results(await second.resume(answer)) == ['counted {"year": 1999}']
    assert requests_of(tmp_path).count("tools/call") == 1


async def test_a_call_of_the_earlier_protocol_is_cancelled_by_its_handle(tmp_path):
    async with asyncio.timeout(60), house(call("count"), server=earlier(tmp_path)) as counting:
        run = await counting.start("go")
        async for _, event in run.events():
            if isinstance(event, ActivitySnapshot):
                await run.cancel()
        while "tasks/cancel" not in requests_of(tmp_path):
            await asyncio.sleep(0.01)
