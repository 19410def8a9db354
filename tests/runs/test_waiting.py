"""Messages on a thread that is busy: kept as soon as they are accepted, whatever becomes of who sent them."""

from __future__ import annotations

import asyncio

import pytest

from agent_server.agents import Agent
from agent_server.engines.scripted import Script
from agent_server.runs.store import Store
from events.vocabulary import CancelledOutcome, Custom, RunFinished, TextMessageContent
from tests.agents.harness import House, of
from tests.agents.models import Model

pytestmark = pytest.mark.usefixtures("nothing_blocks")


def user(id: str, text: str) -> dict:
    return {"id": id, "role": "user", "content": text}


def spoken(messages: list[dict]) -> list[str]:
    return [message["content"] for message in messages]


def house(*scripts: str | Script) -> House:
    return House(Agent(name="default"), Model(list(scripts)), Store("sqlite://"))


async def waiting(run) -> None:
    async for _, event in run.events():
        if isinstance(event, Custom):
            return
    raise AssertionError("it never waited")


async def test_a_message_whose_sender_left_while_it_waited_is_kept():
    async with house(Script(text="Long words.", delay=60.0)) as it:
        first = await it.start(messages=[user("u1", "one")])
        second = await it.start(messages=[user("u1", "one"), user("u2", "two")])
        await waiting(second)
        await second.cancel("disconnected")
        assert isinstance((await second.wait()).outcome, CancelledOutcome)
        assert spoken(await it.store.messages("", "t")) == ["one", "two"]
        assert {run.id: run.status for run in await it.store.runs("", "t")} == {
            first.id: "running",
            second.id: "cancelled",
        }
        await first.cancel()


async def test_a_message_that_was_stopped_before_its_first_step_is_kept_too():
    async with house(Script(text="Long words.", delay=60.0)) as it:
        first = await it.start(messages=[user("u1", "one")])
        await it.manager.start(again := it.input(messages=[user("u2", "two")]), it.options)
        second = it.manager.get(again.run_id)
        second.stop("disconnected")
        await second.wait()
        assert spoken(await it.store.messages("", "t")) == ["one", "two"]
        await first.cancel()


async def test_a_run_that_is_stopped_while_it_is_entered_has_an_ending(monkeypatch: pytest.MonkeyPatch):
    async with house("Hello.") as it:
        entered, begin = asyncio.Event(), it.store.begin_run

        async def slow(*given, **more):
            await begin(*given, **more)
            entered.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(it.store, "begin_run", slow)
        run = await it.start(messages=[user("u1", "one")])
        await entered.wait()
        await run.cancel()
        assert isinstance((await run.wait()).outcome, CancelledOutcome)
        assert spoken(await it.store.messages("", "t")) == ["one"]
        assert [each.status for each in await it.store.runs("", "t")] == ["cancelled"]


async def test_two_tabs_write_at_once_and_each_is_answered_on_its_own_view():
    async with house(Script(text="To one.", delay=0.001), "To two.") as it:
        first = await it.start(messages=[user("u1", "one")])
        second = await it.start(messages=[user("u2", "two")])
        await asyncio.gather(first.wait(), second.wait())
        assert spoken(await it.store.messages("", "t")) == ["one", "To one.", "two", "To two."]
        assert [[each["content"] for each in told["messages"]] for told in it.model.told] == [
            ["one"],
            ["one", "To one.", "two"],
        ]
        assert await it.store.removals("", "t") == []


async def test_a_message_that_is_sent_again_behind_its_own_run_keeps_both_answers():
    async with house(Script(text="First.", delay=0.001), "Second.") as it:
        runs = [await it.start(messages=[user("u1", "one")]) for _ in range(2)]
        await asyncio.gather(*(run.wait() for run in runs))
        assert spoken(await it.store.messages("", "t")) == ["one", "First.", "Second."]


async def test_asking_again_goes_on_from_the_thread_and_sets_the_first_answer_aside():
    async with house("First.", "Second.") as it:
        await it.ask(messages=[user("u1", "one")])
        events = await it.ask(messages=[user("u1", "one")])
        assert isinstance(events[-1], RunFinished)
        assert "".join(event.delta for event in of(events, TextMessageContent)) == "Second."
        assert spoken(await it.store.messages("", "t")) == ["one", "Second."]
        (removal,) = await it.store.removals("", "t")
        assert spoken(removal.messages) == ["First."]


async def test_a_client_that_sends_its_last_message_alone_is_answered_with_the_whole_thread():
    async with house("First.", "Second.") as it:
        await it.ask(messages=[user("u1", "one")])
        await it.ask(messages=[user("u2", "two")])
        assert [each["content"] for each in it.model.told[1]["messages"]] == ["one", "First.", "two"]
        assert spoken(await it.store.messages("", "t")) == ["one", "First.", "two", "Second."]


async def test_a_wire_that_sends_the_whole_conversation_is_told_nothing_from_the_thread():
    async with house("First.", "Second.") as it:
        await it.ask(messages=[user("u1", "one")])
        run = await it.manager.start(it.input(messages=[user("u2", "two")]), it.options, whole=True)
        await run.wait()
        assert [each["content"] for each in it.model.told[1]["messages"]] == ["two"]
