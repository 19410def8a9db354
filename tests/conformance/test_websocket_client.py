"""A real WebSocket client speaks both protocols with a running server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from adapters import sse
from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.scripted import Fault, Script
from tests.server import Running, scripted, serving

STORY = Script(text="In the year 2045, a robot learned to paint.", delay=0.005)
CONFIG = {"type": "config", "prompt": "Write a short story about a robot learning to paint."}


@contextlib.asynccontextmanager
async def open_socket(running: Running, path: str = "/generate") -> AsyncIterator[ClientConnection]:
    async with connect(running.url.replace("http", "ws") + path) as socket:
        yield socket


async def say(socket: ClientConnection, message: dict[str, Any]) -> None:
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection, kind: str | None = None) -> dict[str, Any]:
    """The next message; with `kind`, the next of that type."""
    async with asyncio.timeout(10):
        while True:
            message: dict[str, Any] = json.loads(await socket.recv())
            if kind is None or message["type"] == kind:
                return message


async def until(socket: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    heard = [await hear(socket)]
    while heard[-1]["type"] not in kinds:
        heard.append(await hear(socket))
    return heard


async def test_basic_text_generation() -> None:
    async with serving(scripted([STORY])) as running, open_socket(running) as socket:
        await say(
            socket, {**CONFIG, "parameters": {"max_tokens": 200, "temperature": 0.7}, "options": {"stream": True}}
        )
        init, *tokens, completion = await until(socket, "completion")
    assert (init["type"], init["model"]) == ("init", "agent-server-demo")
    assert init["model_info"]["max_tokens"] > 0
    assert {token["type"] for token in tokens} == {"token"}
    assert "".join(token["token"] for token in tokens) == STORY.text == completion["generated_text"]
    assert tokens[-1]["generated_text"] == STORY.text
    assert completion["usage"]["completion_tokens"] == len(tokens)
    assert completion["finish_reason"] == "stop"


async def test_error_and_recovery_on_the_same_connection() -> None:
    fault = Fault(action="error", kind="out_of_memory", after=5, message="Too little memory.")
    engine = scripted([Script(text=STORY.text, fault=fault), STORY])
    async with serving(engine) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        error = (await until(socket, "error"))[-1]
        assert (error["error"], error["recoverable"]) == ("memory_pressure", True)
        assert STORY.text.startswith(error["generated_text"]) and error["generated_text"]
        await say(socket, {**CONFIG, "parameters": {"max_tokens": 3}})
        completion = (await until(socket, "completion"))[-1]
    assert (completion["finish_reason"], completion["usage"]["completion_tokens"]) == ("length", 3)


async def test_midstream_control() -> None:
    endless = Script(text="la ", delay=0.005, reason=None)
    async with serving(scripted([endless])) as running, open_socket(running) as socket:
        await say(socket, {**CONFIG, "options": {"include_generated_text": False}})
        await hear(socket, "token")
        await say(socket, {"type": "control", "action": "modify", "parameters": {"temperature": 0.9}})
        statuses = [await hear(socket, "status"), await hear(socket, "status")]
        assert {status["operation"] for status in statuses} == {"modify"}
        generation = next(iter(running.engine.running.values()))
        assert generation.sampling.temperature == 0.9
        await hear(socket, "token")
        await say(socket, {"type": "control", "action": "stop"})
        completion = (await until(socket, "completion"))[-1]
        assert completion["finish_reason"] == "stop"
        assert not running.engine.running


async def test_pause_holds_the_tokens_back_and_resume_lets_them_go() -> None:
    endless = Script(text="la ", delay=0.005, reason=None)
    async with serving(scripted([endless])) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        await hear(socket, "token")
        await say(socket, {"type": "control", "action": "pause"})
        while (await hear(socket, "status"))["progress"] != 100:
            pass
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await socket.recv()
        await say(socket, {"type": "control", "action": "resume"})
        await hear(socket, "token")


async def test_regenerate_gives_a_second_generation() -> None:
    async with serving(scripted([STORY, STORY])) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        first = await until(socket, "completion")
        await say(socket, {"type": "control", "action": "regenerate"})
        second = await until(socket, "completion")
    assert first[0]["request_id"] != second[0]["request_id"]
    assert first[-1]["generated_text"] == second[-1]["generated_text"]


async def test_feedback_is_stored_with_its_position() -> None:
    async with serving(scripted([STORY])) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        await until(socket, "completion")
        await say(socket, {"type": "feedback", "rating": 0.5, "text": "Great response!", "position": 4})
        assert (await hear(socket, "status"))["operation"] == "feedback"
        (thread,), _ = await running.server.store.threads("")
        (record,) = await running.server.store.feedback("", thread.id)
    assert (record.score, record.comment, record.position) == (0.5, "Great response!", 4)


async def test_feedback_that_waits_for_its_message_is_bounded() -> None:
    slow = Script(text=STORY.text, reason=None, delay=0.01)
    async with serving(scripted([slow])) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        await hear(socket, "token")
        for position in range(65):
            await say(socket, {"type": "feedback", "rating": 1, "text": "Good.", "position": position})
        assert "64 feedbacks" in (await hear(socket, "error"))["message"]
        await say(socket, {"type": "control", "action": "stop"})
        told = await until(socket, "completion")
        assert [message.get("operation") for message in told].count("feedback") == 64
        (thread,), _ = await running.server.store.threads("")
        assert len(await running.server.store.feedback("", thread.id)) == 64


async def test_what_is_included_on_request() -> None:
    options = {"echo_prompt": True, "include_token_ids": True, "include_logprobs": True, "include_timing": True}
    async with serving(scripted([STORY])) as running, open_socket(running) as socket:
        await say(socket, {**CONFIG, "options": options})
        _, echo, *tokens, completion = await until(socket, "completion")
    assert echo["token"] == CONFIG["prompt"]
    assert completion["generated_text"] == CONFIG["prompt"] + STORY.text
    assert all(isinstance(token["token_id"], int) for token in tokens)
    assert all(token["logprobs"][0]["token"] for token in tokens)
    assert all(token["timing"]["total_ms"] >= token["timing"]["token_ms"] >= 0 for token in tokens)
    assert completion["timing"]["total_ms"] >= completion["timing"]["first_token_ms"] > 0


async def test_status_while_the_model_loads() -> None:
    engine = scripted([STORY], load_seconds=0.5)
    async with serving(engine, ready=False) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        heard = await until(socket, "completion")
    loading = [message for message in heard if message["type"] == "status"]
    assert loading and {message["operation"] for message in loading} == {"model_loading"}
    progress = [message["progress"] for message in loading if "progress" in message]
    assert progress == sorted(progress)


async def test_a_model_that_cannot_be_loaded() -> None:
    engine = scripted([STORY], failure=EngineError("unavailable", "There are no weights."))
    async with serving(engine, ready=False) as running, open_socket(running) as socket:
        await say(socket, CONFIG)
        error = (await until(socket, "error"))[-1]
    assert error["error"] == "model_loading_error"
    assert "no weights" in error["message"]


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x00\x01", 1003), ('{"type":"control","action":"stop"}', 1008)],
)
async def test_close_codes_follow_the_error_message(data: str | bytes, code: int) -> None:
    async with serving(scripted([STORY])) as running, open_socket(running) as socket:
        await socket.send(data)
        error = await hear(socket)
        assert (error["type"], error["recoverable"]) == ("error", False)
        with pytest.raises(ConnectionClosed):
            await asyncio.wait_for(socket.recv(), 10)
        assert socket.close_code == code


async def test_a_client_that_leaves_stops_its_generation() -> None:
    endless = Script(text="la ", delay=0.01, reason=None)
    async with serving(scripted([endless])) as running:
        async with open_socket(running) as socket:
            await say(socket, CONFIG)
            await hear(socket, "token")
        async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
            while running.engine.running:
                await asyncio.sleep(0.005)
        assert len(running.engine.cancelled) == 1


async def test_the_same_messages_over_http() -> None:
    async with serving(scripted([STORY] * 2)) as running, httpx.AsyncClient(base_url=running.url) as client:
        whole = (await client.post("/v1/generate", json={"prompt": "x", "max_tokens": 200})).json()
        assert whole["generated_text"] == STORY.text
        assert set(whole) == {"id", "model", "generated_text", "finish_reason", "usage"}
        streamed = await client.post("/v1/generate", json={"prompt": "x", "max_tokens": 200, "stream": True})
        messages = [json.loads(frame["data"]) for frame in sse.parse([streamed.content])]
        assert [messages[0]["type"], messages[-1]["type"]] == ["init", "completion"]
        assert "".join(message.get("token", "") for message in messages) == STORY.text
        refused = await client.post("/v1/generate", json={"max_tokens": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


# ---- AG-UI ----------------------------------------------------------------------------------------------------------

ANSWER = Script(text="<think>\nI have it.\n</think>\n\nIt is sunny in Oslo.", delay=0.01)


def run_message(run_id: str = "r1") -> dict[str, Any]:
    messages = [{"id": "u1", "role": "user", "content": "Hi"}]
    found = {"threadId": "t1", "runId": run_id, "protocolVersion": "1.0", "messages": messages, "tools": []}
    return {"type": "run", "input": {**found, "context": [], "state": {}, "forwardedProps": {}}}


async def test_agui_events_one_object_a_message() -> None:
    async with serving(scripted([ANSWER])) as running, open_socket(running, "/agui/ws") as socket:
        await say(socket, run_message())
        heard = await until(socket, "RUN_FINISHED")
    assert heard[0]["type"] == "RUN_STARTED"
    text = "".join(event["delta"] for event in heard if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert text == "It is sunny in Oslo."


async def test_agui_says_what_was_left_out_of_the_input() -> None:
    message = run_message()
    content = [{"type": "text", "text": "Look."}, {"type": "hologram", "source": {"type": "data", "value": "x"}}]
    message["input"]["messages"] = [{"id": "u1", "role": "user", "content": content}]
    async with serving(scripted([ANSWER])) as running, open_socket(running, "/agui/ws") as socket:
        await say(socket, message)
        (warning,) = (await until(socket, "RUN_FINISHED"))[-1]["metadata"]["warnings"]
    assert warning == "messages.0: 1 content part(s) of an unknown kind left out."


async def test_agui_resumes_after_a_sequence_number() -> None:
    async with serving(scripted([ANSWER])) as running:
        async with open_socket(running, "/agui/ws") as socket:
            await say(socket, run_message())
            before = [await hear(socket) for _ in range(6)]
        async with open_socket(running, "/agui/ws") as socket:
            await say(socket, {"type": "subscribe", "runId": "r1", "after": len(before)})
            after = await until(socket, "RUN_FINISHED")
        async with open_socket(running, "/agui/ws") as socket:
            await say(socket, {"type": "subscribe", "runId": "r1"})
            assert await until(socket, "RUN_FINISHED") == before + after
            await say(socket, {"type": "subscribe", "runId": "unknown"})
            assert (await hear(socket))["code"] == "not_found"


async def test_agui_cancel_pause_and_modify() -> None:
    endless = Script(text="la ", delay=0.005, reason=None)
    async with serving(scripted([endless])) as running, open_socket(running, "/agui/ws") as socket:
        await say(socket, run_message())
        await hear(socket, "TEXT_MESSAGE_CONTENT")
        await say(socket, {"type": "modify", "parameters": {"temperature": 0.5}})
        await hear(socket, "CUSTOM")
        assert next(iter(running.engine.running.values())).sampling.temperature == 0.5
        await say(socket, {"type": "modify", "parameters": {"temperature": -5}})
        assert (await hear(socket, "CUSTOM"))["value"]["code"] == "invalid_request"
        await say(socket, {"type": "pause"})
        assert (await hear(socket, "CUSTOM"))["value"]["action"] == "paused"
        await say(socket, run_message("r2"))
        assert (await hear(socket, "CUSTOM"))["value"]["code"] == "conflict"
        await say(socket, {"type": "resume"})
        await say(socket, {"type": "cancel"})
        assert (await hear(socket, "RUN_FINISHED"))["outcome"] == {"type": "cancelled"}
        await say(socket, {"type": "cancel"})
        assert (await hear(socket))["type"] == "RUN_ERROR"
