"""Ollama's own client against this server, in Python; npm's is in `ollama.mjs`."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from ollama import AsyncClient, ResponseError

from agent_server.engines.scripted import Fault, Script
from tests.server import Running, scripted, serving

HELLO = [{"role": "user", "content": "Hello"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a place.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}
CALL = Script(text='<tool_call>\n{"name": "get_weather", "arguments": {"location": "Oslo"}}\n</tool_call>')


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted("Hello there.")) as found:
        yield found


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(host=running.url) as found:
        yield found


async def test_chat_whole_and_streamed(client: AsyncClient) -> None:
    whole = await client.chat("default", HELLO)
    assert whole.message.content == "Hello there." and whole.done_reason == "stop"
    assert whole.prompt_eval_count and whole.eval_count and whole.total_duration
    parts = [part async for part in await client.chat("default:latest", HELLO, stream=True)]
    assert "".join(part.message.content or "" for part in parts) == "Hello there."
    assert [part.done for part in parts[-2:]] == [False, True] and parts[-1].eval_count == whole.eval_count


async def test_generate_whole_streamed_raw_and_empty(client: AsyncClient, running: Running) -> None:
    assert (await client.generate("default", "Hello", system="Be kind.")).response == "Hello there."
    parts = [part async for part in await client.generate("default", "Hello", stream=True)]
    assert "".join(part.response or "" for part in parts) == "Hello there." and parts[-1].done
    assert (await client.generate("default", "Once", raw=True, options={"num_predict": 2})).done_reason == "length"
    assert (await client.generate("default")).done_reason == "load"


async def test_thinking_has_a_place_of_its_own() -> None:
    async with (
        serving(scripted("<think>A greeting.</think>Hello.")) as running,
        AsyncClient(host=running.url) as client,
    ):
        whole = await client.chat("default", HELLO, think=True)
        assert (whole.message.thinking, whole.message.content) == ("A greeting.", "Hello.")
        parts = [part async for part in await client.chat("default", HELLO, think=True, stream=True)]
        assert "".join(part.message.thinking or "" for part in parts) == "A greeting."


async def test_a_tool_is_called_and_its_result_is_read() -> None:
    engine = scripted([CALL, CALL, Script(text="It snows.")])
    async with serving(engine) as running, AsyncClient(host=running.url) as client:
        whole = await client.chat("default", HELLO, tools=[WEATHER])
        streamed = [part async for part in await client.chat("default", HELLO, tools=[WEATHER], stream=True)]
        (call,) = whole.message.tool_calls or ()
        assert (call.function.name, call.function.arguments) == ("get_weather", {"location": "Oslo"})
        assert [part.message.tool_calls[0].function for part in streamed if part.message.tool_calls] == [call.function]
        result = {"role": "tool", "tool_name": "get_weather", "content": "snow"}
        last = await client.chat("default", [*HELLO, whole.message, result], tools=[WEATHER])
        assert last.message.content == "It snows."
        prompt = running.server.model.prompts.detokenize(engine.requests[-1].prompt_token_ids)
        assert "Oslo" in prompt and "snow" in prompt


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_have_an_id_and_their_place(stream: bool) -> None:
    """Ollama numbers the calls of an answer in `function.index`; readers of a stream put them together by it."""
    calls = "\n".join(CALL.text.replace("Oslo", city) for city in ("Oslo", "Lima"))
    async with serving(scripted(calls)) as running, httpx.AsyncClient(base_url=running.url) as http:
        # As litellm's `ollama_chat` sends it.
        messages = [{"role": "user", "content": "Hello", "images": []}]
        body = {"model": "default", "messages": messages, "options": {}, "stream": stream, "tools": [WEATHER]}
        answer = await http.post("/api/chat", json=body)
        lines = [json.loads(line) for line in answer.text.splitlines()]
    found = [call for line in lines for call in line["message"].get("tool_calls", ())]
    assert [(call["function"]["index"], call["function"]["arguments"]["location"]) for call in found] == [
        (0, "Oslo"),
        (1, "Lima"),
    ]
    assert len({call["id"] for call in found}) == 2


async def test_a_format_binds_the_answer() -> None:
    async with serving() as running, AsyncClient(host=running.url) as client:
        schema: Any = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
        options = {"num_predict": 60, "temperature": 0}
        answer = await client.chat("default", HELLO, format=schema, options=options)
        assert isinstance(json.loads(answer.message.content or "")["yes"], bool)


async def test_models_are_listed_and_described(client: AsyncClient) -> None:
    model = (await client.list()).models[0]
    shown = await client.show(model.model or "")
    assert {"completion", "tools"} <= set(shown.capabilities or ())
    assert (await client.ps()).models[0].model == model.model
    with pytest.raises(ResponseError, match="There is no model 'other'") as caught:
        await client.show("other")
    assert caught.value.status_code == 404


async def test_faults_are_told_in_its_shape(client: AsyncClient, running: Running) -> None:
    with pytest.raises(ResponseError, match="suffix is not supported"):
        await client.generate("default", "def f():", suffix="return x")
    with pytest.raises(ResponseError, match="no embedding model"):
        await client.embed("default", "Hello")
    picture = base64.b64encode(b"no picture").decode()
    with pytest.raises(ResponseError, match="image"):
        await client.chat("default", [{"role": "user", "content": "What is this?", "images": [picture]}])
    async with httpx.AsyncClient(base_url=running.url) as http:
        answer = await http.post("/api/chat", json={"model": "default", "messages": HELLO, "options": {"mirostat": 1}})
        assert answer.headers["x-warning"] == "options has entries that this server does not support; they are ignored."
        assert answer.headers["content-type"] == "application/x-ndjson"


async def test_the_npm_client_gets_the_same(node_clients: Any) -> None:
    async with serving(scripted([CALL, Script(text="It snows.")])) as running:
        entry = {"host": running.url, "model": "default", "messages": HELLO, "tools": [WEATHER]}
        [answer] = await asyncio.to_thread(node_clients.run, "ollama.mjs", [entry])
    assert answer["models"] > 0 and "completion" in answer["capabilities"]
    assert answer["call"]["function"] == {"index": 0, "name": "get_weather", "arguments": {"location": "Oslo"}}
    assert answer["streamed"] == "It snows." and answer["refusal"] == "model is required."


async def test_a_stream_that_breaks_says_so() -> None:
    broken = Script(text="Half an answer", fault=Fault(action="error", kind="internal", message="Broken.", after=2))
    async with serving(scripted([broken])) as running, AsyncClient(host=running.url) as client:
        with pytest.raises(ResponseError, match=r"Broken\."):
            [part async for part in await client.chat("default", HELLO, stream=True)]
