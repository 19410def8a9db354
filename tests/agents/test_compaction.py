"""Conversations that outgrow the model's context: what the model is told of them, and what is kept."""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

import pytest
from ag_ui.core import (
    AssistantMessage,
    DataSource,
    DocumentPart,
    FunctionCall,
    Message,
    ReasoningMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.agents import Agent, Compaction, tool
from agent_server.agents.compaction import COMPACTED, CompactedPrompt, compacted_view, digest, find_cut, pieces
from agent_server.agents.guardrails import PatternGuard
from agent_server.engines.scripted import Fault, Script
from agent_server.runs.store import Store
from events.vocabulary import ActivitySnapshot, RunError, RunFinished, TextMessageContent, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")
CONTEXT = 4000
"""In bytes, which the test's model has for tokens."""


class Talking:
    """Answers "Answer to" and what was asked, or a summary. `asked`: what it was told, one a turn; `summaries`: of
    which texts."""

    def __init__(self, summary: str | Script = "They spoke.") -> None:
        self.summary = summary
        self.asked: list[list[tuple[str, Any]]] = []
        self.summaries: list[str] = []

    def __call__(self, told: dict[str, Any]) -> str | Script:
        messages = told["messages"]
        if messages[0]["id"] == "summary-instructions":
            self.summaries.append(messages[1]["content"])
            return self.summary
        self.asked.append([(each["role"], each.get("content")) for each in messages])
        return "Answer to " + str(messages[-1]["content"])[:20]


def text_of(events: Any) -> str:
    return "".join(each.delta for each in of(events, TextMessageContent))


def compacted(events: Any) -> list[dict[str, Any]]:
    return [each.content for each in of(events, ActivitySnapshot) if each.activity_type == COMPACTED]


def house(script: Any, **more: Any) -> House:
    agent = more.pop("agent", None) or Agent(name="default", compaction=more.pop("compaction", "summarise"))
    return House(agent, Model(script, context_length=CONTEXT), Store("sqlite://"), **more)


async def long_talk(asked: House, turns: int = 6) -> list[list[Any]]:
    return [await asked.ask(f"{number}: " + "word " * 100) for number in range(turns)]


async def test_the_oldest_messages_are_told_as_a_summary_and_stay_in_the_thread():
    model = Talking()
    async with house(model) as asked:
        runs = await long_talk(asked)
        kept = await asked.store.messages("", "t")
    told = [content for events in runs for content in compacted(events)]
    assert told and told[0]["mode"] == "summarise" and told[0]["summary"] == "They spoke."
    assert told[0]["tokens"]["after"] < told[0]["tokens"]["before"] and told[0]["tokens"]["context"] == CONTEXT
    assert model.asked[-1][:2] == [("user", "Summarise our conversation so far."), ("assistant", "They spoke.")]
    assert model.asked[-1][-1][1].startswith("5: ") and "0: word" in model.summaries[0]
    assert all(text_of(events).startswith("Answer to") for events in runs)
    assert [each["content"][:2] for each in kept if each["role"] == "user"] == [f"{number}:" for number in range(6)]
    assert [each["content"] for each in kept if each["role"] == "activity"] == told


async def test_a_later_run_goes_on_from_the_stored_summary():
    model = Talking()
    async with house(model) as asked:
        await long_talk(asked)
        before = len(model.summaries)
        events = await asked.ask("short")
        alone = await asked.manager.start(
            asked.input(messages=[{"id": "alone", "role": "user", "content": "and alone"}]), asked.options
        )
        [_ async for _ in alone.events()]
    assert before and len(model.summaries) == before and not compacted(events)
    assert model.asked[-2][1] == model.asked[-1][1] == ("assistant", "They spoke.")
    assert model.asked[-1][-1] == ("user", "and alone")


async def test_an_edit_of_what_was_summarised_makes_the_summary_anew():
    model = Talking()
    async with house(model) as asked:
        await long_talk(asked)
        before = len(model.summaries)
        asked.messages[0]["content"] = "changed: " + "word " * 100
        events = await asked.ask("short")
    assert len(model.summaries) > before and "changed:" in model.summaries[before] and compacted(events)


async def test_messages_are_dropped_where_the_agent_says_so():
    model = Talking()
    async with house(model, compaction="drop") as asked:
        runs = await long_talk(asked)
    told = [content for events in runs for content in compacted(events)]
    assert told[0]["mode"] == "drop" and told[0]["summary"] is None and not model.summaries
    assert model.asked[-1][0][0] == "user" and model.asked[-1][0][1] != "0: " + "word " * 100
    assert len(json.dumps(model.asked[-1])) < CONTEXT


@pytest.mark.parametrize("fault", [Script(text="", fault=Fault(action="error", message="No memory.")), ""])
async def test_a_summary_that_fails_loses_no_turn(fault: Any):
    model = Talking(summary=fault)
    async with house(model) as asked:
        runs = await long_talk(asked)
    told = [(events, content) for events in runs for content in compacted(events)]
    assert told and all(content["mode"] == "drop" and "No summary" in content["failed"] for _, content in told)
    assert all(text_of(events).startswith("Answer to") and not of(events, RunError) for events in runs)
    assert "No summary" in str(of(told[0][0], RunFinished)[0].metadata)


async def test_an_agents_own_function_summarises_and_may_fail():
    fails: list[bool] = []

    async def summarise(text: str) -> str:
        if fails:
            raise ValueError("not now")
        return "By hand."

    own = Agent(name="default", compaction=Compaction(summarise=summarise, at=0.7, keep=0.3))
    async with house(Talking(), agent=own) as asked:
        runs = await long_talk(asked)
        fails.append(True)
        runs += await long_talk(asked)
    modes = [content["mode"] for events in runs for content in compacted(events)]
    assert modes[0] == "summarise" and "drop" in modes and all(text_of(events) for events in runs)


@tool
def look(number: int) -> str:
    """Look something up."""
    return f"{number}: " + "found " * 150


async def test_results_of_one_run_are_compacted_between_its_turns():
    def script(told: dict[str, Any]) -> str:
        if told["messages"][0]["id"] == "summary-instructions":
            return "Two things were found."
        seen.append([each["role"] for each in told["messages"]])
        return call("look", number=len(seen)) if len(seen) < 5 else "Done."

    seen: list[list[str]] = []
    agent = Agent(name="default", tools=[look], compaction="summarise")
    async with house(script, agent=agent) as asked:
        events = await asked.ask("Find everything.")
        kept = await asked.store.messages("", "t")
    assert text_of(events) == "Done." and compacted(events)
    assert all(roles[:2] in (["user"], ["user", "assistant"]) for roles in seen)
    assert sum(each["role"] == "tool" for each in kept) == 4
    for roles in seen:  # a result is told with its call
        assert all(roles[index - 1] in ("assistant", "tool") for index, role in enumerate(roles) if role == "tool")


async def test_what_clients_bring_themselves_is_not_compacted_and_nothing_is_done_unasked():
    model = Talking()
    async with House([], Model(model, context_length=CONTEXT), Store("sqlite://")) as asked:
        runs = await long_talk(asked, 8)
    assert not any(map(compacted, runs)) and of(runs[-1], RunError)
    async with House([], Model(Talking(), context_length=CONTEXT), compaction="summarise") as asked:  # no store
        runs = await long_talk(asked, 8)
    assert not any(map(compacted, runs)) and of(runs[-1], RunError)


async def test_the_servers_setting_holds_for_agents_that_say_nothing():
    async with House([], Model(Talking(), context_length=CONTEXT), Store("sqlite://"), compaction="drop") as asked:
        runs = await long_talk(asked)
    assert any(map(compacted, runs)) and not of(runs[-1], RunError)


KINDS = st.sampled_from(["user", "assistant", "call", "reasoning"])


def conversation(kinds: list[str], lengths: list[int]) -> list[Message]:
    made: list[Message] = []
    for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
        id, text = f"m{number}", "x" * length
        if kind == "user":
            made.append(UserMessage(id=id, content=text))
        elif kind == "assistant":
            made.append(AssistantMessage(id=id, content=text))
        elif kind == "reasoning":
            made += [ReasoningMessage(id=id, content=text), AssistantMessage(id=f"{id}a", content="So.")]
        else:
            calls = [ToolCall(id=id, function=FunctionCall(name="look", arguments="{}"))]
            made += [AssistantMessage(id=id, tool_calls=calls), ToolMessage(id=f"{id}r", tool_call_id=id, content=text)]
    return made


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_no_cut_parts_a_call_from_its_results_and_the_last_message_is_always_told(data: st.DataObject):
    kinds = data.draw(st.lists(KINDS, min_size=1, max_size=12))
    lengths = data.draw(st.lists(st.integers(0, 200), min_size=len(kinds), max_size=len(kinds)))
    prompt = [UserMessage(id="first", content="x"), *conversation(kinds, lengths)]
    cut = find_cut(prompt, data.draw(st.integers(0, 3)), data.draw(st.integers(0, 1500)))
    if cut is None:
        return
    for summary in ("So it was.", None):
        told = compacted_view(prompt, CompactedPrompt(cut=cut, summary=summary))
        assert told[-1] is prompt[-1] and told[0].role == "user"
        made = {call.id for each in told if isinstance(each, AssistantMessage) for call in each.tool_calls or ()}
        results = {each.tool_call_id for each in told if isinstance(each, ToolMessage)}
        assert results == made
        pairs = itertools.pairwise(told)
        assert not any(one.role == "reasoning" and other.role != "assistant" for one, other in pairs)


@given(st.lists(st.text(max_size=300), max_size=10), st.integers(40, 400))
def test_pieces_hold_every_message_and_no_piece_is_too_long(texts: list[str], most: int):
    made = pieces([UserMessage(id="u", content=text) for text in texts], most)
    assert sum(piece.count("user: ") for piece in made) >= len(texts)
    assert all(len(piece.encode()) <= most + 10 * len(texts) for piece in made)


def test_a_digest_is_of_what_is_said_and_of_no_ids():
    one, other = conversation(["user", "call"], [3, 4]), conversation(["user", "call"], [3, 4])
    other[0].id = "another"
    assert digest(one) == digest(other) and digest(one) != digest(conversation(["user", "call"], [3, 5]))


async def test_a_guard_that_stops_a_long_prompt_does_not_answer_the_last_turn_s_calls_again():
    """Its call was made and answered; the document in the result is read only when the next prompt is measured."""

    @tool
    def fetch() -> list[object]:
        """Fetch a file."""
        source = DataSource(value=base64.b64encode(b"It is a blue heron.").decode(), mime_type="text/plain")
        return [TextPart(text="word " * 1000), DocumentPart(source=source)]

    heron = PatternGuard("heron", phrases=["blue heron"], on=["results"])
    agent = Agent(name="default", tools=[fetch], guards=[heron], compaction="summarise")
    async with house([call("fetch")], agent=agent) as asked:
        events = await asked.ask("fetch it")
        kept = await asked.store.messages("", "t")
    assert events[-1].metadata["finishReason"] == "content_filter"
    assert [each["role"] for each in kept if each["role"] != "activity"] == ["user", "assistant", "tool"]
    (result,) = of(events, ToolCallResult)
    assert result.metadata is None, "it was answered as a call that was not made"
