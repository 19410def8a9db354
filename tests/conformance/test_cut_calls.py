"""A tool call that `max_tokens` cuts off, as the official clients and every other wire have it: never as a finished one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from agent_server import Agent, tool
from agent_server.engines.scripted import Script
from tests.server import Running, scripted, serving

TEXT = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Llanfairpwllgwyngyll", "note": "by the sea"}}\n'
    "</tool_call>"
)
"""Two calls: a limit in the second leaves the first whole."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "note": {"type": "string"}},
    "required": ["city"],
}
HELLO: Any = [{"role": "user", "content": "Hello"}]
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
CUSTOM: Any = [{"type": "custom", "name": "get_weather"}]
made: list[str] = []


@tool
def own_weather(city: str, note: str = "") -> str:
    """Weather now."""
    made.append(city)
    return "sunny"


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made.clear()
    own = Agent(name="own", tools=[own_weather])
    script = Script(text=TEXT)
    other = Script(text=TEXT.replace("get_weather", "own_weather"))
    engine = scripted(lambda request: other if request.sampling.temperature == 0.5 else script)
    async with serving(engine, agents=[Agent(name="default"), own]) as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


async def tokens_of(http: httpx.AsyncClient, text: str) -> int:
    body = {"prompt": text, "add_special_tokens": False, "model": "default"}
    count: int = (await http.post("/tokenize", json=body)).json()["count"]
    return count


@pytest.fixture
async def limit(http: httpx.AsyncClient) -> int:
    """Tokens up to the middle of the second call's arguments."""
    return await tokens_of(http, TEXT[: TEXT.index("gwyngyll")])


def run_input(**more: Any) -> dict[str, Any]:
    weather = {"name": "get_weather", "description": "", "parameters": SCHEMA}
    user = {"id": "u", "role": "user", "content": "Hello"}
    props = more.pop("forwardedProps", {})
    return {
        "protocolVersion": "1.0", "threadId": "t", "runId": "r", "state": {}, "messages": [user], "tools": [weather], "context": [],
        "forwardedProps": props, **more,
    }  # fmt: skip


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in text.splitlines() if line.startswith("data:") and "[DONE]" not in line]


async def test_openai_chat(running: Running, limit: int) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "default", "messages": HELLO, "tools": CHAT_TOOLS, "max_tokens": limit}
        (choice,) = (await client.chat.completions.create(**asked)).choices
        assert choice.finish_reason == "length"
        first, second = choice.message.tool_calls or ()
        assert json.loads(first.function.arguments) == {"city": "Oslo"}  # type: ignore[union-attr]
        with pytest.raises(json.JSONDecodeError):
            json.loads(second.function.arguments)  # type: ignore[union-attr]
        ends = [
            chunk.choices[0].finish_reason async for chunk in await client.chat.completions.create(**asked, stream=True)
        ]
        assert [end for end in ends if end] == ["length"]
        for more in ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, {"n": 2}):
            choices = (await client.chat.completions.create(**asked, **more)).choices
            assert {each.finish_reason for each in choices} == {"length"}


async def test_the_whole_calls_of_a_message_that_reached_its_limit(running: Running, http: httpx.AsyncClient) -> None:
    """Every call is whole, and the message is not: the model had not ended it."""
    whole = await tokens_of(http, TEXT)
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "default", "messages": HELLO, "tools": CHAT_TOOLS}
        (choice,) = (await client.chat.completions.create(**asked, max_tokens=whole)).choices
        assert (choice.finish_reason, len(choice.message.tool_calls or ())) == ("length", 2)
        (choice,) = (await client.chat.completions.create(**asked, max_tokens=whole + 5)).choices
        assert (choice.finish_reason, len(choice.message.tool_calls or ())) == ("tool_calls", 2)


async def test_a_stop_string_within_a_call(running: Running) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "default", "messages": HELLO, "tools": CHAT_TOOLS}
        (choice,) = (await client.chat.completions.create(**asked, stop="gwyn")).choices
        assert choice.finish_reason == "stop"
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as claude:
        tools: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
        message = await claude.messages.create(
            model="default", messages=HELLO, tools=tools, max_tokens=400, stop_sequences=["gwyn"]
        )
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "gwyn")


