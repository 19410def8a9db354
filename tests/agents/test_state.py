"""Shared state: snapshots, differences, schemas, predictions."""

from __future__ import annotations

import json

import jsonpatch
import pytest
from pydantic import BaseModel

from agent_server.agents import Agent, PredictState, ToolContext, ToolFault, tool
from agent_server.agents.state import Predictor, SharedState
from agent_server.engines.scripted import Script
from agent_server.runs.store import Store
from events.vocabulary import (
    Custom,
    StateDelta,
    StateSnapshot,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)
from tests.agents.harness import House, names, of
from tests.agents.models import Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")


class Recipe(BaseModel):
    title: str = "Soup"
    steps: list[str] = []


@tool
def add_step(step: str, context: ToolContext) -> str:
    """Add a step."""
    context.state["steps"].append(step)
    return "added"


@tool
def spoil(context: ToolContext) -> str:
    """Spoil the state."""
    context.state["steps"] = "none"
    return "spoilt"


COOK = Agent(name="default", tools=[add_step, spoil], state=Recipe)


async def test_the_state_is_sent_whole_at_the_start_and_as_patches_when_tools_change_it():
    async with House(COOK, Model([call("add_step", step="boil"), "ok"])) as house:
        events = await house.ask("go", state={"title": "Stew"})
    first, *_, last = of(events, StateSnapshot)
    assert first.snapshot == {"title": "Stew", "steps": []}
    (delta,) = of(events, StateDelta)
    assert jsonpatch.apply_patch(first.snapshot, delta.delta) == last.snapshot == {"title": "Stew", "steps": ["boil"]}
    order = names(events)
    assert order.index("StateSnapshot") == 1 and order.index("StateDelta") < order.index("ToolCallResult")
    assert house.state == {"title": "Stew", "steps": ["boil"]}


async def test_a_change_that_does_not_fit_the_schema_is_taken_back_and_told_to_the_model():
    async with House(COOK, Model([call("spoil"), "ok"])) as house:
        events = await house.ask("go")
    failed = [event.content for event in of(events, ToolCallResult) if event.metadata]
    assert len(failed) == 1 and "shared state was refused: steps" in failed[0]
    assert house.state == {"title": "Soup", "steps": []}


async def test_runs_do_not_share_their_state_and_a_thread_keeps_its_own():
    async with House(COOK, Model([call("add_step", step="boil"), "ok"]), Store("sqlite://")) as house:
        await house.ask("go")
        assert await house.store.state("", "t") == {"title": "Soup", "steps": ["boil"]}
        house.state = {}
        events = await house.ask("again")
        assert of(events, StateSnapshot)[0].snapshot == {"title": "Soup", "steps": ["boil"]}
        other = await house.ask("elsewhere", threadId="t2", state=None)
        assert of(other, StateSnapshot)[0].snapshot == {"title": "Soup", "steps": []}


async def test_an_agent_without_state_leaves_the_client_s_alone():
    async with House([], Model(["ok"]), Store("sqlite://")) as house:
        events = await house.ask("go", state={"mine": 1})
        assert not of(events, StateSnapshot) and not of(events, StateDelta)
        assert await house.store.state("", "t") == {"mine": 1}


WRITER = Agent(
    name="default",
    state={"document": ""},
    predict_state=[PredictState("document", "write_document", "document")],
    tools=[tool(name="write_document")(lambda document: "written")],
)


async def test_a_declared_argument_streams_into_the_state_while_it_is_written():
    document = "Once upon a time. " * 40 + 'He said "no"\n\u2603'
    async with House(WRITER, Model([Script(text=call("write_document", document=document)), "ok"])) as house:
        events = await house.ask("write")
    (announced,) = [event for event in of(events, Custom) if event.name == "PredictState"]
    assert announced.value == [{"state_key": "document", "tool": "write_document", "tool_argument": "document"}]
    state, seen = {"document": ""}, []
    ended = next(index for index, event in enumerate(events) if isinstance(event, ToolCallEnd))
    for event in events[:ended]:
        if isinstance(event, StateDelta):
            state = jsonpatch.apply_patch(state, event.delta)
            seen.append(state["document"])
    assert len(seen) > 5 and all(document.startswith(each.rstrip("\\")) for each in seen)
    assert sum(map(len, seen)) < 30 * len(document)
    assert house.state == {"document": document}


def test_predictions_follow_only_what_was_declared():
    sent = []
    state = SharedState({}, sent.append)
    predictor = Predictor([PredictState("plan", "make_plan", "steps")], state)
    text = json.dumps({"note": "x", "steps": [{"d": "one"}, {"d": "two"}]})
    for name, id in (("other", "a"), ("make_plan", "b")):
        predictor.follow(ToolCallStart(tool_call_id=id, tool_call_name=name))
        for letter in text:
            predictor.follow(ToolCallArgs(tool_call_id=id, delta=letter))
        predictor.follow(ToolCallEnd(tool_call_id=id))
        assert state.value == ({} if name == "other" else {"plan": [{"d": "one"}, {"d": "two"}]})


def test_what_json_cannot_hold_is_refused():
    state = SharedState({"a": 1}, lambda event: None)
    state.value["b"] = object()
    with pytest.raises(ToolFault):
        state.push()
    assert state.value == {"a": 1}


async def test_a_client_s_state_outside_the_schema_spoils_no_result_of_a_tool_that_leaves_it_alone():
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    agent = Agent(name="default", tools=[look, add_step], state=Recipe)
    async with House(agent, Model([call("look"), "ok", call("add_step", step="boil"), "ok"])) as house:
        events = await house.ask("go", state={"title": 3, "steps": []})
        (result,) = of(events, ToolCallResult)
        assert (result.content, result.metadata) == ("seen", None)
        (refused,) = of(await house.ask("go on", state={"title": 3, "steps": []}), ToolCallResult)
        assert refused.metadata == {"isError": True} and "title" in refused.content
