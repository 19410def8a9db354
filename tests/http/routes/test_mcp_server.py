"""The agents as tools of an MCP server, asked by the `mcp` SDK's own client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

from agent_server.agents import Agent, ToolContext, tool
from agent_server.engines.scripted import Script
from tests.server import scripted, serving


@tool
def get_weather(place: str) -> str:
    """The weather."""
    return f"Rain in {place}."


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"Paid {amount}."


@tool
def seat(context: ToolContext) -> str:
    """Reserve a seat."""
    schema = {"type": "object", "properties": {"row": {"type": "integer"}}, "required": ["row"]}
    return f"Row {context.ask('Which row?', schema)['row']}."


def call(name: str, arguments: str = "{}") -> Script:
    return Script(text=f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>')


WEATHER = Agent(name="weather", description="Knows the weather.", tools=[get_weather, pay, seat])
MODES = pytest.mark.parametrize("mode", ["auto", "legacy"])


@contextlib.asynccontextmanager
async def client(running, mode: str, key: str = "", **more: Any) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(f"{running.url}/mcp", http_client=http), mode=mode, **more) as mcp,
    ):
        yield mcp


async def accept(context, params) -> ElicitResult:
    accept.asked.append(params)
    content: dict[str, Any] = {"row": 7} if "row" in params.message else {"approved": True}
    return ElicitResult(action="accept", content=content)


@pytest.fixture(autouse=True)
def nothing_asked():
    accept.asked = []


@MODES
async def test_each_agent_is_a_tool_that_answers_tells_its_progress_and_continues(mode):
    told: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    engine = scripted([call("get_weather", '{"place": "Oslo"}'), Script(text="It rains."), Script(text="Still.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running, mode) as mcp:
        (listed,) = (await mcp.list_tools()).tools
        assert (listed.name, listed.description) == ("weather", "Knows the weather.")
        first = await mcp.call_tool("weather", {"message": "Weather?"}, progress_callback=progress)
        assert first.content[0].text == first.structured_content["answer"] == "It rains."
        again = {"message": "And now?", "conversation": first.structured_content["conversation"]}
        second = await mcp.call_tool("weather", again)
        assert second.structured_content == {"answer": "Still.", "conversation": again["conversation"]}
        prompt = running.engine.requests[-1]
    assert "Calls get_weather." in told
    assert prompt.prompt_token_ids


@MODES
async def test_questions_are_handed_on_as_elicitation(mode):
    engine = scripted([call("pay", '{"amount": 5}'), call("seat"), Script(text="All done.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running, mode, elicitation_callback=accept) as mcp:
        result = await mcp.call_tool("weather", {"message": "go"})
    assert result.content[0].text == "All done." and not result.is_error
    first, second = accept.asked
    assert first.message == 'Run pay?\npay {"amount": 5}' and set(first.requested_schema["properties"]) == {"approved"}
    assert second.message == "Which row?" and second.requested_schema["required"] == ["row"]


@MODES
async def test_a_client_that_cannot_ask_gets_nothing_approved(mode):
    engine = scripted([call("pay", '{"amount": 5}'), Script(text="Not paid.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running, mode) as mcp:
        result = await mcp.call_tool("weather", {"message": "go"})
        threads = await running.server.store.threads("", limit=1)
        messages = await running.server.store.messages("", threads[0][0].id)
    assert result.content[0].text == "Not paid."
    (told,) = [each["content"] for each in messages if each["role"] == "tool"]
    assert "did not approve" in told and "cannot ask a person" in told


INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}},
}  # fmt: skip
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


async def test_keys_open_it_and_sessions_and_conversations_are_their_owner_s():
    accepts = {"Accept": "application/json, text/event-stream"}
    async with serving(scripted("Mine."), agents=[WEATHER], api_keys="a:key-of-a,b:key-of-b") as running:
        async with httpx.AsyncClient(base_url=running.url, headers=accepts, timeout=60) as http:
            stranger = await http.post("/mcp", json=INITIALIZE)
            opened = await http.post("/mcp", json=INITIALIZE, headers={"Authorization": "Bearer key-of-a"})
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]}
            owner = await http.post("/mcp", json=LIST, headers={**session, "Authorization": "Bearer key-of-a"})
            other = await http.post("/mcp", json=LIST, headers={**session, "Authorization": "Bearer key-of-b"})
        assert [each.status_code for each in (stranger, opened, owner, other)] == [401, 200, 200, 404]
        async with client(running, "legacy", "key-of-a") as mcp:
            mine = (await mcp.call_tool("weather", {"message": "go"})).structured_content["conversation"]
        assert await running.server.store.messages("a", mine) and not await running.server.store.messages("b", mine)


async def test_what_is_wrong_is_said():
    async with serving(scripted("Hi."), agents=[WEATHER]) as running, client(running, "auto") as mcp:
        with pytest.raises(MCPError, match="Unknown tool 'nobody'"):
            await mcp.call_tool("nobody", {"message": "go"})
        unfit = [await mcp.call_tool("weather", arguments) for arguments in ({}, {"message": ""}, {"message": 3})]
        assert all(each.is_error and "`message` must be a non-empty string" in each.content[0].text for each in unfit)
        running.server.runs.begin_shutdown()
        result = await mcp.call_tool("weather", {"message": "go"})
    assert result.is_error and result.content[0].text


@MODES
async def test_a_call_that_is_cancelled_ends_its_run(mode):
    engine = scripted([Script(text="word " * 200, delay=0.05)])
    async with serving(engine, agents=[WEATHER]) as running, client(running, mode) as mcp:
        task = asyncio.create_task(mcp.call_tool("weather", {"message": "go"}))
        async with asyncio.timeout(20):
            while not running.server.runs.active:
                await asyncio.sleep(0.01)
            task.cancel()
            while running.server.runs.active:
                await asyncio.sleep(0.01)


async def test_a_tenant_cannot_take_all_sessions(monkeypatch):
    monkeypatch.setattr("agent_server.http.routes.mcp_routes.SESSIONS", 8)
    accepts = {"Accept": "application/json, text/event-stream"}
    a, b = ({"Authorization": f"Bearer key-of-{name}"} for name in "ab")
    async with serving(scripted("Mine."), agents=[WEATHER], api_keys="a:key-of-a,b:key-of-b") as running:
        async with httpx.AsyncClient(base_url=running.url, headers=accepts, timeout=60) as http:
            opened = [await http.post("/mcp", json=INITIALIZE, headers=a) for _ in range(6)]
            other = [await http.post("/mcp", json=INITIALIZE, headers=b) for _ in range(2)]
            session = {"Mcp-Session-Id": opened[0].headers["mcp-session-id"], **a}
            used = await http.post("/mcp", json=LIST, headers=session)
            await http.delete("/mcp", headers=session)
            again = await http.post("/mcp", json=INITIALIZE, headers=a)
        async with client(running, "auto", "key-of-a") as mcp:  # the newer protocol has no sessions
            assert (await mcp.list_tools()).tools
    assert [each.status_code for each in opened] == [200, 200, 200, 200, 503, 503]
    assert opened[-1].headers["retry-after"] and "sessions" in opened[-1].text
    assert [each.status_code for each in (*other, used, again)] == [200, 200, 200, 503]


@pytest.mark.parametrize("body, status", [("[" + "[]," * 20_000 + "1]", 413), ("{", 400), ("[" * 500, 400)])
async def test_a_body_is_checked_before_the_sdk_gets_it(body, status):
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    async with (
        serving(scripted("Hi."), agents=[WEATHER]) as running,
        httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as http,
    ):
        answer = await http.post("/mcp", content=body)
        compressed = await http.post("/mcp", content=b"x", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, compressed.status_code) == (status, 415)
