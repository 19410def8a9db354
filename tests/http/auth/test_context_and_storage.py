"""A key's context and a tenant's storage: what is refused, and what goes on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from agent_server import Agent, McpServer, tool
from agent_server.engines.scripted import Script
from tests.agents.app_server import app_server, in_this_process
from tests.http.auth.test_quotas import asking_as, key
from tests.http.routes.test_app_answers import proxied
from tests.server import scripted

LONG = [{"role": "user", "content": "word " * 200}]


async def test_a_prompt_and_its_answer_stay_within_the_context_of_their_key(tmp_path: Path):
    engine = scripted([Script(text="x" * 4000)])
    async with asking_as(tmp_path, engine, key("small", context=80), key("free")) as ask:
        whole = (await ask("small", max_tokens=None)).json()
        assert whole["usage"]["total_tokens"] == 80 and whole["choices"][0]["finish_reason"] == "length"
        refused = await ask("small", messages=LONG)
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
        assert "> 80 maximum, this key's limit on prompt and answer together." in refused.text
        assert (await ask("small", max_tokens=80)).json()["usage"]["total_tokens"] == 80
        messages = await ask("small", path="/v1/messages", messages=LONG, model="default")
        assert messages.status_code == 400 and "this key's limit" in messages.text
        assert (await ask("free", messages=LONG)).status_code == 200


async def test_a_tenant_s_context_holds_for_keys_without_one_or_with_more(tmp_path: Path):
    keys = key("free"), key("more", context=4000), key("less", context=60)
    async with asking_as(tmp_path, scripted("x" * 4000), *keys, tenant_context=80) as ask:
        used = [(await ask(name, max_tokens=None)).json()["usage"]["total_tokens"] for name in ("free", "more", "less")]
    assert used == [80, 80, 60]


async def test_every_turn_of_an_agent_is_held_to_the_context(tmp_path: Path):
    @tool
    def read() -> str:
        """Read much."""
        return "word " * 400

    call = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    engine = scripted([Script(text=call), Script(text="Read.")])
    agent = Agent(name="default", tools=[read])
    async with asking_as(tmp_path, engine, key("small", context=400), agents=[agent]) as ask:
        message = {"id": "m", "role": "user", "content": "Read."}
        body = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": [message]}
        said = (await ask("small", path="/agui", **body)).text
    assert "TOOL_CALL_RESULT" in said, said
    assert "context_length_exceeded" in said and "this key's limit" in said and len(engine.requests) == 1


@pytest.mark.parametrize("most", [5, 1000, None])
async def test_a_running_answer_is_not_lengthened_beyond_the_context(tmp_path: Path, most: int | None):
    engine = scripted([Script(text="x" * 400, delay=0.02)])
    async with asking_as(tmp_path, engine, key("small", context=80)) as ask:
        message = {"id": "m", "role": "user", "content": "Hi"}
        body = {"threadId": "t", "protocolVersion": "1.0", "messages": [message], "runId": "r", "max_tokens": None}
        going = asyncio.create_task(ask("small", path="/agui", **body))
        while not engine.requests:
            await asyncio.sleep(0.01)
        async with httpx.AsyncClient(headers={"x-api-key": "small"}) as client:
            answer = await client.post(f"{ask.url}/agui/runs/r/modify", json={"max_tokens": most})
        events = (await going).text
    assert answer.status_code == 202, answer.text
    prompt = len(engine.requests[0].prompt_token_ids)
    assert f'"outputTokens":{most if most == 5 else 80 - prompt}' in events


async def test_a_tenant_that_keeps_too_much_starts_nothing_that_is_stored(tmp_path: Path):
    keys = key("a"), key("b", "other")

    async def agui(ask: Any, name: str, thread: str) -> httpx.Response:
        message = {"id": f"m-{thread}", "role": "user", "content": "word " * 400}
        body = {"threadId": thread, "runId": f"r-{thread}", "protocolVersion": "1.0", "messages": [message]}
        return await ask(name, path="/agui", **body)

    async with asking_as(tmp_path, None, *keys, tenant_storage_bytes=1500) as ask:
        assert "RUN_FINISHED" in (await agui(ask, "a", "t1")).text
        # what is known may be some seconds old; a removal has it measured again
        async with httpx.AsyncClient(base_url=ask.url, headers={"x-api-key": "a"}) as client:
            await client.delete("/agui/threads/none")
            ask_again = {"model": "default", "input": "Hi"}
            first = await client.post("/v1/responses", json=ask_again)
            await client.delete(f"/v1/responses/{first.json().get('id')}")
            refused = await agui(ask, "a", "t2")
            assert refused.status_code == 403, refused.text
            assert "1500 are allowed" in refused.text and "Delete threads" in refused.text
            assert (await client.post("/v1/responses", json=ask_again)).status_code == 403
            assert (await client.post("/v1/responses", json={**ask_again, "store": False})).status_code == 200
            assert "RUN_FINISHED" in (await agui(ask, "b", "t1")).text
            assert (await client.get("/agui/threads/t1")).status_code == 200
            assert (await client.delete("/agui/threads/t1")).status_code in (200, 204)
            assert "RUN_FINISHED" in (await agui(ask, "a", "t3")).text


async def test_requests_of_apps_on_a_websocket_are_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    in_this_process(monkeypatch, sky=app_server())
    agent = Agent(name="default", mcp_servers=[McpServer(name="sky", command=("sky",))])
    async with asking_as(tmp_path, None, key("small", requests_per_minute=1), agents=[agent]) as ask:
        address = ask.url.replace("http", "ws") + "/agui/ws?api_key=small"
        said: list[Any] = []
        async with asyncio.timeout(20), websockets.connect(address) as socket:
            for ends in ("RUN_FINISHED", "RUN_ERROR"):
                await socket.send(json.dumps({"type": "run", "input": proxied()}))
                while not said or said[-1]["type"] != ends:
                    said.append(json.loads(await socket.recv()))
                    assert said[-1]["type"] in ("RUN_STARTED", ends)
    assert said[-1]["code"] == "rate_limited"
