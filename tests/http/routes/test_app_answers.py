"""The way back of MCP apps over HTTP and WebSocket: no run, no thread, no lock, whatever the endpoint."""

from __future__ import annotations

import json
import threading

import httpx
import pytest
from websockets.asyncio.client import connect

from agent_server.agents import Agent, McpServer, tool
from agent_server.engines.scripted import Script
from agent_server.http.routes import http
from tests.agents.app_server import PAGE, URI, app_server, in_this_process
from tests.http.routes.test_copilotkit import body, events_of, types_of
from tests.server import scripted, serving

READ = {"serverHash": "x", "serverId": "sky", "method": "resources/read", "params": {"uri": URI}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
SEND = '<tool_call>\n{"name": "send", "arguments": {}}\n</tool_call>'
ENDPOINTS = {
    "/copilotkit/agent/default/run": lambda given: given,
    "/copilotkit": lambda given: {"method": "agent/run", "params": {"agentId": "default"}, "body": given},
    "/agui": lambda given: {**given, "protocolVersion": "1.0"},
}


@tool(requires_approval=True)
def send() -> str:
    """Send."""
    return "sent"


@pytest.fixture
def sky(monkeypatch) -> Agent:
    server = app_server()
    in_this_process(monkeypatch, sky=server)
    return Agent(name="default", tools=[send], mcp_servers=[McpServer(name="sky", command=("sky",))])


def proxied(**changes) -> dict:
    return body(forwardedProps={"__proxiedMCPRequest": {**READ, **changes}}, runId="proxied")


async def test_a_page_is_read_on_every_endpoint_and_leaves_no_trace(sky):
    engine = scripted("x")
    async with serving(engine, agents=[sky]) as running, httpx.AsyncClient(base_url=running.url) as client:
        answers = [await client.post(path, json=make(proxied())) for path, make in ENDPOINTS.items()]
        async with connect(f"{running.url.replace('http', 'ws')}/agui/ws") as socket:
            await socket.send(json.dumps({"type": "run", "input": proxied()}))
            said = [json.loads(await socket.recv()) for _ in range(2)]
            await socket.send(json.dumps({"type": "run", "input": proxied(method="ping")}))
            assert json.loads(await socket.recv())["type"] == "RUN_STARTED"
        threads = (await client.get("/copilotkit/threads")).json()
    for events in [*map(events_of, answers), said]:
        assert types_of(events) == ["RUN_STARTED", "RUN_FINISHED"]
        assert events[1]["result"]["contents"][0]["text"] == PAGE
        assert (events[1]["threadId"], events[1]["runId"]) == ("t1", "proxied")
    assert threads["threads"] == [] and not engine.requests


async def test_a_page_does_not_wait_for_the_thread_s_run_nor_for_its_interrupts(sky):
    engine = scripted([Script(text=CALL), Script(text=SEND)])
    async with serving(engine, agents=[sky]) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = events_of(await client.post("/copilotkit/agent/default/run", json=body()))
        assert events[-1]["outcome"]["type"] == "interrupt"
        before = (await client.get("/copilotkit/threads/t1/messages")).json()
        answer = events_of(await client.post("/copilotkit/agent/default/run", json=proxied()))
        runs = (await client.get("/agui/threads/t1/runs")).json()["runs"]
        replayed = events_of(await client.post("/copilotkit/agent/default/connect", json=body()))
        assert (await client.get("/copilotkit/threads/t1/messages")).json() == before
    assert "contents" in answer[-1]["result"] and len(runs) == 1
    (shown,) = [each for each in replayed[1]["messages"] if each["role"] == "activity"]
    assert shown["content"]["resourceUri"] == URI
    assert shown["id"] in {each["messageId"] for each in events if each["type"] == "ACTIVITY_SNAPSHOT"}
    assert replayed[-1]["outcome"]["type"] == "interrupt"


async def test_a_page_is_answered_where_every_place_for_runs_is_taken(sky):
    engine = scripted([Script(text="x " * 50, delay=60)])
    async with (
        serving(engine, agents=[sky], max_runs=1) as running,
        httpx.AsyncClient(base_url=running.url) as client,
        client.stream("POST", "/agui", json=ENDPOINTS["/agui"](body())) as going,
    ):
        assert going.status_code == 200
        answers = [await client.post(path, json=make(proxied())) for path, make in ENDPOINTS.items()]
        runs = [await client.post(path, json=make(body(runId="r2", threadId="t2"))) for path, make in ENDPOINTS.items()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agent_server.http.routes.http.app_body_readers", threading.BoundedSemaphore(1))
            assert http.app_body_readers.acquire(blocking=False)  # one such body is being read already
            full = await client.post("/agui", json=ENDPOINTS["/agui"](proxied()))
        await running.server.runs.on_thread("t1")[0].cancel()
    assert all("contents" in events_of(answer)[-1]["result"] for answer in answers)
    assert [answer.status_code for answer in runs] == [503] * 3 and full.status_code == 503


async def test_a_request_that_is_none_is_refused_before_anything_runs(sky):
    engine = scripted("x")
    async with serving(engine, agents=[sky]) as running, httpx.AsyncClient(base_url=running.url) as client:
        wrong = await client.post("/agui", json=body(forwardedProps={"__proxiedMCPRequest": "read"}))
        nameless = await client.post("/agui", json=proxied(serverId=None, serverHash=None))
        nobody = await client.post("/agui/nobody", json=proxied())
        elsewhere = events_of(await client.post("/agui", json=proxied(serverId="http://169.254.169.254/mcp")))
    assert wrong.status_code == 400 and "must be an object" in wrong.text
    assert nameless.status_code == 400 and "serverId and method" in nameless.text
    assert nobody.status_code == 404
    assert "no MCP server with that id" in elsewhere[-1]["result"]["error"] and not engine.requests
