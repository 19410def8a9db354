"""CopilotKit's runtime protocol over HTTP: both endpoint forms, replay, joining, stop, threads, refusals."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from adapters import sse
from agent_server.agents import tool
from agent_server.agents.agent import Agent
from agent_server.engines.scripted import Script
from tests.server import scripted, serving

CALL = '<tool_call>\n{"name": "send", "arguments": {"to": "anna"}}\n</tool_call>'


@tool(requires_approval=True)
def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def sender() -> Agent:
    return Agent(name="sender", tools=[send])


def body(text: str = "Hi", **changes: Any) -> dict[str, Any]:
    messages = [{"id": "u1", "role": "user", "content": text}]
    given = {"threadId": "t1", "runId": "r1", "messages": messages, "tools": [], "context": [], "state": {}}
    return {**given, "forwardedProps": {}, **changes}


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(frame["data"]) for frame in sse.parse([response.content])]


def types_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


async def test_info_lists_the_agents_the_model_and_what_is_possible():
    async with serving(scripted("hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.get("/copilotkit/info")).json()
        single = (await client.post("/copilotkit", json={"method": "info"})).json()
    assert set(info["agents"]) == {"default", "demo"}
    assert info["agents"]["demo"]["capabilities"]["humanInTheLoop"]["approvals"] is True
    assert info["server"]["model"] == "agent-server-demo" and info["server"]["state"] == "ready"
    assert single == info


async def test_info_answers_while_the_model_is_loading():
    slow = scripted("hello", load_seconds=2.0)
    async with serving(slow, ready=False) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.get("/copilotkit/info")).json()
    assert info["server"]["state"] in ("starting", "loading")
    assert "default" in info["agents"]


async def test_a_run_speaks_the_old_dialect_on_both_endpoints():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        plain = await client.post("/copilotkit/agent/default/run", json=body())
        call = {"method": "agent/run", "params": {"agentId": "default"}, "body": body(threadId="t2", runId="r2")}
        single = await client.post("/copilotkit", json=call)
    for response in (plain, single):
        events = events_of(response)
        assert text_of(events) == "Hello."
        assert events[-1]["type"] == "RUN_FINISHED" and "outcome" not in events[-1]
    assert plain.headers["x-accel-buffering"] == "no" and plain.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["run", "connect"])
async def test_an_unknown_agent_is_named(path):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answers = [
            await client.post(f"/copilotkit/agent/nobody/{path}", json=body()),
            await client.post("/copilotkit", json={"method": f"agent/{path}", "params": {"agentId": "nobody"}}),
        ]
    for answer in answers:
        assert answer.status_code == 404
        assert answer.json() == {"error": "Agent not found", "message": "Agent 'nobody' does not exist"}


async def test_connect_gives_nothing_for_an_unknown_thread_and_the_whole_thread_for_a_known_one():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        unknown = await client.post("/copilotkit/agent/default/connect", json=body(messages=[]))
        assert unknown.status_code == 200 and unknown.content == b""
        await client.post("/copilotkit/agent/default/run", json=body())
        replay = events_of(await client.post("/copilotkit/agent/default/connect", json=body(messages=[])))
        kept = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
        listed = (await client.get("/copilotkit/threads/t1/events")).json()["events"]
    assert types_of(replay) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert types_of(listed) == types_of(replay)
    assert replay[1]["messages"] == kept
    assert [message["role"] for message in kept] == ["user", "assistant"]


async def test_connect_joins_a_run_that_is_going_on():
    slow = scripted([Script(text="word " * 40, delay=0.02)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        reading = asyncio.create_task(client.post("/copilotkit/agent/default/run", json=body()))
        while len(running.engine.running) == 0:
            await asyncio.sleep(0.01)
        joined = events_of(await client.post("/copilotkit/agent/default/connect", json=body(messages=[])))
        original = events_of(await reading)
    assert types_of(joined)[:2] == ["RUN_STARTED", "MESSAGES_SNAPSHOT"]
    assert types_of(joined).count("RUN_STARTED") == 1
    assert joined[1]["messages"] == [{"id": "u1", "role": "user", "content": "Hi"}]
    assert joined[2:] == original[1:]


async def test_a_reload_shows_a_message_that_waits_and_stays_for_its_answer():
    """The network was cut: the page's run goes on alone, and what was typed next waits behind it when it is loaded
    anew."""
    script = [Script(text="One. " * 30, delay=0.02), Script(text="Two.")]
    second = [body()["messages"][0], {"id": "u2", "role": "user", "content": "And?"}]
    async with serving(scripted(script), grace=30.0) as running, httpx.AsyncClient(base_url=running.url) as client:
        cut = asyncio.create_task(client.post("/copilotkit/agent/default/run", json=body()))
        while len(running.engine.running) == 0:
            await asyncio.sleep(0.01)
        waits = asyncio.create_task(
            client.post("/copilotkit/agent/default/run", json=body(runId="r2", messages=second))
        )
        while len(await running.server.store.messages("", "t1")) < 2:
            await asyncio.sleep(0.01)
        for left in (cut, waits):
            left.cancel()
        thread = (await client.get("/agui/threads/t1")).json()
        assert (thread["running"], thread["waiting"]) == (["r1", "r2"], ["r2"])
        joined = events_of(await client.post("/copilotkit/agent/default/connect", json=body(messages=[])))
        kept = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
    assert [message["content"] for message in joined[1]["messages"]] == ["Hi", "And?"]
    assert [(each["type"], each["runId"]) for each in joined if each["type"].startswith("RUN_")] == [
        ("RUN_STARTED", "r1"),
        ("RUN_FINISHED", "r1"),
        ("RUN_STARTED", "r2"),
        ("RUN_FINISHED", "r2"),
    ]
    assert {"type": "CUSTOM", "name": "agent_server.waiting", "value": {"behind": ["r1"]}} in joined
    assert [message["content"].strip() for message in kept] == ["Hi", "One. " * 29 + "One.", "And?", "Two."]


async def test_stop_ends_the_run_by_thread_or_by_run_and_frees_the_slot():
    slow = scripted([Script(text="word " * 1000, delay=0.01)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        for stop in ({}, {"runId": "r1"}):
            reading = asyncio.create_task(client.post("/copilotkit/agent/default/run", json=body()))
            while len(running.engine.running) == 0:
                await asyncio.sleep(0.01)
            other = await client.post("/copilotkit/agent/default/stop/t1", json={"runId": "another"})
            assert other.json()["stopped"] is False
            answer = await client.post("/copilotkit/agent/default/stop/t1", json=stop)
            assert answer.json()["stopped"] is True and answer.json()["interrupt"]["code"] == "STOPPED"
            async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
                while running.engine.running:
                    await asyncio.sleep(0.005)
            events = events_of(await reading)
            types = types_of(events)
            assert types[-1] == "RUN_ERROR" and events[-1]["code"] == "cancelled"
            assert types.count("TEXT_MESSAGE_END") == types.count("TEXT_MESSAGE_START")
        nothing = await client.post("/copilotkit/agent/default/stop/t1")
    assert nothing.json() == {"stopped": False, "message": "Nothing is running on this thread."}


async def test_a_stop_that_overtakes_its_run_stops_it_before_it_says_anything():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        early = await client.post("/copilotkit/agent/default/stop/t1", json={"runId": "r1"})
        stopped = events_of(await client.post("/copilotkit/agent/default/run", json=body()))
        kept = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
        again = events_of(await client.post("/copilotkit/agent/default/run", json=body()))
    assert early.json()["stopped"] is False
    assert types_of(stopped) == ["RUN_STARTED", "RUN_ERROR"] and stopped[-1]["code"] == "cancelled"
    assert [message["content"] for message in kept] == ["Hi"]
    assert types_of(again)[-1] == "RUN_FINISHED"


async def test_an_interrupt_is_replayed_and_resumed_under_the_interrupted_runs_own_id():
    scripts = scripted([Script(text=CALL), Script(text="Done.")])
    async with serving(scripts, agents=[sender()]) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = events_of(await client.post("/copilotkit/agent/sender/run", json=body()))
        (asked,) = events[-1]["outcome"]["interrupts"]
        replay = events_of(await client.post("/copilotkit/agent/sender/connect", json=body(messages=[])))
        assert replay[-1]["outcome"]["interrupts"] == [asked]
        payload = {"approved": True, "editedArgs": {"to": "bob"}}
        made_up = {"id": "x", "role": "tool", "toolCallId": asked["toolCallId"], "content": json.dumps(payload)}
        resume = [{"interruptId": asked["id"], "status": "resolved", "payload": payload}]
        messages = [*replay[1]["messages"], made_up]
        again = await client.post("/copilotkit/agent/sender/run", json=body(messages=messages, resume=resume))
        resumed = events_of(again)
        kept = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
        after = events_of(await client.post("/copilotkit/agent/sender/connect", json=body(messages=[])))
    results = [event["content"] for event in resumed if event["type"] == "TOOL_CALL_RESULT"]
    assert results == ["sent to bob"]
    assert [message["content"] for message in kept if message["role"] == "tool"] == ["sent to bob"]
    assert "outcome" not in after[-1]


async def test_threads_are_listed_named_archived_and_deleted():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for number in (1, 2, 3):
            await client.post("/copilotkit/agent/default/run", json=body(threadId=f"t{number}", runId=f"r{number}"))
        page = (await client.get("/copilotkit/threads", params={"agentId": "default", "limit": "2"})).json()
        assert [thread["id"] for thread in page["threads"]] == ["t3", "t2"] and page["nextCursor"]
        rest = (await client.get("/copilotkit/threads", params={"cursor": page["nextCursor"]})).json()
        assert [thread["id"] for thread in rest["threads"]] == ["t1"]
        named = (await client.patch("/copilotkit/threads/t1", json={"name": "Mine"})).json()
        assert named["name"] == "Mine" and named["createdAt"].endswith("Z")
        assert (await client.post("/copilotkit/threads/t2/archive")).json()["archived"] is True
        shown = (await client.get("/copilotkit/threads")).json()["threads"]
        every = (await client.get("/copilotkit/threads", params={"includeArchived": "true"})).json()["threads"]
        assert [thread["id"] for thread in shown] == ["t3", "t1"] and len(every) == 3
        assert (await client.delete("/copilotkit/threads/t1")).status_code == 200
        assert (await client.delete("/copilotkit/threads/t1")).status_code == 404
        assert (await client.get("/copilotkit/threads/t1/messages")).json() == {"messages": []}
        assert (await client.get("/copilotkit/threads/t3/state")).json() == {"state": {}}


async def test_another_tenants_thread_does_not_exist():
    keys = ("one:k1", "two:k2")
    async with serving(scripted("Secret."), api_keys=keys) as running:
        mine = httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer k1"})
        other = httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer k2"})
        async with mine, other:
            await mine.post("/copilotkit/agent/default/run", json=body())
            assert (await other.get("/copilotkit/threads")).json()["threads"] == []
            assert (await other.get("/copilotkit/threads/t1/messages")).json() == {"messages": []}
            replay = await other.post("/copilotkit/agent/default/connect", json=body(messages=[]))
            assert replay.content == b""
            assert (await other.get("/demo/runs/r1/wires")).status_code == 404
            assert (await other.delete("/copilotkit/threads/t1")).status_code == 404


async def test_without_a_key_info_and_the_base_path_answer_the_same_401():
    async with serving(scripted("x"), api_keys=("k",)) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = await client.get("/copilotkit/info")
        single = await client.post("/copilotkit", json={"method": "info"})
        page = await client.get("/")
    assert info.status_code == single.status_code == 401
    assert info.json() == single.json()
    assert page.status_code == 200, "the page itself is public; it asks for the key"


async def test_a_browser_elsewhere_may_ask_when_its_origin_is_allowed():
    origin = "http://localhost:3000"
    preflight = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    server = serving(scripted("x"), api_keys=("k",), cors_origins=(origin,))
    async with server as running, httpx.AsyncClient(base_url=running.url) as client:
        path = "/copilotkit/agent/default/run"
        allowed = await client.options(path, headers=preflight)
        foreign = await client.options(path, headers={**preflight, "origin": "http://evil.example"})
        refused = await client.get("/copilotkit/info", headers={"origin": origin})
    assert allowed.headers["access-control-allow-origin"] == origin
    assert "authorization" in allowed.headers["access-control-allow-headers"].lower()
    assert "access-control-allow-origin" not in foreign.headers
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"method":"dance"}', b'{"method":"agent/run"}'])
async def test_the_single_endpoint_refuses_in_its_own_words(content):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/copilotkit", content=content)
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_request"


@pytest.mark.parametrize("content", [b"", b"[]", b'{"threadId":"t"}', b'"text"', b'{"messages":{}}'])
async def test_a_run_that_is_no_run_is_refused_before_the_stream(content):
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/copilotkit/agent/default/run", content=content)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "message"}


async def test_info_tells_pages_which_agents_write_surfaces():
    agents = [Agent(name="default"), Agent(name="painter", a2ui=True)]
    async with serving(scripted("x"), agents=agents) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.get("/copilotkit/info")).json()
    assert info["a2uiEnabled"] is True and info["a2ui"] == {"enabled": True, "agents": ["painter"]}
