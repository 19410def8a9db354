"""Pictures and other media that a model of text alone gets with its history, as coding agents send them: the model is
told of them and the client is warned, on every wire; the conversation goes on."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from agent_server.engines.scripted import Script
from tests.server import Running, scripted, serving

PNG = base64.b64encode((Path(__file__).parents[2] / "docs" / "demo.png").read_bytes()[:4096]).decode()
NOTE = "[An image is here, which you cannot see.]"
WARNING = "a part of type image was left out: this model reads text only"
TOOL: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted([Script(text="I cannot see it.")])) as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


def prompt_of(running: Running) -> str:
    """What the engine was last asked."""
    decoder = running.engine.vocabulary.detokenizer()
    return "".join(map(decoder.push, running.engine.requests[-1].prompt_token_ids)) + decoder.flush()


def messages_history() -> list[Any]:
    """As Claude Code sends what its Read tool found."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    return [
        {"role": "user", "content": "What is in a.png?"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a.png"}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [image]}]},
    ]


def chat_history() -> list[Any]:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    call = {"id": "t1", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a.png"}'}}
    return [
        {"role": "user", "content": "What is in a.png?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": [image]},
    ]


def agui_input() -> dict[str, Any]:
    image = {"type": "image", "source": {"type": "data", "value": PNG, "mimeType": "image/png"}}
    call = {"id": "t1", "type": "function", "function": {"name": "Read", "arguments": '{"path": "a.png"}'}}
    return {
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "context": [], "tools": [],
        "forwardedProps": {},
        "messages": [
            {"id": "1", "role": "user", "content": "What is in a.png?"},
            {"id": "2", "role": "assistant", "toolCalls": [call]},
            {"id": "3", "role": "tool", "toolCallId": "t1", "content": [image]},
        ],
    }  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_messages(running: Running, stream: bool) -> None:
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        asked: Any = {"model": "default", "max_tokens": 99, "messages": messages_history()}
        raw = await client.messages.with_raw_response.create(**asked, stream=stream)
        assert raw.headers["x-warning"] == WARNING
        tools: Any = [{"name": "Read", "input_schema": TOOL}]
        counted = await client.messages.count_tokens(model="default", messages=messages_history(), tools=tools)
        assert counted.input_tokens > 0
        goes_on = [
            *messages_history(),
            {"role": "assistant", "content": "No."},
            {"role": "user", "content": "And now?"},
        ]
        await client.messages.create(**{**asked, "messages": goes_on})
    assert NOTE in prompt_of(running)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(running: Running, stream: bool) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "default", "messages": chat_history(), "stream": stream}
        raw = await client.chat.completions.with_raw_response.create(**asked)
        assert raw.headers["x-warning"] == WARNING
        said = [chunk.to_json() async for chunk in raw.parse()] if stream else [raw.text]
        assert WARNING in said[-1]
    assert NOTE in prompt_of(running)


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(running: Running, stream: bool) -> None:
    image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"}
    items: Any = [
        {"role": "user", "content": "What is in a.png?"},
        {"type": "function_call", "call_id": "t1", "name": "Read", "arguments": '{"path": "a.png"}'},
        {"type": "function_call_output", "call_id": "t1", "output": [image]},
    ]
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: Any = {"model": "default", "input": items}
        raw = await client.responses.with_raw_response.create(**asked, stream=stream)
        assert raw.headers["x-warning"] == WARNING
        assert NOTE in prompt_of(running)
        first = await client.responses.create(**asked)
        await client.responses.create(model="default", previous_response_id=first.id, input="And now?")
    assert NOTE in prompt_of(running)


@pytest.mark.parametrize("path", ["/agui", "/copilotkit/agent/default/run"])
async def test_agui_and_copilotkit(running: Running, http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json=agui_input())
    last = json.loads(answer.text.strip().splitlines()[-1].removeprefix("data:"))
    assert last["metadata"]["warnings"] == [WARNING]
    assert NOTE in prompt_of(running)


async def test_websocket(running: Running) -> None:
    async with connect(running.url.replace("http", "ws") + "/generate") as socket:
        await socket.send(json.dumps({"type": "config", "messages": chat_history()}))
        while (message := json.loads(await socket.recv()))["type"] != "completion":
            assert message["type"] != "error", message
    assert message["warnings"] == [WARNING]
    assert NOTE in prompt_of(running)


async def test_what_a_user_showed_before_the_last_answer_is_history(running: Running, http: httpx.AsyncClient) -> None:
    """A conversation that began with a model that sees goes on with one that does not."""
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    video = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}
    shown = {"role": "user", "content": [{"type": "text", "text": "Look."}, image, video]}
    replayed = [shown, {"role": "assistant", "content": "A cat."}, {"role": "user", "content": "And now?"}]
    answer = await http.post("/v1/chat/completions", json={"messages": replayed})
    assert answer.status_code == 200 and len(answer.headers.get_list("x-warning")) == 2
    assert NOTE in prompt_of(running) and "[A video is here, which you cannot see.]" in prompt_of(running)
    asked = await http.post("/v1/chat/completions", json={"messages": [*replayed, shown]})
    assert asked.status_code == 400 and "messages.3.content.1 is image content" in asked.text


async def test_a_document_in_a_tool_result_that_cannot_be_read(running: Running, http: httpx.AsyncClient) -> None:
    source = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(b"%PDF-1.7 broken").decode()}
    history = messages_history()
    history[-1]["content"][0]["content"] = [{"type": "document", "source": source}]
    answer = await http.post("/v1/messages", json={"messages": history, "max_tokens": 99})
    assert answer.status_code == 200, answer.text
    assert "[A document is here, which could not be read.]" in prompt_of(running)