async def test_openai_responses(running: Running, limit: int) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        tools: Any = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
        asked: dict[str, Any] = {"model": "default", "input": "Hello", "tools": tools, "max_output_tokens": limit}
        response = await client.responses.create(**asked)
        events = [event async for event in await client.responses.create(**asked, stream=True)]
        assert events[-1].type == "response.incomplete"
        assert sum(event.type == "response.function_call_arguments.done" for event in events) == 1
        for each in (response, events[-1].response):
            assert each.status == "incomplete"
            assert each.incomplete_details is not None and each.incomplete_details.reason == "max_output_tokens"
            assert [item.status for item in each.output if item.type == "function_call"] == ["completed", "incomplete"]
        custom = await client.responses.create(**{**asked, "tools": CUSTOM})
        assert custom.status == "incomplete"
        following = await client.responses.create(
            model="default", previous_response_id=response.id, tools=tools, max_output_tokens=400,
            input=[{"type": "function_call_output", "call_id": response.output[0].call_id, "output": "sunny"}],  # type: ignore[union-attr]
        )  # fmt: skip
        assert following.error is None


async def test_anthropic(running: Running, limit: int) -> None:
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        tools: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
        asked: dict[str, Any] = {"model": "default", "messages": HELLO, "tools": tools, "max_tokens": limit}
        message = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for each in (message, streamed):
            assert each.stop_reason == "max_tokens"
            inputs = [block.input for block in each.content if block.type == "tool_use"]
            assert inputs[0] == {"city": "Oslo"} and "_raw" not in inputs[1]  # type: ignore[operator]
        assert message.content[-1].input == streamed.content[-1].input  # type: ignore[union-attr]


@pytest.mark.parametrize("path", ["/agui", "/agui/default", "/copilotkit/agent/default/run"])
async def test_agui_and_copilotkit(http: httpx.AsyncClient, limit: int, path: str) -> None:
    answer = await http.post(path, json=run_input(forwardedProps={"max_tokens": limit}))
    events = events_of(answer.text)
    first, second = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"]
    ends = {event["toolCallId"]: event.get("metadata") for event in events if event["type"] == "TOOL_CALL_END"}
    assert ends == {first: None, second: {"incomplete": True}}
    # A result is what keeps frontends from making the call: they make those that have none.
    (result,) = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert result["toolCallId"] == second and result["metadata"] == {"isError": True}
    last = events[-1]
    assert last["outcome"] == {"type": "success", "pendingToolCallIds": [first]}
    assert last["metadata"]["finishReason"] == "length"
    assert not [event for event in events if event.get("name") == "agent_server.invalid_arguments"]


async def test_websocket_and_generate(running: Running, http: httpx.AsyncClient, limit: int) -> None:
    config = {
        "messages": HELLO, "tools": CHAT_TOOLS, "parameters": {"max_tokens": limit}, "options": {"stream": False},
    }  # fmt: skip
    async with connect(running.url.replace("http", "ws") + "/generate") as socket:
        await socket.send(json.dumps({"type": "config", **config}))
        while (completion := json.loads(await socket.recv()))["type"] != "completion":
            assert completion["type"] != "error", completion
    flat = {"messages": HELLO, "tools": CHAT_TOOLS, "max_tokens": limit}
    body = (await http.post("/v1/generate", json=flat)).json()
    assert "error" not in body, body
    for each in (completion, body):
        assert each["finish_reason"] == "length"
        assert [call.get("incomplete") for call in each["tool_calls"]] == [None, True]


async def test_our_own_loop_makes_the_whole_call_alone(http: httpx.AsyncClient) -> None:
    text = TEXT.replace("get_weather", "own_weather")
    limit = await tokens_of(http, text[: text.index("gwyngyll")])
    body = run_input(tools=[], forwardedProps={"max_tokens": limit, "temperature": 0.5})
    events = events_of((await http.post("/agui/own", json=body)).text)
    assert made == ["Oslo"]
    results = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert len(results) == 2 and "sunny" in results and any("was not made" in each for each in results)
    assert events[-1]["metadata"]["finishReason"] == "length"
    assert sum(event["type"] == "STEP_STARTED" for event in events) == 1


async def test_a_conversation_goes_on_behind_a_call_that_was_cut_off(http: httpx.AsyncClient, limit: int) -> None:
    """The client sends the message back as it had it, with arguments that are no JSON."""
    asked: dict[str, Any] = {"model": "default", "messages": HELLO, "tools": CHAT_TOOLS, "max_tokens": limit}
    message = (await http.post("/v1/chat/completions", json=asked)).json()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "cut off" if number else "sunny"}
        for number, call in enumerate(message["tool_calls"])
    ]
    answer = await http.post("/v1/chat/completions", json={**asked, "messages": [*HELLO, message, *results]})
    assert answer.status_code == 200, answer.text
