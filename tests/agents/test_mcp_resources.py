"""Resources, prompts and typed results of MCP servers: for the model, and for people over HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resources import TextResource
from mcp_types import CallToolResult, Completion, CompletionArgument, TextContent
from pydantic import BaseModel

from agent_server.agents import Agent, McpServer
from agent_server.agents.guardrails import PatternGuard
from agent_server.agents.mcp import resources, sessions
from agent_server.runs.store import Store
from agent_server.settings import ToolLimits
from agent_server.user import NOBODY
from events.vocabulary import InterruptOutcome, ToolCallResult
from tests.agents.app_server import in_this_process
from tests.agents.harness import House, of
from tests.agents.models import Model, call
from tests.agents.notes_server import notes_server
from tests.server import scripted, serving


class Entry(BaseModel):
    said: str


NOTES = McpServer(name="notes", command=("notes",))


async def test_the_model_reads_and_lists_resources_with_a_tool(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    uris = ("notes://today", "notes://day/monday", "notes://dot", "notes://pdf", "notes://none")
    model = Model(
        [call("read_resource_notes") + "".join(call("read_resource_notes", uri=uri) for uri in uris), "Done."]
    )
    async with House(Agent(name="default", mcp_servers=[NOTES]), model) as house:
        results = [each.content for each in of(await house.ask("go"), ToolCallResult)]
        (offered,) = [
            declared
            for declared, _, _ in (await house.served["default"]._mcp["default"].offer(ToolLimits(), NOBODY)).tools
            if declared.name == "read_resource_notes"
        ]
    assert "notes://today (today: What is due.)" in offered.description
    assert "notes://day/{day} (template)" in offered.description and "ui://" not in offered.description
    listed, today, monday, dot, pdf, none = results
    assert listed.splitlines()[0] == "notes://today: today: What is due."
    assert (today, monday) == ("Buy milk.", "On monday: rest.")
    assert dot == [{"type": "image", "source": {"type": "data", "value": "AAE=", "mimeType": "image/png"}}]
    assert pdf == "[resource notes://pdf: 3 bytes of application/pdf]"
    assert none.startswith("Error: notes://none was refused")


async def test_what_is_read_is_cut_where_any_result_is(monkeypatch):
    server = MCPServer("notes")
    server.add_resource(TextResource(uri="notes://long", name="long", text="x" * 5000))
    in_this_process(monkeypatch, notes=server)
    model = Model([call("read_resource_notes", uri="notes://long"), "Done."])
    async with House(Agent(name="default", mcp_servers=[NOTES]), model, limits=ToolLimits(characters=1000)) as house:
        (result,) = of(await house.ask("go"), ToolCallResult)
    assert result.content == "x" * 1000 + "\n[cut: 4000 more characters]"


async def test_a_person_is_asked_before_a_resource_is_read_where_every_call_asks(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    asking = McpServer(name="notes", command=("notes",), requires_approval=True)
    model = Model([call("read_resource_notes", uri="notes://today"), "Read."])
    async with House(Agent(name="default", mcp_servers=[asking]), model, Store("sqlite://")) as house:
        ended = (await house.ask("go"))[-1]
        assert isinstance(ended.outcome, InterruptOutcome)
        (asked,) = ended.outcome.interrupts
        answer = {"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}}
        assert of(await house.resume(answer), ToolCallResult)[0].content == "Buy milk."


@pytest.mark.parametrize("settings", [{"only": frozenset({"count"})}, {"without": frozenset({"read_resource_notes"})}])
async def test_the_reading_tool_is_chosen_as_other_tools_are(monkeypatch, settings):
    in_this_process(monkeypatch, notes=notes_server())
    model = Model(["Hello."])
    chosen = McpServer(name="notes", command=("notes",), **settings)
    async with House(Agent(name="default", mcp_servers=[chosen]), model) as house:
        await house.ask("go")
    assert "count" in model.told[0]["tools"] and "read_resource_notes" not in model.told[0]["tools"]


async def test_resources_that_changed_are_listed_from_the_next_run_on(monkeypatch):
    monkeypatch.setattr(sessions, "RELIST_SECONDS", 0.0)
    in_this_process(monkeypatch, notes=notes_server())
    model = Model([call("grow"), "Grown.", call("read_resource_notes"), "Done."])
    async with House(Agent(name="default", mcp_servers=[NOTES]), model) as house:
        await house.ask("grow")
        (result,) = of(await house.ask("list"), ToolCallResult)
    assert "notes://more: more" in result.content


async def test_a_result_that_fits_its_output_schema_is_handed_to_clients_as_data(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    model = Model([call("count", text="one two"), "Two."])
    async with House(Agent(name="default", mcp_servers=[NOTES]), model) as house:
        (result,) = of(await house.ask("go"), ToolCallResult)
        (message,) = [each for each in house.messages if each["role"] == "tool"]
    assert result.metadata == message["metadata"] == {"structuredContent": {"words": 2}}
    assert json.loads(result.content) == {"words": 2}


async def test_what_a_guard_withholds_of_a_result_is_withheld_of_its_data_too(monkeypatch):
    server = MCPServer("notes")

    @server.tool()
    def diary() -> Annotated[CallToolResult, Entry]:
        """What nobody may read."""
        told = TextContent(type="text", text="Nothing.")
        return CallToolResult(content=[told], structured_content={"said": "blue heron"})

    in_this_process(monkeypatch, notes=server)
    guard = PatternGuard("heron", phrases=["blue heron"], on=["results"])
    model = Model([call("diary"), "Done."])
    async with House(Agent(name="default", mcp_servers=[NOTES], guards=[guard]), model) as house:
        (result,) = of(await house.ask("go"), ToolCallResult)
    assert result.metadata == {"isError": True} and "Nothing" not in result.content


async def test_prompts_and_resources_come_over_http_as_messages_and_content(tmp_path, monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    agent = Agent(name="default", mcp_servers=[NOTES])
    async with (
        serving(scripted("Hello."), agents=[agent]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        asked = {"server": "notes", "name": "review", "arguments": {"code": "x = 1"}}
        filled = (await client.post("/agui/mcp/prompt", json=asked)).json()
        (listed,) = (await client.get("/agui/mcp")).json()["servers"]
        read = await client.post("/agui/mcp/resource", json={"server": "notes", "uri": "notes://today"})
        wrong = [
            await client.post("/agui/mcp/prompt", json={**asked, **more})
            for more in ({"server": "none"}, {"name": "none"}, {"arguments": {}}, {"arguments": {"code": 1}})
        ]
        unread = await client.post("/agui/mcp/resource", json={"server": "notes", "uri": "notes://none"})
    assert [each["uri"] for each in listed["resources"]] == ["notes://today", "notes://dot", "notes://pdf"]
    assert [each["uriTemplate"] for each in listed["resourceTemplates"]] == ["notes://day/{day}"]
    prompt, plan = listed["prompts"]
    assert (prompt["name"], prompt["description"], plan["name"]) == ("review", "Review some code.", "plan")
    assert [(each["name"], each["required"]) for each in prompt["arguments"]] == [("code", True), ("style", False)]
    assert listed["tools"][0]["outputSchema"]["required"] == ["words"]
    assert [{key: each[key] for key in ("role", "content")} for each in filled["messages"]] == [
        {"role": "user", "content": "Review this, short:\n\nx = 1"},
        {"role": "assistant", "content": "Which part?"},
        {
            "role": "user",
            "content": [{"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}}],
        },
    ]
    assert listed["completions"] is True
    assert listed["resourceTemplates"][0]["variables"] == [{"name": "day", "required": True}]
    assert read.json() == {"uri": "notes://today", "content": [{"type": "text", "text": "Buy milk."}]}
    assert [each.status_code for each in wrong] == [404, 404, 400, 400]
    assert "needs code" in wrong[2].text and "The body must be" in wrong[3].text
    assert unread.status_code == 400 and "refused" in unread.text


async def test_resources_that_the_settings_leave_out_are_neither_listed_nor_read_over_http(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    agent = Agent(name="default", mcp_servers=[McpServer(name="notes", command=("notes",), only=frozenset({"count"}))])
    async with (
        serving(scripted("Hello."), agents=[agent]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        read = await client.post("/agui/mcp/resource", json={"server": "notes", "uri": "notes://today"})
        await client.post("/agui/mcp/prompt", json={"server": "notes", "name": "plan", "arguments": {"day": "Monday"}})
        (listed,) = (await client.get("/agui/mcp")).json()["servers"]
    assert read.status_code == 403 and "Buy milk" not in read.text
    assert listed["resources"] == listed["resourceTemplates"] == [] and len(listed["prompts"]) == 2


async def test_a_template_is_filled_in_and_read(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    async with (
        serving(scripted("Hello."), agents=[Agent(name="default", mcp_servers=[NOTES])]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        asked = {"server": "notes", "uri": "notes://day/{day}"}
        read = await client.post("/agui/mcp/resource", json={**asked, "arguments": {"day": "a b"}})
        missing = await client.post("/agui/mcp/resource", json={**asked, "arguments": {"night": "monday"}})
        broken = await client.post(
            "/agui/mcp/resource", json={"server": "notes", "uri": "notes://{day", "arguments": {"day": "monday"}}
        )
    assert read.json() == {"uri": "notes://day/a%20b", "content": [{"type": "text", "text": "On a b: rest."}]}
    assert missing.status_code == 400 and "The template needs day." in missing.text
    assert broken.status_code == 400 and "cannot be filled in" in broken.text


async def test_a_server_suggests_values_for_arguments(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    async with (
        serving(scripted("Hello."), agents=[Agent(name="default", mcp_servers=[NOTES])]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):

        async def complete(**body: object) -> httpx.Response:
            return await client.post("/agui/mcp/complete", json={"server": "notes", "value": "", **body})

        styles = await complete(prompt="review", argument="style", value="l", arguments={"style": "l", "code": ""})
        fewer = await complete(prompt="review", argument="style", arguments={"code": "x = 1"})
        days = await complete(uriTemplate="notes://day/{day}", argument="day", value="tu")
        codes = (await complete(prompt="review", argument="code")).json()
        unknown = [
            await complete(server="none", prompt="review", argument="style"),
            await complete(prompt="none", argument="style"),
            await complete(prompt="review", argument="none"),
            await complete(uriTemplate="notes://today", argument="day"),
        ]
        wrong = [
            await complete(argument="style"),
            await complete(argument="day", prompt="plan", uriTemplate="notes://day/{day}"),
            await complete(prompt="plan", argument="day", value=1),
        ]
    assert styles.json() == {"values": ["long", "loud"], "total": None, "hasMore": False}
    assert fewer.json()["values"] == ["long", "loud"]
    assert days.json()["values"] == ["tuesday"]
    assert (len(codes["values"]), codes["total"], codes["hasMore"]) == (100, 500, True)
    assert [each.status_code for each in unknown] == [404, 404, 404, 404]
    assert "no argument 'none'" in unknown[2].text and "no template" in unknown[3].text
    assert [each.status_code for each in wrong] == [400, 400, 400]
    assert all("The body must be" in each.text for each in wrong)


async def test_suggestions_of_a_server_that_has_none_or_hangs_or_fails(monkeypatch):
    plain, hanging = MCPServer("plain"), MCPServer("hanging")
    for server in (plain, hanging):

        @server.prompt()
        def plan(day: str) -> str:
            return f"What is to be done on {day}?"

    @hanging.completion()
    async def complete(ref: object, argument: CompletionArgument, context: object) -> Completion:
        if argument.value == "fail":
            raise ValueError("a fault")
        await asyncio.Event().wait()
        return Completion(values=[])

    in_this_process(monkeypatch, plain=plain, hanging=hanging)
    monkeypatch.setattr(resources, "COMPLETION_SECONDS", 0.5)
    servers = [McpServer(name=name, command=(name,)) for name in ("plain", "hanging")]
    async with (
        serving(scripted("Hello."), agents=[Agent(name="default", mcp_servers=servers)]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        typed = {"prompt": "plan", "argument": "day", "value": "m"}
        none = await client.post("/agui/mcp/complete", json={**typed, "server": "plain"})
        late = await client.post("/agui/mcp/complete", json={**typed, "server": "hanging"})
        failed = await client.post("/agui/mcp/complete", json={**typed, "server": "hanging", "value": "fail"})
        filled = await client.post(
            "/agui/mcp/prompt", json={"server": "hanging", "name": "plan", "arguments": {"day": "monday"}}
        )
        listed = {each["name"]: each["completions"] for each in (await client.get("/agui/mcp")).json()["servers"]}
    assert (none.status_code, late.status_code, failed.status_code, filled.status_code) == (404, 504, 400, 200)
    assert "The MCP server plain does not suggest values for arguments." in none.text
    assert "The MCP server hanging did not answer within 0.5 s." in late.text
    assert "Error completing argument day" in failed.text
    assert listed == {"plain": False, "hanging": True}


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("too many suggestions", {"values": [str(number) for number in range(100)], "total": None, "hasMore": True}),
        ("suggestions of wrong types", {"values": ["a"], "total": None, "hasMore": False}),
        ("suggestions as a text", {"values": [], "total": None, "hasMore": False}),
        ("no suggestions", {"values": [], "total": None, "hasMore": False}),
    ],
)
async def test_suggestions_that_the_protocol_forbids_are_left_out(kind, answer):
    script = str(Path(__file__).with_name("bad_mcp_server.py"))
    bad = McpServer(name="bad", command=(sys.executable, script, kind))
    async with (
        serving(scripted("Hello."), agents=[Agent(name="default", mcp_servers=[bad])]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        typed = {"server": "bad", "prompt": "plan", "argument": "day", "value": ""}
        completed = await client.post("/agui/mcp/complete", json=typed)
    assert completed.json() == answer


async def test_templates_that_the_settings_leave_out_are_not_completed(monkeypatch):
    in_this_process(monkeypatch, notes=notes_server())
    agent = Agent(name="default", mcp_servers=[McpServer(name="notes", command=("notes",), only=frozenset({"count"}))])
    async with (
        serving(scripted("Hello."), agents=[agent]) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        typed = {"server": "notes", "argument": "day", "value": ""}
        template = await client.post("/agui/mcp/complete", json={**typed, "uriTemplate": "notes://day/{day}"})
        prompt = await client.post("/agui/mcp/complete", json={**typed, "prompt": "plan"})
    assert template.status_code == 403 and "monday" not in template.text
    assert prompt.json()["values"] == ["monday", "tuesday", "wednesday"]
