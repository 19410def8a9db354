"""What is known of the next prompt is computed while tools still run, and kept while a person is asked."""

from __future__ import annotations

import asyncio
import gc

import pytest
from ag_ui.core import AssistantMessage, FunctionCall, ToolCall, ToolMessage, UserMessage
from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents import Agent, tool
from agent_server.agents.early_calls import common_beginning, known_so_far
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome, RunFinished, ToolCallResult
from tests.agents.harness import House, client_tool, of
from tests.agents.models import KeepingEngine, Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")


def keeping(scripts: list[str], error: EngineError | None = None) -> tuple[Model, KeepingEngine]:
    model = Model(scripts)
    engine = KeepingEngine(model.engine, error)
    model.engine = engine  # type: ignore[assignment]
    return model, engine


async def test_results_are_read_as_they_come():
    model, engine = keeping([call("first") + call("second"), "Done."])

    @tool
    async def first() -> str:
        """The first."""
        await engine.until(1)
        return "one"

    @tool
    async def second() -> str:
        """The second."""
        await engine.until(2)
        return "two"

    async with House(Agent(name="default", tools=[first, second]), model) as house:
        events = await asyncio.wait_for(house.ask("Go"), 10)
    assert [event.content for event in of(events, ToolCallResult)] == ["one", "two"]
    without, with_first = engine.filled
    assert b"one" not in without and b"one" in with_first and b"two" not in with_first
    assert engine.asked[1].startswith(without) and engine.asked[1].startswith(with_first)
    assert [(place.conversation, place.prefill_only) for place in engine.places] == [
        ("t", False),
        ("t", True),
        ("t", True),
        ("t", False),
    ]
    assert engine.places[1].ttl == 60


async def test_the_place_is_kept_while_the_client_runs_its_tool():
    model, engine = keeping([call("theirs")])
    async with House(Agent(name="default"), model) as house:
        await house.ask("Go", tools=[client_tool("theirs")])
        await asyncio.wait_for(engine.until(1), 10)
    assert b"theirs" in engine.filled[0]


async def test_the_place_is_kept_while_a_person_is_asked():
    model, engine = keeping([call("pay"), "Paid."])

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    async with House(Agent(name="default", tools=[pay]), model, Store("sqlite://")) as house:
        events = await house.ask("Go")
        await asyncio.wait_for(engine.until(1), 10)
    assert isinstance(of(events, RunFinished)[0].outcome, InterruptOutcome)


async def test_an_engine_that_cannot_read_ahead_delays_nothing():
    model, engine = keeping([call("quick"), "Done."], EngineError("overloaded", "The queue is full.", retryable=True))

    @tool
    async def quick() -> str:
        """Quick."""
        await engine.until(1)
        return "x"

    async with House(Agent(name="default", tools=[quick]), model) as house:
        events = await asyncio.wait_for(house.ask("Go"), 10)
    assert isinstance(events[-1], RunFinished)


async def test_whatever_goes_wrong_in_reading_ahead_fails_no_run(caplog: pytest.LogCaptureFixture):
    model, _ = keeping([call("quick"), "Done."])
    asked = asyncio.Event()

    def instructions(state: object) -> str:
        if asyncio.current_task().get_name() == "read ahead":  # type: ignore[union-attr]
            asked.set()
            raise RuntimeError("as if")
        return "Help."

    @tool
    async def quick() -> str:
        """Quick."""
        await asked.wait()
        return "x"

    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
    async with House(Agent(name="default", tools=[quick], instructions=instructions), model) as house:
        events = await asyncio.wait_for(house.ask("Go"), 10)
    gc.collect()
    assert isinstance(events[-1], RunFinished)
    assert not lost and "could not be read ahead" in caplog.text


async def test_nothing_is_read_ahead_for_an_engine_that_keeps_no_places():
    model = Model([call("quick"), "Done."])

    @tool
    def quick() -> str:
        """Quick."""
        return "x"

    async with House(Agent(name="default", tools=[quick]), model) as house:
        await house.ask("Go")
    assert [request.cache_hold for request in model.engine.requests] == [None, None]


def calling(*ids: str) -> AssistantMessage:
    calls = [ToolCall(id=id, type="function", function=FunctionCall(name="f", arguments="{}")) for id in ids]
    return AssistantMessage(id="a", tool_calls=calls)


def answer(id: str) -> ToolMessage:
    return ToolMessage(id=f"m{id}", tool_call_id=id, content=id)


def test_what_is_known_ends_at_the_first_call_without_an_answer():
    asked = UserMessage(id="u", content="Go")
    made = calling("1", "2", "3")
    assert known_so_far([asked, made]) == ([asked, made], "1")
    assert known_so_far([asked, made, answer("3"), answer("1")]) == ([asked, made, answer("1")], "2")
    assert known_so_far([asked, made, answer("1"), answer("2"), answer("3")]) is None
    assert known_so_far([asked]) is None and known_so_far([asked, AssistantMessage(id="a", content="x")]) is None


@given(st.lists(st.integers(0, 2), max_size=9), st.lists(st.integers(0, 2), max_size=9))
def test_a_common_beginning(one: list[int], other: list[int]):
    found = common_beginning(tuple(one), tuple(other))
    size = len(found)
    assert list(found) == one[:size] == other[:size]
    assert size in (len(one), len(other)) or one[size] != other[size]
