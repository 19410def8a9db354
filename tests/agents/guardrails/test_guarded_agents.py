"""Agents with guards: what they stop is nowhere, neither with clients, nor in the thread, nor with a tool."""

import asyncio
import json

import pytest

from agent_server.agents import Agent, tool
from agent_server.agents.guard_model import model_guard
from agent_server.agents.guardrails import HookGuard, ModelGuardEntry, PatternGuard
from agent_server.runs.store import Store
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import ActivitySnapshot, RunError, RunFinished, ToolCallResult
from tests.agents.harness import House, names, of
from tests.agents.models import Model, call

HERON = PatternGuard("heron", phrases=["blue heron"], message="We do not speak of that.")


def ended(events) -> str:
    assert isinstance(events[-1], RunFinished), events[-1]
    return events[-1].metadata["finishReason"]


def everything(events) -> str:
    return json.dumps([str(event) for event in events]).lower()


async def test_what_was_said_before_is_kept_and_the_rest_is_nowhere():
    model = Model(["The bird is a blue heron, they say."])
    async with House(Agent(name="default", guards=[HERON]), model, Store("sqlite://")) as house:
        events = await house.ask("Which bird?")
        stored = await house.store.messages("", "t")
    assert ended(events) == "content_filter"
    assert names(events) == [
        "RunStarted", "TextMessageStart", "TextMessageContent", "TextMessageEnd", "ActivitySnapshot", "RunFinished",
    ]  # fmt: skip
    (shown,) = of(events, ActivitySnapshot)
    assert (shown.activity_type, shown.content) == (
        "agent_server.withheld", {"message": "We do not speak of that.", "where": "text"},
    )  # fmt: skip
    assert [(each["role"], each["content"]) for each in stored[:2]] == [
        ("user", "Which bird?"), ("assistant", "The bird is a "),
    ]  # fmt: skip
    assert stored[2]["role"] == "activity"
    assert "heron" not in everything(events) + json.dumps(stored)
    assert events[-1].usage and events[-1].usage[0].output_tokens


async def test_a_run_goes_on_after_one_that_was_stopped():
    model = Model(["a blue heron", "Something else."])
    async with House(Agent(name="default", guards=[HERON]), model, Store("sqlite://")) as house:
        await house.ask("Which bird?")
        assert ended(await house.ask("Go on.")) == "stop"


async def test_reasoning_and_its_summary_are_read():
    for reasoning in ("full", "hidden", "summary"):
        agent = Agent(name="default", reasoning=reasoning, guards=[HERON], summarise=None)
        scripts = (
            ["<think>so a blue heron</think>Yes."]
            if reasoning != "summary"
            else ["<think>so</think>Yes.", "blue heron"]
        )
        async with House(agent, Model(scripts)) as house:
            events = await house.ask("Which?")
        assert ended(events) == "content_filter", reasoning
        assert "heron" not in everything(events)


async def test_no_tool_begins_with_forbidden_arguments():
    made: list[str] = []

    @tool(early=True)
    async def look(what: str) -> str:
        """Look something up."""
        made.append(what)
        return "found"

    model = Model([call("look", what="a duck") + call("look", what="a blue heron") + call("look", what="a swan")])
    async with House(Agent(name="default", tools=[look], guards=[HERON]), model, Store("sqlite://")) as house:
        events = await house.ask("Look.")
        stored = await house.store.messages("", "t")
    assert ended(events) == "content_filter"
    assert "a blue heron" not in made and "a swan" not in made
    assert "heron" not in everything(events) + json.dumps(stored)
    assert all("not made" in each.content for each in of(events, ToolCallResult))
    assert len(of(events, ToolCallResult)) == 2


async def test_a_result_is_withheld_from_the_model_and_from_clients():
    @tool
    def look() -> str:
        """Look."""
        return "a Blue Heron"

    model = Model([call("look"), "Nothing."])
    async with House(Agent(name="default", tools=[look], guards=[HERON]), model) as house:
        events = await house.ask("Look.")
    assert ended(events) == "stop" and "heron" not in everything(events)
    assert "withheld" in model.told[-1]["messages"][-1]["content"]


async def test_a_subagents_forbidden_words_end_the_subagent_alone():
    inner = Agent(name="inner", description="Knows birds.", guards=[HERON])
    model = Model([call("inner", task="Which?"), "It is a blue heron.", "It did not say."])
    async with House(Agent(name="default", tools=[inner]), model) as house:
        events = await house.ask("Which?")
    assert ended(events) == "stop"
    assert {"SubagentError"} <= set(names(events)) and "heron" not in everything(events)


async def test_a_function_is_a_guard_too():
    async with House(Agent(name="default", guards=[lambda text: "duck" in text]), Model(["A duck."])) as house:
        assert ended(await house.ask("Which?")) == "content_filter"


async def test_a_guard_model_on_the_same_engine():
    model = Model(lambda told: "unsafe\nS1" if told["instructions"] is None and "judge" in json.dumps(told) and
                  "duck. " in json.dumps(told) else "safe" if "judge" in json.dumps(told) else "A duck. And more.")  # fmt: skip
    entry = ModelGuardEntry(name="m", instructions="judge", on=("text",), every=5)
    async with House(Agent(name="default", guards=[model_guard(entry, model)]), model) as house:
        events = await house.ask("Which?")
    assert ended(events) == "content_filter" and "duck" not in everything(events)


async def test_a_guard_that_fails_ends_the_run():
    def fails(text: str) -> bool:
        raise RuntimeError("secret reason")

    async with House(Agent(name="default", guards=[HookGuard("h", fails)]), Model(["A duck."])) as house:
        events = await house.ask("Which?")
    assert isinstance(events[-1], RunError) and events[-1].code == "internal"
    assert "duck" not in everything(events) and "secret reason" not in everything(events)


async def test_token_details_spell_nothing_that_is_withheld():
    options = GenerationOptions(token_details=True, sampling=SamplingParams(logprobs=3))
    async with House(Agent(name="default", guards=[HERON]), Model(["a blue heron"])) as house:
        events = await house.ask("Which?", options=options)
    assert "heron" not in everything(events) and "tokens" not in everything(events[:-1])


async def test_a_stop_stays_a_stop():
    asked = asyncio.Event()

    async def forbids(text: str) -> bool:
        asked.set()
        await asyncio.sleep(3600)
        return True

    async with House(Agent(name="default", guards=[HookGuard("h", forbids)]), Model(["A duck. More."])) as house:
        run = await house.start("Which?")
        await asyncio.wait_for(asked.wait(), 20)
        run.stop("cancelled")
        events = await house.follow(run)
    assert ended(events) == "cancelled"


@pytest.mark.parametrize("guards", [(), (HERON,)])
async def test_agents_without_guards_take_the_same_way_as_before(guards):
    async with House(Agent(name="default", guards=guards), Model(["A duck."])) as house:
        assert (house.served["default"].guards is None) == (not guards)
        assert ended(await house.ask("Which?")) == "stop"
