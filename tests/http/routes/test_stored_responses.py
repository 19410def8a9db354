"""Responses and conversations over HTTP: what no client of OpenAI's own would ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agent_server.engines.scripted import Script
from agent_server.http.routes import conversations_routes
from tests.server import Running, scripted, serving

shared = pytest.mark.asyncio(loop_scope="module")
ASK = {"model": "default", "input": "Hi"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    slow, quick = Script(text="x" * 4000, delay=0.05), Script(text="Hello.")
    long = lambda request: slow if request.sampling.seed == 1 else quick  # noqa: E731
    async with serving(scripted(long)) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=20) as found:
        yield found


@shared
async def test_a_conversation_is_no_response_and_a_response_no_conversation(client: httpx.AsyncClient):
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    response = (await client.post("/v1/responses", json=ASK)).json()["id"]
    asked = [
        await client.get(f"/v1/responses/{conversation}"),
        await client.post(f"/v1/responses/{conversation}/cancel"),
        await client.get(f"/v1/responses/{conversation}/input_items"),
        await client.delete(f"/v1/responses/{conversation}"),
        await client.post("/v1/responses", json={**ASK, "previous_response_id": conversation}),
        await client.get(f"/v1/conversations/{response}"),
        await client.delete(f"/v1/conversations/{response}"),
        await client.post("/v1/responses", json={**ASK, "conversation": response}),
    ]
    assert [each.status_code for each in asked] == [404] * 8, [each.text for each in asked]
    assert (await client.get(f"/v1/conversations/{conversation}")).status_code == 200
    assert (await client.get(f"/v1/responses/{response}")).status_code == 200


@pytest.mark.parametrize("odd", [[1], {"a": 1}, 5])
@shared
async def test_an_item_s_id_is_a_string(client: httpx.AsyncClient, odd: object):
    item: Any = {"type": "message", "role": "user", "content": "x", "id": odd}
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    asked = [
        await client.post("/v1/conversations", json={"items": [item]}),
        await client.post(f"/v1/conversations/{conversation}/items", json={"items": [item]}),
        await client.post("/v1/responses", json={**ASK, "input": [item], "conversation": conversation}),
    ]
    assert [each.status_code for each in asked] == [400] * 3, [each.text for each in asked]
    assert all("id must be a string" in each.text for each in asked)


@shared
async def test_a_conversation_has_an_end(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversations_routes, "MAX_BYTES", 5000)
    conversation = (await client.post("/v1/conversations", json={})).json()["id"]
    items = {"items": [{"type": "message", "role": "user", "content": "x" * 2000}]}
    answers = [await client.post(f"/v1/conversations/{conversation}/items", json=items) for _ in range(3)]
    assert [each.status_code for each in answers] == [200, 200, 413], answers[2].text
    assert "5000 bytes" in answers[2].text
    kept = (await client.get(f"/v1/conversations/{conversation}/items")).json()["data"]
    await client.delete(f"/v1/conversations/{conversation}/items/{kept[0]['id']}")
    assert len(kept) == 2
    assert (await client.post(f"/v1/conversations/{conversation}/items", json=items)).status_code == 200


@shared
async def test_deleting_a_response_that_goes_on_waits_for_no_other(client: httpx.AsyncClient):
    asked = {**ASK, "background": True, "seed": 1}
    other, mine = [(await client.post("/v1/responses", json=asked)).json()["id"] for _ in range(2)]
    async with asyncio.timeout(10):
        assert (await client.delete(f"/v1/responses/{mine}")).json()["deleted"] is True
    assert (await client.get(f"/v1/responses/{other}")).json()["status"] == "in_progress"
    await client.delete(f"/v1/responses/{other}")
