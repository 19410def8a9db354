"""The AI SDK's chat (npm: `ai`, what `useChat` holds) against a running server, by its own transport and reader."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from agent_server import Agent, tool
from agent_server.engines.scripted import Fault, Script
from tests.conformance.node import NodeClients
from tests.conformance.test_agent_loops import turn_of
from tests.server import scripted, serving


@tool
def get_weather(city: str) -> dict[str, object]:
    """The weather in a city."""
    return {"city": city, "celsius": 20}


@tool(requires_approval=True)
def to_fahrenheit(celsius: float) -> str:
    """Degrees Celsius in Fahrenheit."""
    return "68"


async def conversed(clients: NodeClients, url: str, **entry: Any) -> Any:
    sent = {"api": f"{url}/ai-sdk/default", "id": "chat-1", "text": "How warm is it in Oslo?", **entry}
    [answer] = await asyncio.to_thread(clients.run, "ui_messages.mjs", [sent])
    return answer


def texts(answer: Any, kind: str = "text") -> str:
    return "".join(part["text"] for part in answer["messages"][-1]["parts"] if part["type"] == kind)


def calls(answer: Any) -> list[Any]:
    parts = answer["messages"][-1]["parts"]
    return [(part["type"], part["state"], part.get("output")) for part in parts if part["type"].startswith("tool-")]


AGENT = Agent(name="default", tools=[get_weather, to_fahrenheit])


async def test_reasoning_calls_and_an_approval_become_one_message(node_clients: NodeClients) -> None:
    async with serving(scripted(turn_of), agents=[AGENT]) as running:
        answer = await conversed(node_clients, running.url, answers=[True])
    assert "error" not in answer, answer
    assert len(answer["messages"]) == 2
    assert calls(answer) == [
        ("tool-get_weather", "output-available", {"city": "Oslo", "celsius": 20}),
        ("tool-to_fahrenheit", "output-available", "68"),
    ]
    assert texts(answer, "reasoning").strip().startswith("I need get_weather.")
    assert texts(answer) == "It is 68 F in Oslo."


async def test_a_denied_call_is_shown_as_denied(node_clients: NodeClients) -> None:
    async with serving(scripted(turn_of), agents=[AGENT]) as running:
        answer = await conversed(node_clients, running.url, answers=[False])
    assert "error" not in answer, answer
    assert calls(answer)[1][:2] == ("tool-to_fahrenheit", "output-denied")


async def test_a_reloaded_page_reads_the_whole_answer(node_clients: NodeClients) -> None:
    text = "<think>\n\n</think>\n\n" + "word " * 100
    async with serving(scripted([Script(text=text, delay=0.01)]), grace=30.0) as running:
        answer = await conversed(node_clients, running.url, resume=True)
    assert "error" not in answer, answer
    assert texts(answer).split() == ["word"] * 100


async def test_a_refusal_is_the_chats_error(node_clients: NodeClients) -> None:
    async with serving(scripted("Never said.")) as running:
        answer = await conversed(node_clients, running.url, api=f"{running.url}/ai-sdk/unknown")
    assert answer["status"] == "error"
    assert "unknown" in answer["error"] or "agent" in answer["error"]


async def test_a_stopped_page_keeps_what_was_said_and_the_server_stops(node_clients: NodeClients) -> None:
    text = "<think>\n\n</think>\n\n" + "word " * 1000
    async with serving(scripted([Script(text=text, delay=0.01)]), grace=0.0) as running:
        answer = await conversed(node_clients, running.url, stopAfter=20)
        async with asyncio.timeout(20):
            while await running.server.runs.going_on("chat-1", ""):
                await asyncio.sleep(0.01)
    assert answer["status"] == "ready"
    assert 20 <= len(texts(answer)) < 5000


async def test_the_server_stops_a_chat_that_is_asked_to_stop(node_clients: NodeClients) -> None:
    text = "<think>\n\n</think>\n\n" + "word " * 1000
    async with serving(scripted([Script(text=text, delay=0.01)]), grace=60.0) as running:
        answer = await conversed(node_clients, running.url, stopAfter=20, stopsServer=True)
        assert not await running.server.runs.going_on("chat-1", "")
        async with httpx.AsyncClient(base_url=running.url) as client:
            again = await client.post("/ai-sdk/default/chat-1/stop")
            unread = await client.get("/ai-sdk/default/chat-1/stream")
    assert (answer["status"], answer["stopped"]) == ("ready", {"stopped": True})
    assert 20 <= len(texts(answer)) < 5000
    assert (again.status_code, again.json()) == (200, {"stopped": False})
    assert unread.status_code == 204


async def test_another_tenant_neither_stops_nor_reads_a_chat() -> None:
    chat = {"id": "chat-1", "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}]}
    script = Script(text="<think>\n\n</think>\n\n" + "word " * 1000, delay=0.01)
    own, other = ({"authorization": f"Bearer {key}"} for key in ("own", "other"))
    async with (
        serving(scripted([script]), api_keys=("one:own", "two:other")) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
        client.stream("POST", "/ai-sdk/default", json=chat, headers=own) as answer,
    ):
        chunks = answer.aiter_lines()
        await anext(chunks)
        refused = await client.post("/ai-sdk/default/chat-1/stop", headers=other)
        unread = await client.get("/ai-sdk/default/chat-1/stream", headers=other)
        stopped = await client.post("/ai-sdk/default/chat-1/stop", headers=own)
        rest = [line async for line in chunks]
    assert refused.json() == {"stopped": False}
    assert unread.status_code == 204
    assert stopped.json() == {"stopped": True}
    assert any('"type":"abort"' in line for line in rest)


async def test_a_generation_that_fails_in_the_middle_is_the_chats_error(node_clients: NodeClients) -> None:
    text = "<think>\n\n</think>\n\nIt is " + "word " * 60
    fault = Fault(action="error", after=40, kind="internal", message="The engine failed.")
    async with serving(scripted([Script(text=text, fault=fault)])) as running:
        answer = await conversed(node_clients, running.url)
    assert answer["status"] == "error"
    assert answer["error"] == "The engine failed."
    assert texts(answer).startswith("It is")
