"""A person who cancels a tool's question: on every wire that carries interrupts, the tool gets None and goes on."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from agent_server.agents import Agent, ToolContext, tool
from agent_server.engines.scripted import Script
from tests.http.routes.test_copilotkit import body, events_of
from tests.server import scripted, serving

CALL = '<tool_call>\n{"name": "plan", "arguments": {"topic": "AG-UI"}}\n</tool_call>'


@tool
def plan(topic: str, context: ToolContext) -> str:
    """Plan a talk."""
    return f"{topic}: {context.ask('Which day?', {'enum': ['Mon', 'Tue']})!r}"


async def send(url: str, wire: str, given: dict[str, Any]) -> list[dict[str, Any]]:
    if wire == "/agui/ws":
        async with connect(url.replace("http", "ws") + wire) as socket:
            await socket.send(json.dumps({"type": "run", "input": given}))
            events = [json.loads(await socket.recv())]
            while events[-1]["type"] not in ("RUN_FINISHED", "RUN_ERROR"):
                events.append(json.loads(await socket.recv()))
        return events
    single = {"method": "agent/run", "params": {"agentId": "default"}, "body": given}
    async with httpx.AsyncClient(base_url=url) as client:
        return events_of(await client.post(wire, json=single if wire == "/copilotkit" else given))


@pytest.mark.parametrize("wire", ["/agui", "/agui/ws", "/copilotkit/agent/default/run", "/copilotkit"])
async def test_a_cancelled_question_is_none_to_the_tool(wire: str):
    scripts = scripted([Script(text=CALL), Script(text="Whenever.")])
    async with serving(scripts, agents=[Agent(name="default", tools=[plan])]) as running:
        asked = (await send(running.url, wire, body()))[-1]["outcome"]["interrupts"][0]
        resume = [{"interruptId": asked["id"], "status": "cancelled"}]
        messages = body()["messages"]
        if wire.startswith("/copilotkit"):  # CopilotKit says it a second time, as the call's result
            answer = {"id": "made-up", "role": "tool", "toolCallId": asked["toolCallId"],
                      "content": json.dumps({"status": "cancelled"})}  # fmt: skip
            messages = [*messages, answer]
        events = await send(running.url, wire, body(runId="r2", resume=resume, messages=messages))
    (result,) = [each for each in events if each["type"] == "TOOL_CALL_RESULT"]
    assert result["content"] == "AG-UI: None" and "metadata" not in result
    assert events[-1]["type"] == "RUN_FINISHED"
    assert "".join(each["delta"] for each in events if each["type"] == "TEXT_MESSAGE_CONTENT").strip() == "Whenever."
