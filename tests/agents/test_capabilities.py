"""What an agent says of itself is what it can do."""

from __future__ import annotations

from typing import Any

import httpx

from agent_server.agents import Agent, tool
from agent_server.agents.capabilities import capabilities_of
from agent_server.engines.scripted import ScriptedEngine
from agent_server.http.server import BUNDLED
from agent_server.models.model import ChatModel
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.version import version
from tests.server import scripted, serving


@tool
def look(place: str) -> str:
    """Look."""
    return place


@tool(requires_approval=True)
def jump(height: int) -> str:
    """Jump."""
    return str(height)


def said(agent: Agent, model: Any) -> dict[str, Any]:
    return capabilities_of(agent, model).model_dump(mode="json", by_alias=True, exclude_none=True)


async def loaded() -> ChatModel:
    model = ChatModel("bundled", ScriptedEngine(), lambda: PromptBuilder.load(BUNDLED))
    await model.load()
    return model


async def test_the_default_agent_on_a_model_that_thinks_and_calls():
    found = said(Agent(name="default"), await loaded())
    assert found["identity"] == {
        "name": "default", "type": "agent-server", "version": version(), "metadata": {"model": "bundled"},
    }  # fmt: skip
    assert found["transport"]["streaming"] and found["transport"]["resumable"] and found["transport"]["httpBinary"]
    assert found["tools"] == {"supported": True, "parallelCalls": True, "clientProvided": True}
    assert found["reasoning"] == {"supported": True, "streaming": True, "encrypted": False}
    assert found["output"] == {"structuredOutput": False}
    assert found["state"] == {"snapshots": False, "deltas": False, "memory": False, "persistentState": False}
    assert found["multiAgent"] == {"supported": False, "delegation": False, "handoffs": False}
    sent = {kind for kind, taken in found["multimodal"]["input"].items() if taken}
    assert sent == {"pdf", "file"} and not any(found["multimodal"]["output"].values())
    people = found["humanInTheLoop"]
    assert people["supported"] and not people["approvals"] and not people["interrupts"]


async def test_an_agent_with_everything():
    other = Agent(name="other", description="Helps.")
    agent = Agent(name="a", description="All.", tools=[look, jump, other], state={}, reasoning="hidden", max_steps=4)
    found = said(agent, await loaded())
    assert [each["name"] for each in found["tools"]["items"]] == ["look", "jump"]
    assert found["tools"]["items"][0]["parameters"]["required"] == ["place"]
    assert found["reasoning"] == {"supported": False, "streaming": False, "encrypted": True}
    assert found["state"]["snapshots"] and found["state"]["deltas"] and found["state"]["persistentState"]
    assert found["multiAgent"]["subagents"] == [{"name": "other", "description": "Helps."}]
    assert found["execution"] == {"codeExecution": False, "maxIterations": 4}
    people = found["humanInTheLoop"]
    assert people["approvals"] and people["approveWithEdits"] and people["interrupts"]


async def test_what_depends_on_a_model_that_is_not_there_is_left_out():
    model = ChatModel("absent", ScriptedEngine(), lambda: PromptBuilder.load(BUNDLED))
    found = said(Agent(name="default"), model)
    assert "supported" not in found["tools"] and "supported" not in found["reasoning"]


async def test_over_http():
    agents = [Agent(name="mine", tools=[look])]
    async with serving(scripted("ok"), agents=agents) as running, httpx.AsyncClient(base_url=running.url) as client:
        found = (await client.get("/agui/mine/capabilities")).json()
        assert found["identity"]["name"] == "mine" and found["transport"]["pushNotifications"] is False
        assert (await client.get("/agui/nobody/capabilities")).status_code == 404


async def test_what_the_server_may_do_is_told_for_every_agent():
    hosts = {"webhook_hosts": ("hooks.example",), "webhook_secrets": ("whsec_" + "A" * 32,), "run_time_limit": 90}
    serves = serving(scripted("ok"), agents=[Agent(name="mine")], **hosts)
    async with serves as running, httpx.AsyncClient(base_url=running.url) as client:
        alone = (await client.get("/agui/mine/capabilities")).json()
        info = (await client.get("/copilotkit/info")).json()["agents"]["mine"]["capabilities"]
    for found in (alone, info):
        assert found["transport"]["pushNotifications"] is True and found["execution"]["maxExecutionTime"] == 90_000
