"""The anthropic package talks to a running server: messages, streaming helpers, tools, thinking, counting, errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from agent_server.engines.scripted import Fault, Script
from tests.server import Running, scripted, serving

WEATHER: Any = {
    "name": "get_weather",
    "description": "Weather now.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
HELLO: Any = [{"role": "user", "content": "Hello"}]
CALL = '<think>\nThey ask for weather.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "<think>\nI have it.\n</think>\n\nIt is sunny in Oslo."
THINK: Any = {"type": "enabled", "budget_tokens": 1024}


def client_of(running: Running) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0)


@pytest.fixture
async def client() -> AsyncIterator[AsyncAnthropic]:
    async with serving(scripted(ANSWER)) as running, client_of(running) as found:
        yield found


async def test_one_message_both_ways(client: AsyncAnthropic) -> None:
    whole = await client.messages.create(model="default", max_tokens=100, messages=HELLO, thinking=THINK)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    assert whole.content[1].text == "It is sunny in Oslo."  # type: ignore[union-attr]
    assert whole.stop_reason == "end_turn"
    async with client.messages.stream(model="default", max_tokens=100, messages=HELLO, thinking=THINK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == "It is sunny in Oslo."
    assert [block.model_dump() for block in final.content] == [block.model_dump() for block in whole.content]
    assert final.usage.input_tokens == whole.usage.input_tokens > 0
    assert final.usage.output_tokens == whole.usage.output_tokens > 0


async def test_a_tool_round_trip_with_thinking_sent_back() -> None:
    async with serving(scripted([Script(text=CALL), Script(text=ANSWER)])) as running, client_of(running) as client:
        asked = await client.messages.create(
            model="default", max_tokens=200, messages=HELLO, tools=[WEATHER], thinking=THINK
        )
        assert asked.stop_reason == "tool_use"
        thought, use = asked.content
        assert thought.type == "thinking" and use.type == "tool_use"
        assert use.input == {"city": "Oslo"}
        result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "sunny"}]}
        history = [
            *HELLO,
            {"role": "assistant", "content": [block.model_dump() for block in asked.content]},
            {"role": "user", "content": [result]},
        ]
        answered = await client.messages.create(
            model="default", max_tokens=200, messages=history, tools=[WEATHER], thinking=THINK
        )
        assert answered.content[-1].text == "It is sunny in Oslo."  # type: ignore[union-attr]
        prompt = running.server.model.prompts.detokenize(running.engine.requests[1].prompt_token_ids)
        assert "sunny" in prompt
        altered = [dict(block) for block in history[1]["content"]]
        altered[0]["thinking"] = "something else"
        history[1] = {"role": "assistant", "content": altered}
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(model="default", max_tokens=200, messages=history)


async def test_a_streamed_tool_call() -> None:
    async with serving(scripted(CALL)) as running, client_of(running) as client:
        async with client.messages.stream(
            model="default", max_tokens=200, messages=HELLO, tools=[WEATHER], tool_choice={"type": "any"}
        ) as stream:
            pieces = [event.partial_json async for event in stream if event.type == "input_json"]
            final = await stream.get_final_message()
        assert "".join(pieces) == '{"city": "Oslo"}'
        assert final.content[-1].input == {"city": "Oslo"}  # type: ignore[union-attr]


async def test_a_prefill_is_continued() -> None:
    async with serving(scripted(" sunny.")) as running, client_of(running) as client:
        prefill: Any = [*HELLO, {"role": "assistant", "content": "It is"}]
        answer = await client.messages.create(model="default", max_tokens=50, messages=prefill)
        assert answer.content[0].text == " sunny."  # type: ignore[union-attr]
        prompt = running.server.model.prompts.detokenize(running.engine.requests[0].prompt_token_ids)
        assert prompt.endswith("It is")


async def test_counting_agrees_with_generating(client: AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="default", messages=HELLO, tools=[WEATHER], system="Be brief.")
    whole = await client.messages.create(
        model="default", max_tokens=100, messages=HELLO, tools=[WEATHER], system="Be brief."
    )
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


async def test_errors_have_their_types(client: AsyncAnthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="no-such-model", max_tokens=9, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(model="default", max_tokens=9, messages=HELLO, extra_body={"regex": "a+"})
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    with pytest.raises(anthropic.BadRequestError):
        await client.messages.create(
            model="default",
            max_tokens=9,
            messages=[{"role": "user", "content": [image]}],  # type: ignore[list-item]
        )


async def test_a_broken_generation_is_an_error_in_the_stream() -> None:
    fault = Fault(action="error", kind="connection", after=12, message="The engine is gone.", retryable=True)
    async with serving(scripted([Script(text=ANSWER, fault=fault)])) as running, client_of(running) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            async with client.messages.stream(model="default", max_tokens=100, messages=HELLO) as stream:
                async for _ in stream:
                    pass
        assert "The engine is gone." in str(caught.value)


async def test_an_overloaded_server_says_529() -> None:
    fault = Fault(action="error", kind="overloaded", message="The queue is full.", retryable=True)
    async with serving(scripted([Script(text=ANSWER, fault=fault)])) as running, client_of(running) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="default", max_tokens=9, messages=HELLO)
        assert caught.value.status_code == 529
        assert caught.value.response.headers["retry-after"]
