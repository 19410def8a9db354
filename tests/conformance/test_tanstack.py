"""TanStack AI's client (npm: `@tanstack/ai-client`) against a running server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from agent_server.agents import Agent, ToolContext, tool
from agent_server.engines.scripted import Script
from tests.agents.models import call
from tests.conformance.node import NodeClients
from tests.server import Running, scripted, serving

sent: list[str] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"Sun in {city}"


@tool(requires_approval=True)
def send_mail(to: str) -> str:
    """Send a mail."""
    sent.append(to)
    return f"Sent to {to}"


@tool
def meet(topic: str, context: ToolContext) -> str:
    """Find a time."""
    slots = {"slot": {"enum": ["Montag 9 ☃", "Friday"]}, "guests": {"type": "number", "minimum": 1.0, "maximum": 2.5}}
    answer = context.ask(f"When about {topic}?", {"type": "object", "properties": slots, "required": ["slot"]})
    return f"On {answer['slot']}" if answer else "never"


HELPER = Agent(name="helper", tools=[weather, send_mail, meet])
THINKING = "<think>\nI look.\n</think>\n\n"


async def converse(clients: NodeClients, running: Running, **entry: Any) -> dict[str, Any]:
    entry = {"url": f"{running.url}/agui/helper", **entry}
    [report] = await asyncio.to_thread(clients.run, "tanstack.mjs", [entry])
    return report


async def stored(running: Running) -> list[tuple[str, Any]]:
    """The role and content of each message of the only thread, or the names of its calls."""
    [thread], _ = await running.server.store.threads("")
    messages = await running.server.store.messages("", thread.id)
    names = [[each["function"]["name"] for each in message.get("toolCalls") or ()] for message in messages]
    return [(each["role"], each.get("content") or calls) for each, calls in zip(messages, names, strict=True)]


async def test_an_answer_with_a_tool_is_stored_once_however_often_it_comes_back(node_clients: NodeClients) -> None:
    scripts = [
        f"{THINKING}One moment. {call('weather', city='Oslo')}",
        "<think>\nI have it.\n</think>\n\nSun.",
        "You are welcome.",
    ]
    engine = scripted([Script(text=text) for text in scripts])
    async with serving(engine, agents=[HELPER]) as running:
        steps = [{"say": "How is Oslo?", "requests": 1}, {"say": "Thanks", "requests": 2}]
        report = await converse(node_clients, running, steps=steps)
        assert report["errors"] == []
        assert await stored(running) == [
            ("user", "How is Oslo?"), ("reasoning", "I look."), ("assistant", "One moment."), ("tool", "Sun in Oslo"),
            ("reasoning", "I have it."), ("assistant", "Sun."), ("user", "Thanks"), ("assistant", "You are welcome."),
        ]  # fmt: skip


async def test_the_page_s_tool_is_run_and_its_result_is_answered(node_clients: NodeClients) -> None:
    engine = scripted([Script(text=text) for text in (f"{THINKING}{call('paint', color='red')}", "It is red.")])
    async with serving(engine, agents=[HELPER]) as running:
        report = await converse(
            node_clients, running, tools={"paint": "painted"}, steps=[{"say": "Red!", "requests": 2}]
        )
        assert report["errors"] == [] and report["messages"][-1] == ["assistant", [["text", "It is red."]]]
        kinds = [("user", "Red!"), ("reasoning", "I look."), ("assistant", ["paint"]), ("tool", "painted")]
        assert await stored(running) == [*kinds, ("assistant", "It is red.")]


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_answered_from_the_call_it_belongs_to(node_clients: NodeClients, approved: bool) -> None:
    engine = scripted([Script(text=text) for text in (call("send_mail", to="Ann"), "Done.")])
    async with serving(engine, agents=[HELPER]) as running:
        steps = [{"say": "Write to Ann", "requests": 1}, {"approve": approved, "requests": 2}]
        report = await converse(node_clients, running, steps=steps)
        result = "Sent to Ann" if approved else "The user did not approve this call; it was not made."
        assert report["errors"] == [] and report["interrupts"] == []
        assert report["messages"][-1] == ["assistant", [["text", "Done."]]]
        assert await stored(running) == [
            ("user", "Write to Ann"), ("assistant", ["send_mail"]), ("tool", result), ("assistant", "Done."),
        ]  # fmt: skip
    assert sent == ["Ann"] * approved


async def test_a_question_can_be_answered(node_clients: NodeClients) -> None:
    engine = scripted([Script(text=text) for text in (call("meet", topic="x"), "Fine.")])
    async with serving(engine, agents=[HELPER]) as running:
        steps = [{"say": "Meet", "requests": 1}, {"answer": {"slot": "Montag 9 ☃"}, "requests": 2}]
        report = await converse(node_clients, running, steps=steps)
        assert report["errors"] == [] and ("tool", "On Montag 9 ☃") in await stored(running)


@pytest.mark.parametrize("cut", [2, 12, 25])
async def test_a_stream_that_broke_off_goes_on_with_the_same_run(node_clients: NodeClients, cut: int) -> None:
    """Also where the call of the page's tool came before the cut."""
    first = f"{THINKING}One two three four five six seven eight nine ten.{call('paint', color='red')}"
    engine = scripted([Script(text=text, delay=0.005) for text in (first, "It is red.")])
    async with serving(engine, agents=[HELPER], grace=10.0) as running:
        steps = [{"say": "Red!", "requests": 3}]
        report = await converse(node_clients, running, tools={"paint": "painted"}, cut=cut, steps=steps)
        assert report["errors"] == []
        assert [each["last"] is not None for each in report["requests"]] == [False, True, False]
        assert report["messages"][-1] == ["assistant", [["text", "It is red."]]]
        assert [kind for kind, _ in await stored(running)] == ["user", "reasoning", "assistant", "tool", "assistant"]
        assert len(engine.requests) == 2


async def test_an_answer_of_two_texts_stays_two_messages(node_clients: NodeClients) -> None:
    """The client makes one message of an answer with calls or reasoning, but not of texts."""

    async def pair(input: RunAgentInput) -> AsyncIterator[dict[str, Any]]:
        for part in ("First. ", "Second."):
            message = {"messageId": f"{input.run_id}-{part[0]}", "role": "assistant"}
            yield {"type": "TEXT_MESSAGE_START", **message}
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": message["messageId"], "delta": part}
            yield {"type": "TEXT_MESSAGE_END", "messageId": message["messageId"]}

    class Pair:
        name = "helper"
        run = staticmethod(pair)

    async with serving(scripted(""), agents=[Pair()]) as running:
        report = await converse(
            node_clients, running, steps=[{"say": "One", "requests": 1}, {"say": "Two", "requests": 2}]
        )
        assert report["errors"] == []
        answer = [("assistant", "First. "), ("assistant", "Second.")]
        assert await stored(running) == [("user", "One"), *answer, ("user", "Two"), *answer]
