"""Calls that begin while the model still writes, with an engine whose tokens are let out one piece at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcp_types import Tool as McpTool
from mcp_types import ToolAnnotations
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan

from agent_server.agents import Agent, McpServer, ToolContext, ToolLimits, tool
from agent_server.agents.mcp.listing import ServerTool
from agent_server.agents.mcp.mcp_callee import McpCallee
from agent_server.agents.mcp.sessions import McpConnection
from agent_server.engines.scripted import Fault, Script
from agent_server.observability import tracing
from agent_server.runs import Run
from events.vocabulary import (
    ActivitySnapshot,
    CancelledOutcome,
    Event,
    RunError,
    RunFinished,
    StateDelta,
    TextMessageContent,
    ToolCallResult,
)
from tests.agents.harness import House, names, of
from tests.agents.models import HandClock, KeepingEngine, Model, call, settle

pytestmark = pytest.mark.usefixtures("nothing_blocks")


class Bench:
    """Tools that end when they are told to, and what became of their calls."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.stopped: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}

    def gate(self, number: int) -> asyncio.Event:
        return self.gates.setdefault(number, asyncio.Event())

    def tools(self, early: bool = True) -> list[Any]:
        @tool(early=early)
        async def read(number: int, context: ToolContext) -> str:
            """Read."""
            self.begun.append(number)
            context.progress({"reading": number})
            try:
                await self.gate(number).wait()
            except asyncio.CancelledError:
                self.stopped.append(number)
                raise
            context.state[f"read {number}"] = True
            if number == 3:
                raise KeyError("nothing there")
            return f"page {number}"

        @tool(requires_approval=True)
        async def write(number: int) -> str:
            """Write."""
            self.begun.append(number)
            return "written"

        return [read, write]


def script(*parts: str, **more: Any) -> Script:
    return Script(text="".join(parts), first_delay=1, delay=1, chunk=8, **more)


def house(bench: Bench, clock: HandClock, *scripts: Script, early: bool = True, **more: Any) -> House:
    agent = Agent(name="default", tools=bench.tools(), state={}, **more)
    return House(agent, Model(list(scripts), clock=clock), limits=ToolLimits(early=early))


async def until_begun(bench: Bench, clock: HandClock, count: int) -> None:
    for _ in range(200):
        if len(bench.begun) == count:
            return
        await clock.tick()
    raise AssertionError(f"{bench.begun} were begun, not {count}")


async def finish(run: Run, clock: HandClock) -> None:
    for _ in range(400):
        if run.finished:
            return
        await clock.tick()
    raise AssertionError("the run did not end")


async def test_a_call_runs_while_the_model_writes_on_and_is_told_when_the_message_is_done():
    bench, clock = Bench(), HandClock()
    writes = script(call("read", number=1), call("read", number=2))
    async with house(bench, clock, writes, script("Both.")) as it:
        run = await it.start("go")
        await until_begun(bench, clock, 1)
        bench.gate(1).set()
        await settle()
        so_far = run.log.snapshot()
        assert names(so_far)[-1] == "ToolCallEnd" and not of(so_far, ActivitySnapshot) and not of(so_far, StateDelta)
        bench.gate(2).set()
        await finish(run, clock)
        events = await it.follow(run)
    assert [each.content for each in of(events, ToolCallResult)] == ["page 1", "page 2"]
    assert [each.content["reading"] for each in of(events, ActivitySnapshot)] == [1, 2]
    assert it.state == {"read 1": True, "read 2": True}
    told = it.model.told[1]["messages"]
    assert [each["role"] for each in told] == ["user", "assistant", "tool", "tool"]


async def test_arguments_that_do_not_fit_begin_nothing():
    bench, clock = Bench(), HandClock()
    async with house(bench, clock, script(call("read", number="one"), " and so on"), script("Oh.")) as it:
        run = await it.start("go")
        await finish(run, clock)
        events = await it.follow(run)
    assert bench.begun == [] and it.state == {}
    assert of(events, ToolCallResult)[0].content.startswith("Error: Invalid arguments: number")


async def test_a_tool_that_a_person_approves_never_begins_early():
    with pytest.raises(ValueError, match="cannot begin early"):
        tool(early=True, requires_approval=True)(lambda: "")
    bench, clock = Bench(), HandClock()
    async with house(bench, clock, script(call("write", number=1), " and so on"), script("Oh.")) as it:
        run = await it.start("go")
        await finish(run, clock)
        assert bench.begun == []


@pytest.mark.parametrize("reads_only", [None, False, True])
async def test_a_tool_of_an_mcp_server_begins_early_where_it_says_that_it_only_reads(reads_only: bool | None):
    hints = None if reads_only is None else ToolAnnotations(read_only_hint=reads_only)
    offered = McpTool(name="look", input_schema={"type": "object"}, annotations=hints)
    connection = McpConnection(McpServer(name="box", command=("never-run",)))
    assert McpCallee(connection, ServerTool(tool=offered), ToolLimits()).early is (reads_only is True)


