"""Responses over a WebSocket with the SDK's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from openai import AsyncOpenAI

from agent_server.engines.scripted import Script
from tests.server import Running, scripted, serving


@asynccontextmanager
async def clients_of(engine: Any) -> AsyncIterator[tuple[Running, AsyncOpenAI]]:
    async with serving(engine) as running, AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as client:
        yield running, client


async def answer(connection: Any, **fields: Any) -> list[Any]:
    """The events of one response, to its end or to an error."""
    await connection.send({"type": "response.create", "model": "default", **fields})
    events = []
    async for event in connection:
        events.append(event)
        if event.type in ("response.completed", "response.failed", "response.incomplete", "error"):
            return events
    raise AssertionError("the connection was closed")


async def test_responses_follow_each_other_on_one_connection() -> None:
    engine = scripted([Script(text="Ada."), Script(text="You are Ada."), Script(text="Again.")])
    async with clients_of(engine) as (running, client), client.responses.connect() as connection:
        first = await answer(connection, input="I am Ada.", store=False)
        assert [event.type for event in first][:2] == ["response.created", "response.in_progress"]
        assert "".join(event.delta for event in first if event.type == "response.output_text.delta") == "Ada."
        previous = first[-1].response.id
        second = await answer(connection, input="Who am I?", previous_response_id=previous, store=False)
        assert second[-1].response.output[0].content[0].text == "You are Ada."
        prompt = running.server.model.prompts.detokenize(engine.requests[-1].prompt_token_ids)
        assert prompt.index("I am Ada.") < prompt.index("Who am I?")
        stored = await answer(connection, input="Once more")
        assert (await client.responses.retrieve(stored[-1].response.id)).output_text == "Again."


async def test_faults_leave_the_connection_open() -> None:
    faults: list[tuple[dict[str, Any], str | None, str]] = [
        ({"previous_response_id": "resp_0"}, "previous_response_not_found", "previous_response_id"),
        ({"background": True}, None, "background"),
        ({"generate": False}, None, "generate"),
        ({"input": []}, None, "input"),
        ({"model": "other"}, "model_not_found", "model"),
    ]
    async with clients_of(scripted("Hello.")) as (_, client), client.responses.connect() as connection:
        for fields, code, param in faults:
            (event,) = await answer(connection, **{"input": "Hello", **fields})
            assert (event.type, event.error.code, event.error.param) == ("error", code, param)
        assert (await answer(connection, input="Hello"))[-1].type == "response.completed"


async def test_a_client_that_leaves_ends_its_run() -> None:
    async with clients_of(scripted([Script(text="word " * 20_000, delay=0.01)])) as (running, client):
        async with client.responses.connect() as connection:
            await connection.send({"type": "response.create", "model": "default", "input": "Count.", "store": False})
            assert (await connection.recv()).type == "response.created"
        async with asyncio.timeout(20), httpx.AsyncClient(base_url=running.url) as http:
            while (await http.get("/load")).json()["server_load"]:
                await asyncio.sleep(0.02)
