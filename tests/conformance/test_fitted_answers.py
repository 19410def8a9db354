"""`max_tokens` of Messages, which its clients have to send, means at most what the context leaves, on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import AsyncAnthropic

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest
from tests.server import scripted, serving

CONTEXT = 256
HELLO: Any = [{"role": "user", "content": "Hello"}]
LONG: Any = [{"role": "user", "content": "word " * 60}]
ENDLESS = "word " * 1000
CALL = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@tool
def look() -> str:
    """Look around."""
    return "There is a door. " * 4


async def ask(client: AsyncAnthropic, stream: bool, **body: Any) -> Any:
    if not stream:
        return await client.messages.create(model="default", timeout=30, **body)
    async with client.messages.stream(model="default", **body) as told:
        return await told.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("asked", [CONTEXT - 1, CONTEXT, 32_000, 10**9])
async def test_more_than_the_context_leaves_is_what_it_leaves(asked: int, stream: bool) -> None:
    async with (
        serving(scripted(ENDLESS, context_length=CONTEXT), max_context=CONTEXT) as running,
        AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client,
    ):
        for messages in (HELLO, LONG):
            answer = await ask(client, stream, max_tokens=asked, messages=messages)
            assert answer.usage.input_tokens + answer.usage.output_tokens == CONTEXT
            assert answer.stop_reason == "model_context_window_exceeded"
        answer = await ask(client, stream, max_tokens=5, messages=HELLO)
        assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 5)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_leaves_nothing_is_refused(stream: bool) -> None:
    async with (
        serving(scripted(ENDLESS, context_length=64), max_context=64) as running,
        AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(anthropic.BadRequestError):
            await ask(client, stream, max_tokens=5, messages=LONG)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_later_turn_of_the_server_s_own_loop_gets_what_is_left_for_it(stream: bool) -> None:
    """A tool's result makes the second prompt longer: what fitted beside the first does not fit beside it."""
    scripts = scripted([Script(text=CALL), Script(text=ENDLESS)], context_length=400)
    async with (
        serving(scripts, agents=[Agent(name="default", tools=[look])], max_context=400) as running,
        AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client,
    ):
        counted = await client.messages.count_tokens(model="default", messages=HELLO)
        answer = await ask(client, stream, max_tokens=400 - counted.input_tokens, messages=HELLO)
        assert len(running.engine.requests) == 2
        prompt, sampling = running.engine.requests[-1].prompt_token_ids, running.engine.requests[-1].sampling
    assert answer.stop_reason == "model_context_window_exceeded"
    assert sampling.max_tokens == 400 - len(prompt)


async def test_a_model_that_is_loaded_when_it_is_asked_fits_them_too() -> None:
    async with (
        serving(model_idle=600.0, local=True, kv_cache_bytes=2**24, ready=False) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        body = {"max_tokens": 10**9, "messages": HELLO, "stop_sequences": ["e"], "temperature": 0}
        answer = await http.post("/v1/messages", json=body)
    assert answer.status_code == 200, answer.text


async def test_a_key_s_own_limits_bound_it_too(tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    add_key(keys, KeyEntry(name="a", hash=digest("short"), max_tokens=7))
    add_key(keys, KeyEntry(name="b", hash=digest("small"), context=100))
    async with serving(scripted(ENDLESS, context_length=CONTEXT), max_context=CONTEXT, keys_file=str(keys)) as running:
        async with AsyncAnthropic(base_url=running.url, api_key="short", max_retries=0) as client:
            for asked in (8, 200, 10**6):
                answer = await ask(client, False, max_tokens=asked, messages=HELLO)
                assert (answer.usage.output_tokens, answer.stop_reason) == (7, "max_tokens")
        async with AsyncAnthropic(base_url=running.url, api_key="small", max_retries=0) as client:
            for asked in (99, 200, 10**6):
                answer = await ask(client, False, max_tokens=asked, messages=HELLO)
                assert answer.usage.input_tokens + answer.usage.output_tokens == 100


async def test_every_wire_fits_them() -> None:
    thread = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": []}
    agui = {**thread, "messages": [{"id": "m", "role": "user", "content": "word " * 60}]}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": LONG, "max_tokens": 10**6},
        "/v1/responses": {"input": LONG, "max_output_tokens": 10**6},
        "/v1/completions": {"prompt": "word " * 60, "max_tokens": 10**6},
        "/completion": {"prompt": "word " * 60, "n_predict": 10**6},
        "/api/chat": {"model": "default", "messages": LONG, "options": {"num_predict": 10**6}, "stream": False},
        "/agui": {**agui, "forwardedProps": {"max_tokens": 10**6}},
    }
    async with (
        serving(scripted(ENDLESS, context_length=CONTEXT), max_context=CONTEXT) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        for path, body in bodies.items():
            answer = await http.post(path, json=body)
            assert answer.status_code == 200 and "RUN_ERROR" not in answer.text, (path, answer.text)
            asked = running.engine.requests[-1]
            assert len(asked.prompt_token_ids) + (asked.sampling.max_tokens or 0) == CONTEXT, path


async def test_a_truncated_conversation_leaves_a_quarter_of_the_context_for_a_long_answer() -> None:
    turns = [{"role": "user", "content": "word " * 9}, {"role": "assistant", "content": "word " * 9}] * 12
    async with (
        serving(scripted(ENDLESS, context_length=CONTEXT), max_context=CONTEXT) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        prompts = []
        for most in (1, 40, 10**6):
            body = {"input": [*turns, *HELLO], "max_output_tokens": most, "truncation": "auto"}
            answer = await http.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            prompts.append(len(running.engine.requests[-1].prompt_token_ids))
        longest, middle, shortest = prompts
        assert CONTEXT // 2 < shortest <= CONTEXT - CONTEXT // 4 < longest <= CONTEXT - 1 and middle <= CONTEXT - 40
        # the last turn alone may be longer
        last = [{"role": "user", "content": "word " * 110}]
        body = {"input": [*turns, *last], "max_output_tokens": 10**6, "truncation": "auto"}
        answer = await http.post("/v1/responses", json=body)
        assert answer.json()["usage"]["total_tokens"] == CONTEXT
