"""The bundled model on the embedded engine drives the example agents: nothing in between is a stand-in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_server.agents import Agent, load_agents, tool
from tests.conformance.node import node_clients as node_clients
from tests.server import serving

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"


@tool
def calculate(expression: str) -> str:
    """Calculate."""
    left, _, right = expression.partition("*")
    return str(int(left) * int(right))


@pytest.fixture(scope="module")
def agents() -> list[Agent]:
    names = ("interrupt", "human_in_the_loop", "predictive_state_updates", "agentic_chat")
    found = load_agents([str(EXAMPLES / f"{name}.py") for name in names])
    weather = next(agent for agent in found if agent.name == "agentic_chat").tools[0]
    return [*found, Agent(name="two_tools", tools=[weather, calculate])]


async def reports(node_clients, agents: list[Agent], entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with serving(agents=agents) as running:
        sent = [{**entry, "url": f"{running.url}/agui/{entry['agent']}"} for entry in entries]
        made = await asyncio.to_thread(node_clients.run, "converse.mjs", sent)
    for report in made:
        assert report["problems"] == []
        assert [(run["error"], run["failed"]) for run in report["runs"]] == [(None, None)] * len(report["runs"])
    return made


def calls(report: dict[str, Any]) -> list[tuple[str, Any]]:
    made = [call for message in report["messages"] for call in message.get("toolCalls") or ()]
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made]


async def test_it_drives_tools_approvals_plans_and_predictions(node_clients, agents):
    edited = {"to": "anna@example.org", "subject": "Lunch", "body": "at noon"}
    kept = [{"description": "Book a hotel", "status": "enabled"}]
    steps = {"type": "object", "properties": {"steps": {"type": "array"}}, "required": ["steps"]}
    plan = {"name": "generate_task_steps", "description": "", "parameters": steps}
    two, mail, steps_report, document = await reports(
        node_clients,
        agents,
        [
            {"agent": "two_tools", "turns": ["What is the weather in Rome and what is 12*7?"]},
            {
                "agent": "interrupt",
                "turns": ["send an email to anna@example.com with the subject lunch and the body see you in Oslo"],
                "payload": {"approved": True, "editedArgs": edited},
            },
            {
                "agent": "human_in_the_loop",
                "turns": ["plan a trip to Oslo"],
                "tools": [plan],
                "results": {"generate_task_steps": {"accepted": True, "steps": kept}},
            },
            {"agent": "predictive_state_updates", "turns": ["write a story about Oslo"]},
        ],
    )
    assert {name for name, _ in calls(two)} == {"get_weather", "calculate"}
    answer = two["messages"][-1]["content"]
    weather = next(json.loads(m["content"]) for m in two["messages"] if m["role"] == "tool" and m["content"][0] == "{")
    assert "84" in answer and str(weather["temperature"]) in answer

    assert calls(mail)[0][0] == "send_email" and calls(mail)[0][1]["to"] == "anna@example.com"
    assert [run["outcome"]["type"] for run in mail["runs"]] == ["interrupt", "success"]
    sent = next(message for message in mail["messages"] if message["role"] == "tool")
    assert sent["content"] == "Sent to anna@example.org: Lunch"

    assert calls(steps_report)[0][0] == "generate_task_steps" and len(calls(steps_report)[0][1]["steps"]) >= 3
    assert len(steps_report["runs"]) == 2 and steps_report["messages"][-1]["content"]

    (run,) = document["runs"]
    written = document["state"]["document"]
    assert "Oslo" in written and calls(document) == [("write_document", {"document": written})]
    assert (
        run["events"][: run["events"].index("TOOL_CALL_END")].count("STATE_DELTA") >= 1
    )  # tokens that come together are one
