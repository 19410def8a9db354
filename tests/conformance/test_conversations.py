"""OpenAI's conversations by its own client: what is kept, what a response is asked with, and what it adds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from agent_server.engines.scripted import Script
from tests.conformance.test_agent_loops import TOKENIZER
from tests.server import Running, scripted, serving


def said(request: Any) -> str:
    return TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted(lambda request: Script(text=f"You said {said(request).count('number')}."))) as found:
        yield found


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
        yield found


async def test_responses_go_on_with_a_conversation(running: Running, client: AsyncOpenAI) -> None:
    first: Any = {"role": "user", "content": "number one"}
    made = await client.conversations.create(items=[first], metadata={"topic": "numbers"})
    assert made.id.startswith("conv_") and made.metadata == {"topic": "numbers"}
    answer = await client.responses.create(model="default", input="number two", conversation=made.id)
    assert answer.output_text == "You said 2."
    assert answer.conversation is not None and answer.conversation.id == made.id
    stream = await client.responses.create(
        model="default", input=[{"role": "user", "content": "number three"}], conversation={"id": made.id}, stream=True
    )
    last = [event async for event in stream][-1]
    assert last.type == "response.completed" and last.response.output_text == "You said 3."
    read = said(running.engine.requests[-1])
    places = [read.index(text) for text in ("number one", "number two", "You said 2.", "number three")]
    assert places == sorted(places)
    items = [item async for item in client.conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.content[0].text for item in items] == [
        "number one", "number two", "You said 2.", "number three", "You said 3.",
    ]  # fmt: skip
    assert len({item.id for item in items}) == 5


async def test_items_are_added_told_and_deleted(client: AsyncOpenAI) -> None:
    made = await client.conversations.create()
    call: Any = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "number"}
    added = await client.conversations.items.create(made.id, items=[call, output])
    assert [item.type for item in added.data] == ["function_call", "function_call_output"]
    one = await client.conversations.items.retrieve(added.data[0].id, conversation_id=made.id)
    assert one.name == "f"
    changed = await client.conversations.update(made.id, metadata={"a": "b"})
    assert (await client.conversations.retrieve(made.id)).metadata == changed.metadata == {"a": "b"}
    for item in added.data:
        await client.conversations.items.delete(item.id, conversation_id=made.id)
    assert [item async for item in client.conversations.items.list(made.id)] == []
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(added.data[0].id, conversation_id=made.id)
    assert (await client.conversations.delete(made.id)).deleted
    for gone in (client.conversations.retrieve(made.id), client.conversations.delete(made.id)):
        with pytest.raises(openai.NotFoundError):
            await gone
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="default", input="Hello", conversation=made.id)


WRONG = {
    "a response beside it": ({"previous_response_id": "resp_1"}, "conversation"),
    "nothing is kept": ({"store": False}, "conversation"),
    "no id": ({"conversation": 5}, "conversation"),
}


@pytest.mark.parametrize("name", WRONG)
async def test_what_cannot_be_is_named(running: Running, client: AsyncOpenAI, name: str) -> None:
    fields, place = WRONG[name]
    made = await client.conversations.create()
    async with httpx.AsyncClient(base_url=running.url) as http:
        told = await http.post("/v1/responses", json={"input": "Hi", "conversation": made.id, **fields})
    assert (told.status_code, told.json()["error"]["param"]) == (400, place)


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"items": [{"content": "hiccup"}]}, "items.0.type"),
        ({"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
    ],
)
async def test_a_wrong_conversation_is_not_begun(running: Running, body: Any, place: str) -> None:
    async with httpx.AsyncClient(base_url=running.url) as http:
        told = await http.post("/v1/conversations", json=body)
    assert (told.status_code, told.json()["error"]["param"][: len(place)]) == (400, place)


async def test_one_response_at_a_time_and_none_of_other_tenants() -> None:
    async with serving(scripted((Script(text="word " * 400, delay=0.01),)), api_keys=("a:one", "b:two")) as running:
        mine, theirs = (AsyncOpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0) for key in ("one", "two"))
        async with mine, theirs:
            made = await mine.conversations.create()
            asked: Any = {"model": "default", "input": "Hi", "conversation": made.id}
            stream = await mine.responses.create(**asked, stream=True)
            await anext(aiter(stream))
            with pytest.raises(openai.ConflictError, match="Another request"):
                await mine.responses.create(**asked)
            with pytest.raises(openai.ConflictError):
                await mine.conversations.delete(made.id)
            await stream.close()
            while True:
                try:
                    await mine.conversations.update(made.id, metadata={"a": "b"})
                    break
                except openai.ConflictError:
                    await asyncio.sleep(0.01)
            with pytest.raises(openai.NotFoundError):
                await theirs.conversations.retrieve(made.id)
            with pytest.raises(openai.NotFoundError):
                await theirs.responses.create(**asked)
