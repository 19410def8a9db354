"""Agents as tools of other agents."""

from __future__ import annotations

import pytest

from agent_server.agents import Agent, ToolContext, tool
from agent_server.engines.scripted import Fault, Script
from agent_server.runs.store import Store
from events.vocabulary import (
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    SuccessOutcome,
    TextMessageContent,
    ToolCallResult,
    ToolCallStart,
)
from tests.agents.harness import House, of
from tests.agents.models import Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")


@tool
def count_letters(word: str, context: ToolContext) -> int:
    """Count."""
    context.state["counted"] = word
    return len(word)


@tool(requires_approval=True)
def publish(text: str) -> str:
    """Publish."""
    raise AssertionError("nobody agreed")


LINGUIST = Agent(
    name="linguist", description="Knows words.", instructions="You know words.", tools=[count_letters, publish]
)
CHIEF = Agent(name="default", instructions="You delegate.", tools=[LINGUIST], state={})


def script(*mine: str, theirs: list):
    left, theirs = list(mine), list(theirs)
    return lambda told: (theirs if told["instructions"] == "You know words." else left).pop(0)


async def test_a_subagent_s_work_is_marked_as_its_own_and_its_last_words_are_the_result():
    model = Model(
        script(
            call("linguist", task="letters in tree"), "Four.", theirs=[call("count_letters", word="tree"), "4 letters"]
        )
    )
    async with House(CHIEF, model, Store("sqlite://")) as house:
        events = await house.ask("how many letters has tree?")
        (started,), (finished,) = of(events, SubagentStarted), of(events, SubagentFinished)
        calls = of(events, ToolCallStart)
        assert (started.name, started.description, started.parent_tool_call_id) == (
            "linguist",
            "Knows words.",
            calls[0].tool_call_id,
        )
        assert finished.subagent_run_id == started.subagent_run_id and finished.result == "4 letters"
        assert [each.subagent_run_id for each in calls] == [None, started.subagent_run_id]
        inner, outer = of(events, ToolCallResult)
        assert (inner.content, inner.subagent_run_id) == ("4", started.subagent_run_id)
        assert (outer.content, outer.subagent_run_id) == ("4 letters", None)
        assert house.state == {"counted": "tree"}
        assert [told["messages"][0]["content"] for told in model.told[1:3]] == ["letters in tree"] * 2
        assert model.told[1]["tools"] == ["count_letters", "publish"]
        assert "".join(e.delta for e in of(events, TextMessageContent) if e.subagent_run_id is None) == "Four."
        stored = await house.store.messages("", "t")
        assert {message["id"] for message in stored} == {message["id"] for message in house.messages}


async def test_what_a_subagent_said_is_not_told_to_its_caller_again():
    model = Model(script(call("linguist", task="x"), "Done.", "Yes.", theirs=["inner words"]))
    async with House(CHIEF, model) as house:
        await house.ask("go")
        await house.ask("really?")
        assert "inner words" in repr(house.messages)
        roles = [message["role"] for message in model.told[-1]["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_subagent_that_fails_is_its_call_s_error():
    broken = Script(text="half", fault=Fault(action="error", after=2, kind="timeout", message="too slow"))
    model = Model(script(call("linguist", task="x") + call("linguist", task=" "), "I cannot.", theirs=[broken]))
    async with House(CHIEF, model) as house:
        events = await house.ask("go")
    (failed,) = of(events, SubagentError)
    assert (failed.message, failed.code) == ("too slow", "timeout")
    contents = sorted(event.content for event in of(events, ToolCallResult))
    assert "linguist failed: too slow" in contents[1] and "Invalid arguments" in contents[0]
    assert isinstance(events[-1].outcome, SuccessOutcome)


async def test_inside_a_subagent_what_needs_a_person_is_not_done():
    model = Model(script(call("linguist", task="x"), "ok", theirs=[call("publish", text="y"), "could not"]))
    async with House(CHIEF, model, Store("sqlite://")) as house:
        events = await house.ask("go")
    assert "this connection cannot ask" in of(events, ToolCallResult)[0].content


async def test_two_subagents_may_work_at_once():
    other = Agent(name="poet", instructions="You rhyme.")
    model = Model(
        lambda told: (
            {"You know words.": "words", "You rhyme.": "rhymes"}.get(told["instructions"])
            or (
                "both"
                if any(m["role"] == "tool" for m in told["messages"])
                else call("linguist", task="a") + call("poet", task="b")
            )
        )
    )
    async with House(Agent(name="default", instructions="x", tools=[LINGUIST, other]), model) as house:
        events = await house.ask("go")
    assert sorted(each.name for each in of(events, SubagentStarted)) == ["linguist", "poet"]
    assert sorted(event.content for event in of(events, ToolCallResult)) == ["rhymes", "words"]
