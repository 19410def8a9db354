"""On every wire with log probabilities, the joined tokens are the text: with reasoning, calls, stop strings and characters
of several tokens, streamed or not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from adapters import sse
from tests.server import Running, scripted, serving

MESSAGES = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "tide", "parameters": {"type": "object", "properties": {"port": {"type": "string"}}}}
CALL = '<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>'
OUTPUTS = {
    "text": "One moment, 🙂 東京.",
    "reasoning": "<think>\nHm, one.\n</think>\n\nOne moment, 🙂.",
    "call": f"One moment.\n{CALL}\n",
    "both": f"<think>\nHm.\n</think>\n\nOne moment.\n{CALL}",
    "no call": "Such as <tool or <tool_call> in words.",
    "stop": "<think>\nHm.\n</think>\n\nOne two STOPPED three",
}


@pytest.fixture(params=OUTPUTS)
async def running(request: Any) -> AsyncIterator[Running]:
    async with serving(scripted(OUTPUTS[request.param])) as found:
        yield found


async def post(running: Running, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post(path, json={"model": "default", **body})
    assert answer.status_code == 200, answer.text
    return answer


def data_of(answer: httpx.Response) -> list[dict[str, Any]]:
    frames = [frame["data"] for frame in sse.parse([answer.content])]
    return [json.loads(data) for data in frames if data != "[DONE]"]


def joined(entries: list[dict[str, Any]]) -> str:
    assert all(bytes(entry["bytes"]).decode() == entry["token"] for entry in entries)
    return "".join(entry["token"] for entry in entries)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(running: Running, stream: bool) -> None:
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"messages": MESSAGES, "tools": tools, "logprobs": True, "top_logprobs": 1, "stop": "STOP"}
    answer = await post(running, "/v1/chat/completions", **body, stream=stream)
    choices = [chunk["choices"][0] for chunk in data_of(answer)] if stream else answer.json()["choices"]
    messages = [choice["delta" if stream else "message"] for choice in choices]
    logprobs = [choice["logprobs"] or {} for choice in choices]
    text = "".join(message.get("content") or "" for message in messages)
    assert text.startswith(("One ", "Such as "))
    assert joined([entry for each in logprobs for entry in each.get("content") or []]) == text
    reasoning = "".join(message.get("reasoning") or "" for message in messages)
    assert joined([entry for each in logprobs for entry in each.get("reasoning") or []]) == reasoning


@pytest.mark.parametrize("stream", [False, True])
async def test_responses(running: Running, stream: bool) -> None:
    body = {"input": "Hi", "tools": [{"type": "function", **FUNCTION}], "include": ["message.output_text.logprobs"]}
    answer = await post(running, "/v1/responses", **body, stream=stream)
    events = data_of(answer) if stream else []
    response = events[-1]["response"] if stream else answer.json()
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    assert parts
    for part in parts:
        assert joined(part["logprobs"]) == part["text"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert bool(deltas) == stream
    assert all(joined(event["logprobs"]) == event["delta"] for event in deltas)


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(running: Running, stream: bool) -> None:
    answer = await post(running, "/v1/completions", prompt="Hi", logprobs=1, max_tokens=99, stop="STOP", stream=stream)
    choices = [chunk["choices"][0] for chunk in data_of(answer)] if stream else answer.json()["choices"]
    logprobs = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    text = "".join(choice["text"] for choice in choices)
    assert text and "".join(token for each in logprobs for token in each["tokens"]) == text
    offsets = [offset for each in logprobs for offset in each["text_offset"]]
    assert offsets == sorted(offsets) and offsets[0] == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_ollama(running: Running, stream: bool) -> None:
    body = {
        "messages": MESSAGES,
        "logprobs": True,
        "think": True,
        "tools": [{"type": "function", "function": FUNCTION}],
    }
    answer = await post(running, "/api/chat", **body, stream=stream)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    text = "".join(line["message"].get(key, "") for key in ("thinking", "content") for line in lines)
    assert joined([entry for line in lines for entry in line.get("logprobs") or []]) == text
