"""Every example agent, driven as its page of the AG-UI Dojo drives it, by the real clients of both dialects.

Each conversation must pass without a rejected event and without a word on the client's console.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_server.agents import load_agents
from agent_server.engines.scripted import Script
from tests.agents.models import call
from tests.conformance.node import node_clients as node_clients
from tests.server import scripted, serving

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"
CLIENTS = ["1.0.0", "0.0.59"]
Reports = list[tuple[str, dict[str, Any]]]


def page_tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": name, "parameters": {"type": "object", "properties": properties}}


async def drive(node_clients, file: str, scripts: list[str], turns: list[str], **entry: Any) -> Reports:
    """The same conversation with an example's agent by both clients; their reports, once they are clean."""
    agents = load_agents([str(EXAMPLES / f"{file}.py")])
    name = entry.pop("agent", file)
    async with serving(scripted([Script(text=text) for text in scripts]), agents=agents) as running:
        sent = {"url": f"{running.url}/agui/{name}", "turns": turns, **entry}
        both = [{**sent, "client": client} for client in CLIENTS]
        reports = await asyncio.to_thread(node_clients.run, "converse.mjs", both)
    for report in reports:
        assert report["problems"] == []
        assert [run["error"] for run in report["runs"]] == [None] * len(report["runs"])
        assert all(run["failed"] is None for run in report["runs"]), report["runs"]
    return list(zip(CLIENTS, reports, strict=True))


def roles(report: dict[str, Any]) -> list[str]:
    return [message["role"] for message in report["messages"] if message["role"] != "activity"]


def last(report: dict[str, Any]) -> str:
    return report["messages"][-1]["content"]


async def test_agentic_chat(node_clients):
    scripts = [
        call("get_weather", location="Oslo"), "It is nice in Oslo.",
        call("change_background", background="teal"), "Teal it is.",
    ]  # fmt: skip
    for _client, report in await drive(
        node_clients, "agentic_chat", scripts, ["Weather in Oslo?", "Make it teal"],
        tools=[page_tool("change_background", background={"type": "string"})], results={"change_background": "done"},
    ):  # fmt: skip
        assert roles(report) == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
        assert json.loads(report["messages"][2]["content"])["city"] == "Oslo"
        assert len(report["runs"]) == 3 and last(report) == "Teal it is."


async def test_backend_tool_rendering(node_clients):
    for _client, report in await drive(
        node_clients, "backend_tool_rendering", [call("get_weather", location="Rome"), "Mild."], ["Rome?"]
    ):
        result = next(message for message in report["messages"] if message["role"] == "tool")
        assert set(json.loads(result["content"])) == {"city", "conditions", "temperature", "humidity", "wind"}
        (run,) = report["runs"]
        assert run["counts"]["TOOL_CALL_RESULT"] == 1 and run["counts"]["ACTIVITY_SNAPSHOT"] >= 1


async def test_human_in_the_loop(node_clients):
    steps = [{"description": "Pack", "status": "enabled"}, {"description": "Fly", "status": "enabled"}]
    for client, report in await drive(
        node_clients, "human_in_the_loop", [call("generate_task_steps", steps=steps), "Just packing."], ["To Mars!"],
        tools=[page_tool("generate_task_steps", steps={"type": "array"})],
        results={"generate_task_steps": {"accepted": True, "steps": steps[:1]}},
    ):  # fmt: skip
        first, second = report["runs"]
        assert first["counts"]["TOOL_CALL_ARGS"] > 3 and "TOOL_CALL_RESULT" not in first["counts"]
        if client == "1.0.0":
            assert len(first["outcome"]["pendingToolCallIds"]) == 1
        assert last(report) == "Just packing." and second["counts"]["TEXT_MESSAGE_START"] == 1


