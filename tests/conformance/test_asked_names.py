"""An answer repeats the name of the model that was asked for: clients drop the thinking of an answer of another name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from agent_server.agents import Agent
from tests.server import Running, scripted, serving

HELLO: Any = [{"role": "user", "content": "Hello"}]
NAMES = ["default", "scripted", "clerk"]
"""The alias, the served model's own name, and an agent's."""


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    agents = [Agent(name="default"), Agent(name="clerk")]
    async with serving(scripted("Hi."), agents=agents, served_name="scripted") as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


@pytest.mark.parametrize("name", NAMES)
async def test_openai(running: Running, name: str) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        assert (await client.chat.completions.create(model=name, messages=HELLO)).model == name
        async for chunk in await client.chat.completions.create(model=name, messages=HELLO, stream=True):
            assert chunk.model == name
        assert (await client.completions.create(model=name, prompt="Hello")).model == name
        async for text in await client.completions.create(model=name, prompt="Hello", stream=True):
            assert text.model == name
        answer = await client.responses.create(model=name, input="Hello")
        assert answer.model == name and (await client.responses.retrieve(answer.id)).model == name
        async for event in await client.responses.create(model=name, input="Hello", stream=True):
            if event.type in ("response.created", "response.completed"):
                assert event.response.model == name


@pytest.mark.parametrize("name", NAMES)
async def test_anthropic(running: Running, name: str) -> None:
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        assert (await client.messages.create(model=name, max_tokens=9, messages=HELLO)).model == name
        async with client.messages.stream(model=name, max_tokens=9, messages=HELLO) as stream:
            assert (await stream.get_final_message()).model == name


@pytest.mark.parametrize("name", NAMES)
async def test_generate_and_websocket(running: Running, http: httpx.AsyncClient, name: str) -> None:
    answer = await http.post("/v1/generate", json={"model": name, "prompt": "Hello"})
    assert answer.json()["model"] == name
    async with connect(running.url.replace("http", "ws") + "/generate") as socket:
        await socket.send(json.dumps({"type": "config", "model": name, "prompt": "Hello"}))
        while (message := json.loads(await socket.recv()))["type"] != "init":
            assert message["type"] != "error", message
    assert message["model"] == name


async def test_an_answer_to_no_name_has_the_served_one(running: Running, http: httpx.AsyncClient) -> None:
    served = (await http.get("/v1/models")).json()["data"][0]["id"]
    for model in ({}, {"model": ""}, {"model": None}):
        answer = await http.post("/v1/chat/completions", json={"messages": HELLO, **model})
        assert answer.status_code == 200 and answer.json()["model"] == served


@pytest.mark.parametrize("base", ["/v1", ""])
async def test_lists_and_names_may_end_with_a_slash(http: httpx.AsyncClient, base: str) -> None:
    listed = (await http.get("/v1/models")).json()
    assert (await http.get(f"{base}/models/")).json() == listed
    one = (await http.get(f"/v1/models/{listed['data'][0]['id']}")).json()
    assert (await http.get(f"{base}/models/{one['id']}/")).json() == one and one["object"] == "model"
    claude = {"anthropic-version": "2023-06-01"}
    page = (await http.get(f"{base}/models/", headers=claude)).json()
    assert page["data"][0]["type"] == "model" and page["has_more"] is False