@pytest.mark.parametrize("how", ["stopped", "failed", "unreadable"])
async def test_a_message_that_does_not_come_to_its_end_discards_what_was_begun(how: str, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "agent_server.agent")
    told: list[dict[str, str]] = []
    span = NonRecordingSpan(INVALID_SPAN_CONTEXT)
    monkeypatch.setattr(span, "add_event", lambda name, about: told.append(about))
    monkeypatch.setattr(tracing.trace, "get_current_span", lambda context=None: span)
    bench, clock = Bench(), HandClock()
    fault = Fault(action="error", after=90, kind="internal") if how == "failed" else None
    rest = "<tool_call>\nthis is no call\n</tool_call>" if how == "unreadable" else " and a long story that goes on"
    async with house(bench, clock, script(call("read", number=1), call("read", number=2), rest, fault=fault)) as it:
        if how == "unreadable":
            it.model.output = it.model.output.model_copy(update={"failed": "error"})
        run = await it.start("go")
        await until_begun(bench, clock, 1)
        bench.gate(2).set()  # the second one ends before the message does
        if how == "stopped":
            await run.cancel()
        await finish(run, clock)
        events = await it.follow(run)
    assert bench.begun[0] == 1 and bench.stopped == [1]
    assert not of(events, ToolCallResult) and not of(events, ActivitySnapshot) and not of(events, StateDelta)
    assert [message["role"] for message in it.messages] == ["user", "assistant"]
    assert it.state == {}
    assert "tool read was started early and discarded" in caplog.text
    assert [each["agent_server.tool.name"] for each in told] == ["read"] * len(bench.begun)
    ended = events[-1]
    assert isinstance(ended, RunError) if how != "stopped" else ended.outcome == CancelledOutcome()


async def test_two_early_calls_that_change_the_same_do_not_overwrite_each_other():
    @tool(early=True)
    async def count(context: ToolContext) -> str:
        """Count."""
        context.state["counted"] = context.state["counted"] + 1
        context.push_state()
        return "counted"

    model = Model([call("count") + call("count"), "ok"])
    async with House(Agent(name="default", tools=[count], state={"counted": 0}), model) as it:
        events = await it.ask("go")
    results = [each.content for each in of(events, ToolCallResult)]
    assert results == ["counted", "Error: The change to the shared state was refused: another call changed it."]
    assert it.state == {"counted": 1}


async def test_a_setting_turns_it_off():
    bench, clock = Bench(), HandClock()
    async with house(bench, clock, script(call("read", number=1), "x" * 80), script("Oh."), early=False) as it:
        run = await it.start("go")
        while not of(run.log.snapshot(), TextMessageContent):
            await clock.tick()
        assert bench.begun == []
        bench.gate(1).set()
        await finish(run, clock)
        assert bench.begun == [1]


def plain(events: Sequence[Event]) -> list[Any]:
    """Events without times, with ids numbered as they come. Without changes of the state, too: calls that run side by
    side change it for each other, and it is compared in the end."""
    known: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return known.setdefault(found[0], f"id-{len(known)}")

    shown = []
    for event in events:
        if isinstance(event, StateDelta):
            continue
        if isinstance(event, RunFinished | RunError):
            # a prompt is JSON with ids here, and more ids were given: "msg_10" is longer than "msg_9"
            event = msgspec.structs.replace(event, metadata=None, usage=None)
        text = re.sub(r"\b[a-z]+(?:_[a-z]+)*_\d+", renamed, msgspec.json.encode(event).decode())
        shown.append(json.loads(text))
    return shown


TOKEN, STOP = -1, -2


async def played(fast: bool, calls: int, prose: str, fault: Fault | None, schedule: Sequence[int]) -> Any:
    """fast: calls begin early, places are kept, and prompts are read ahead. The events, prompts and messages of a run in which tokens come, tools end and a stop is asked for in this order.
    Then what is left comes to its end."""
    bench, clock = Bench(), HandClock()
    writes = script(*(call("read", number=each) for each in range(1, calls + 1)), prose, fault=fault)
    async with house(bench, clock, writes, script("Done."), early=fast) as it:
        if fast:
            it.model.engine = KeepingEngine(it.model.engine)  # type: ignore[assignment]
        run = await it.start("go")
        await settle()
        for step in schedule:
            if step == TOKEN:
                await clock.tick()
            elif step == STOP:
                await run.cancel()
                await settle()
            else:
                bench.gate(step).set()
                await settle()
        for number in range(1, calls + 1):
            bench.gate(number).set()
        await finish(run, clock)
        events = await it.follow(run)
        assert len(asyncio.all_tasks()) == 1
        prompts = plain([RunError(message=json.dumps(told)) for told in it.model.told])
        return plain(events), prompts, [message["role"] for message in it.messages], it.state


def test_with_early_calls_and_kept_places_or_without_a_run_tells_the_same():
    @settings(max_examples=25, deadline=None)
    @given(
        st.integers(1, 3),
        st.sampled_from(["", " And more to say about it."]),
        st.sampled_from([None, None, 40, 130]),
        st.lists(st.sampled_from([TOKEN, TOKEN, TOKEN, 1, 2, 3, STOP]), max_size=40),
    )
    def holds(calls: int, prose: str, fails_after: int | None, schedule: list[int]) -> None:
        fault = None if fails_after is None else Fault(action="error", after=fails_after)
        first = asyncio.run(played(True, calls, prose, fault, schedule))
        assert first == asyncio.run(played(False, calls, prose, fault, schedule))

    holds()