async def test_interrupt_with_an_approval_and_edits(node_clients):
    edited = {"to": "bo@example.org", "subject": "Hi", "body": "Changed"}
    for _client, report in await drive(
        node_clients, "interrupt", [call("send_email", to="al@example.org", subject="Hi", body="x"), "Sent."], ["Mail Al"],
        payload={"approved": True, "editedArgs": edited},
    ):  # fmt: skip
        first, second = report["runs"]
        assert first["outcome"]["type"] == "interrupt"
        assert first["events"][-3:] == ["STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
        assert second["counts"]["TOOL_CALL_RESULT"] == 1 and "TOOL_CALL_START" not in second["counts"]
        assert roles(report) == ["user", "assistant", "tool", "assistant"]
        assert report["messages"][2]["content"] == "Sent to bo@example.org: Hi"


async def test_interrupt_with_a_question(node_clients):
    for _client, report in await drive(
        node_clients, "interrupt", [call("schedule_meeting", topic="tea"), "See you."], ["Meet about tea"],
        payload={"slot": "Friday 9:30"},
    ):  # fmt: skip
        assert report["messages"][2]["content"] == "The meeting about tea is on Friday 9:30."


async def test_agentic_generative_ui(node_clients):
    for _client, report in await drive(
        node_clients,
        "agentic_generative_ui",
        [call("work_through", steps=["Dig", "Plant"]), "Done."],
        ["A tree"],
    ):
        (run,) = report["runs"]
        assert run["counts"]["STATE_DELTA"] == 3 and run["events"][1] == "STATE_SNAPSHOT"
        assert report["state"] == {"steps": [{"description": d, "status": "completed"} for d in ("Dig", "Plant")]}


async def test_tool_based_generative_ui(node_clients):
    haiku = {"japanese": ["古池や"], "english": ["An old pond"]}
    for _client, report in await drive(
        node_clients, "tool_based_generative_ui", [call("generate_haiku", **haiku), "There."], ["A haiku"],
        tools=[page_tool("generate_haiku", japanese={"type": "array"}, english={"type": "array"})],
        results={"generate_haiku": "shown"},
    ):  # fmt: skip
        assert json.loads(report["messages"][1]["toolCalls"][0]["function"]["arguments"]) == haiku


async def test_shared_state(node_clients):
    recipe = {"title": "Stew", "ingredients": [{"name": "Carrot"}], "instructions": ["Chop"]}
    for _client, report in await drive(
        node_clients, "shared_state", [call("generate_recipe", recipe=recipe), "More carrots."], ["Better!"],
        state={"recipe": {"title": "Soup", "cooking_time": "15 min"}},
    ):  # fmt: skip
        (run,) = report["runs"]
        assert run["events"][1] == "STATE_SNAPSHOT"
        assert (
            report["state"]["recipe"]["title"] == "Stew"
            and report["state"]["recipe"]["ingredients"][0]["name"] == "Carrot"
        )


async def test_predictive_state_updates(node_clients):
    document = "# The sea\n\n" + "It is wide and blue. " * 20
    for _client, report in await drive(
        node_clients,
        "predictive_state_updates",
        [call("write_document", document=document), "Written."],
        ["Write"],
    ):
        (run,) = report["runs"]
        assert run["counts"]["CUSTOM"] == 1 and run["events"].index("CUSTOM") < run["events"].index("TOOL_CALL_START")
        end = run["events"].index("TOOL_CALL_END")
        assert run["events"][:end].count("STATE_DELTA") >= 3
        assert report["state"]["document"] == document


@pytest.mark.parametrize("agent", ["reasoning", "reasoning_summary", "reasoning_hidden"])
async def test_reasoning(node_clients, agent):
    thought = "<think>\nSeven is a secret.\n</think>\n\n"
    scripts = {
        "reasoning": [thought + "Yes.", "Again."],
        "reasoning_summary": [thought + "Yes.", "A number.", "Again."],
        "reasoning_hidden": [thought + "Yes.", "Again."],
    }[agent]
    for _client, report in await drive(node_clients, "reasoning", scripts, ["Well?", "And?"], agent=agent):
        reasoning = report["messages"][1]
        shown = {"reasoning": "Seven is a secret.", "reasoning_summary": "A number.", "reasoning_hidden": ""}[agent]
        assert reasoning["role"] == "reasoning" and reasoning["content"].strip() == shown
        assert bool(reasoning.get("encryptedValue")) == (agent != "reasoning")
        assert "warnings" not in report["runs"][1]["metadata"]
        assert last(report) == "Again."


async def test_multimodal(node_clients):
    for _client, report in await drive(node_clients, "multimodal", ["I cannot see it."], ["What is this?"]):
        assert last(report) == "I cannot see it."


async def test_multimodal_parts_that_the_model_does_not_take_are_refused_and_nothing_is_kept():
    agents = load_agents([str(EXAMPLES / "multimodal.py")])
    source = {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}
    content = [{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]
    body = {
        "threadId": "t",
        "runId": "r",
        "protocolVersion": "1.0",
        "messages": [{"id": "u", "role": "user", "content": content}],
    }
    engine = scripted("I cannot see it.")
    async with serving(engine, agents=agents) as running, httpx.AsyncClient(base_url=running.url) as client:
        response = await client.post("/agui/multimodal", json=body)
        thread = await client.get("/agui/threads/t")
    assert (response.status_code, thread.status_code) == (400, 404)
    assert "messages.0.content.1 is image content; this model takes text" in response.text


async def test_subagents(node_clients):
    scripts = [
        call("meteorologist", task="Oslo"), call("get_weather", location="Oslo"), "Sunny in Oslo.", "They say sunny.",
    ]  # fmt: skip
    for client, report in await drive(node_clients, "subagents", scripts, ["Oslo?"]):
        if client == "1.0.0":
            assert report["runs"][0]["counts"]["SUBAGENT_STARTED"] == 1
        assert "They say sunny." in [message.get("content") for message in report["messages"]]


async def test_a2ui_surface(node_clients):
    reports = await drive(node_clients, "a2ui_surface", [call("find_table", guests=2), "Choose one."], ["a table"])
    for _, report in reports:
        (activity,) = [message for message in report["messages"] if message["role"] == "activity"]
        assert activity["activityType"] == "a2ui-surface"
        assert [*activity["content"]["a2ui_operations"][0]] == ["version", "createSurface"]
        assert roles(report) == ["user", "assistant", "tool", "assistant"] and last(report) == "Choose one."
