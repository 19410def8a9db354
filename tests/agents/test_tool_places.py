"""How many calls go on at once, and the retries and partial results of one call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.agents import Agent, ToolContext, ToolFault, ToolLimits, running, tool
from agent_server.agents.running import ToolConcurrency
from events.vocabulary import ActivityDelta, ActivitySnapshot, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call, settle

pytestmark = pytest.mark.usefixtures("nothing_blocks")


@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("rs"), st.sampled_from("xy"), st.integers(0, 3)), max_size=14
    ),
)
@settings(max_examples=60, deadline=None)
def test_no_bound_is_passed_nothing_waits_without_a_reason_and_all_places_come_back(run, tool, tenant, calls):
    async def play() -> None:
        places = ToolConcurrency(ToolLimits(per_run=run, per_tool=tool, per_tenant=tenant))
        going_on: list[tuple[str, str, str]] = []
        bounds = run, tool, tenant

        async def one(who: str, of_run: str, of_tool: str, length: int) -> None:
            async with places.slot(tenant=who, run=of_run, tool=of_tool):
                going_on.append((who + of_run, of_tool, who))
                for index, bound in enumerate(bounds):
                    busiest = max(sum(each[index] == key for each in going_on) for key in {e[index] for e in going_on})
                    assert not bound or busiest <= bound
                try:
                    for _ in range(length):
                        await asyncio.sleep(0)
                finally:
                    going_on.remove((who + of_run, of_tool, who))

        tasks = [asyncio.create_task(one(*each)) for each in calls]
        for task in tasks[::3]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert places.waiting == 0 and not places._in_use

    asyncio.run(play())


async def test_the_calls_of_a_run_wait_for_places_and_are_answered_in_their_order():
    at_once: list[int] = []
    gates = [asyncio.Event() for _ in range(4)]
    busy = 0

    @tool
    async def work(number: int) -> str:
        """Work."""
        nonlocal busy
        busy += 1
        at_once.append(busy)
        await gates[number].wait()
        busy -= 1
        return f"done {number}"

    model = Model(["".join(call("work", number=each) for each in range(4)), "ok"])
    limits = ToolLimits(per_run=2)
    async with House(Agent(name="default", tools=[work]), model, limits=limits) as house:
        run = await house.start("go")
        while busy < 2:
            await asyncio.sleep(0)
        for number in (1, 3, 2, 0):  # 3 and 2 before they are begun
            gates[number].set()
            await settle()
        events = await house.follow(run)
    assert max(at_once) == 2 and len(at_once) == 4
    assert [each.content for each in of(events, ToolCallResult)] == [f"done {each}" for each in range(4)]


async def test_a_tool_s_own_bound_holds_across_runs():
    begun = asyncio.Semaphore(0)
    gate = asyncio.Event()
    busy = most = 0

    @tool(at_once=1)
    async def alone() -> str:
        """Work."""
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        begun.release()
        await gate.wait()
        busy -= 1
        return "done"

    model = Model(lambda told: "ok" if told["messages"][-1]["role"] == "tool" else call("alone"))
    async with House(Agent(name="default", tools=[alone]), model) as house:
        runs = [await house.start("go", threadId=each) for each in "abc"]
        await begun.acquire()
        gate.set()
        for run in runs:
            await run.wait()
            assert [each.content for each in of(run.log.snapshot(), ToolCallResult)] == ["done"]
    assert most == 1


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RETRY_SECONDS", 0.0)


@pytest.mark.parametrize(("fails", "result"), [(2, "fine"), (3, "Error: shaky failed.")])
async def test_a_call_that_fails_is_made_again_as_often_as_its_tool_says(no_pauses, caplog, fails: int, result: str):
    tries: list[int] = []

    @tool(retries=2)
    async def shaky() -> str:
        """Fail at first."""
        tries.append(1)
        if len(tries) <= fails:
            raise OSError(f"away {len(tries)}")
        return "fine"

    async with House(Agent(name="default", tools=[shaky]), Model([call("shaky"), "ok"])) as house:
        events = await house.ask("go")
    assert len(tries) == 3 and of(events, ToolCallResult)[0].content == result
    shown = [each.content["message"] for each in of(events, ActivitySnapshot)]
    assert shown[0] == "shaky failed. Attempt 2 of 3."
    failures = [each.getMessage() for each in caplog.records if "shaky failed" in each.getMessage()]
    assert len(failures) == fails and all("with OSError" in each and ", in shaky\n" in each for each in failures)


async def test_a_call_that_takes_too_long_is_made_again_and_a_refusal_is_not(no_pauses):
    tries: list[str] = []

    @tool(retries=1, time_limit=0.02)
    async def slow(context: ToolContext) -> str:
        """Hang at first."""
        tries.append("slow")
        if len(tries) == 1:
            await asyncio.Event().wait()
        assert not context.cancelled
        return "in time"

    @tool(retries=3)
    async def refuses() -> str:
        """Refuse."""
        tries.append("refuses")
        raise ToolFault("Not on a Sunday.")

    model = Model([call("slow"), call("refuses"), "ok"])
    async with House(Agent(name="default", tools=[slow, refuses]), model) as house:
        events = await house.ask("go")
    assert tries == ["slow", "slow", "refuses"]
    assert [each.content for each in of(events, ToolCallResult)] == ["in time", "Error: Not on a Sunday."]


async def test_partial_results_are_sent_once_each():
    @tool
    async def search(context: ToolContext) -> str:
        """Search."""
        context.progress("looking")
        for number in range(3):
            context.partial({"hit": number})
        context.progress({"done/of": 3})
        context.partial("end")
        return "3 hits"

    async with House(Agent(name="default", tools=[search]), Model([call("search"), "ok"])) as house:
        events = await house.ask("go")
    told, begun = [each.content for each in of(events, ActivitySnapshot)]
    assert told["message"] == begun["message"] == "looking" and begun["parts"] == [{"hit": 0}]
    patches = [each.patch for each in of(events, ActivityDelta)]
    added: list[list[dict[str, Any]]] = [[{"op": "add", "path": "/parts/-", "value": {"hit": each}}] for each in (1, 2)]
    changed = [{"op": "remove", "path": "/message"}, {"op": "add", "path": "/done~1of", "value": 3}]
    assert patches == [*added, changed, [{"op": "add", "path": "/parts/-", "value": "end"}]]
    (shown,) = [each for each in house.folder.messages if each["role"] == "activity"]
    assert shown["content"]["parts"] == [{"hit": 0}, {"hit": 1}, {"hit": 2}, "end"]


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"at_once": 0}])
def test_settings_of_a_tool_that_mean_nothing_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        tool(**wrong)(lambda: "")
