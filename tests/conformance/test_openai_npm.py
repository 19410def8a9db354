"""The `openai` npm package against a running server: several turns with tools, streaming beside not, and its errors."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.conformance.test_agent_loops import turn_of
from tests.server import scripted, serving

RESULTS = {"get_weather": "20 degrees", "to_fahrenheit": "68"}


def tool(name: str, **properties: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [tool("get_weather", city="string"), tool("to_fahrenheit", celsius="number")]


async def test_it_takes_its_turns_and_streaming_is_the_same(node_clients: Any) -> None:
    history: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
    async with serving(scripted(turn_of)) as running:
        for _ in range(3):
            request = {"model": "default", "messages": history, "tools": TOOLS}
            entry = {"baseURL": running.url + "/v1", "request": request}
            [answer] = await asyncio.to_thread(node_clients.run, "openai.mjs", [entry])
            message, streamed = answer["message"], answer["streamed"]
            assert (message["content"] or "") == (streamed["content"] or "")
            assert calls_of(message) == calls_of(streamed)
            assert answer["usage"]["completion_tokens"] > 0
            results = [
                {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[call["function"]["name"]]}
                for call in message.get("tool_calls") or ()
            ]
            history += [message, *results]
    assert [calls_of(turn) for turn in history if turn["role"] == "assistant"] == [
        [("get_weather", {"city": "Oslo"})],
        [("to_fahrenheit", {"celsius": 20})],
        [],
    ]
    assert history[-1]["content"] == "It is 68 F in Oslo."


def calls_of(message: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = message.get("tool_calls") or ()
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


async def test_its_errors_are_read(node_clients: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    async with serving(scripted("Fine.")) as running:
        base = running.url + "/v1"
        asked = [{"model": "none", "messages": messages}, {"model": "default", "messages": messages, "top_p": 3}]
        entries = [{"baseURL": base, "request": request} for request in asked]
        unknown, refused = await asyncio.to_thread(node_clients.run, "openai.mjs", entries)
    assert unknown["error"]["status"] == 404
    assert refused["error"]["status"] == 400 and "top_p" in refused["error"]["message"]
