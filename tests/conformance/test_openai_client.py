"""The openai package talks to a running server: chat, streaming helpers, tools, structured output, errors, models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from agent_server.engines.scripted import Fault, Script
from tests.server import Running, scripted, serving

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
HELLO: Any = [{"role": "user", "content": "Hello"}]
CALL = '<think>\nThey ask for weather.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "<think>\nI have it.\n</think>\n\nIt is sunny in Oslo."


def client_of(running: Running) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted(ANSWER)) as found:
        yield found


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(running) as found:
        yield found


async def test_one_answer_both_ways(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model="default", messages=HELLO)
    message = whole.choices[0].message
    assert whole._request_id is not None and whole._request_id.startswith("req_")
    assert (message.content, whole.choices[0].finish_reason) == ("It is sunny in Oslo.", "stop")
    assert message.model_extra["reasoning"].strip() == "I have it."  # type: ignore[index]
    assert "".join(whole.model_extra["extensions"]["reasoning_chunks"]).strip() == "I have it."  # type: ignore[index]
    async with client.chat.completions.stream(
        model="default", messages=HELLO, stream_options={"include_usage": True}
    ) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == message.content
    assert final.choices[0].message.model_extra["reasoning"] == message.model_extra["reasoning"]  # type: ignore[index]
    assert final.usage is not None and whole.usage is not None
    assert final.usage.model_dump() == whole.usage.model_dump()
    assert whole.usage.completion_tokens > 5
    assert whole.usage.completion_tokens_details is not None


async def test_a_tool_round_trip() -> None:
    async with serving(scripted([Script(text=CALL), Script(text=ANSWER)])) as running, client_of(running) as client:
        async with client.chat.completions.stream(model="default", messages=HELLO, tools=[WEATHER]) as stream:
            async for _ in stream:
                pass
            asked = (await stream.get_final_completion()).choices[0]
        assert asked.finish_reason == "tool_calls"
        assert asked.message.tool_calls is not None
        call = asked.message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("get_weather", '{"city": "Oslo"}')
        history = [
            *HELLO,
            asked.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ]
        answered = await client.chat.completions.create(model="default", messages=history, tools=[WEATHER])
        assert answered.choices[0].message.content == "It is sunny in Oslo."
        prompt = running.server.model.prompts.detokenize(running.engine.requests[1].prompt_token_ids)
        assert "sunny" in prompt and "get_weather" in prompt


async def test_parsed_output_and_forced_tools(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="default", messages=HELLO, tool_choice="required")
    assert caught.value.body["param"] == "tool_choice"  # type: ignore[index]


class City(BaseModel):
    name: str


async def test_structured_output_is_parsed() -> None:
    engine = scripted('<think>\n\n</think>\n\n{"name": "Oslo"}', supports_constraints=True)
    async with serving(engine) as running, client_of(running) as client:
        parsed = await client.chat.completions.parse(model="default", messages=HELLO, response_format=City)
        assert parsed.choices[0].message.parsed == City(name="Oslo")


async def test_several_choices_and_log_probabilities(client: AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(
        model="default", messages=HELLO, n=3, logprobs=True, top_logprobs=2, seed=7
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(token.token for token in logprobs.content).endswith("It is sunny in Oslo.")
    assert all(len(token.top_logprobs) == 2 for token in logprobs.content)
    seen: dict[int, str] = {0: "", 1: "", 2: ""}
    async for chunk in await client.chat.completions.create(model="default", messages=HELLO, n=3, stream=True):
        for choice in chunk.choices:
            seen[choice.index] += choice.delta.content or ""
    assert set(seen.values()) == {"It is sunny in Oslo."}


async def test_errors_have_their_types(running: Running, client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.create(model="no-such-model", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(model="default", messages=HELLO, extra_body={"format": "json"})
    assert caught.value.param == "format"


async def test_a_prompt_that_does_not_fit_is_a_status_with_streaming_too() -> None:
    long: Any = [{"role": "user", "content": "x y " * 400}]
    async with serving(scripted(ANSWER, context_length=512)) as running, client_of(running) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="default", messages=long, stream=stream)
            assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(("after", "seen"), [(0, ""), (12, "It is")])
async def test_a_broken_generation(after: int, seen: str) -> None:
    """Before the first token it is a status, later an error inside the stream."""
    fault = Fault(action="error", kind="connection", after=after, message="The engine is gone.", retryable=True)
    engine = scripted([Script(text=ANSWER, fault=fault)] * 2)
    async with serving(engine) as running, client_of(running) as client:
        text = ""
        with pytest.raises(openai.APIError) as caught:
            async for chunk in await client.chat.completions.create(model="default", messages=HELLO, stream=True):
                text += chunk.choices[0].delta.content or ""
        assert caught.value.message and "The engine is gone." in caught.value.message
        assert text.startswith(seen)
        with pytest.raises(openai.APIStatusError) as status:
            await client.chat.completions.create(model="default", messages=HELLO)
        assert status.value.status_code == 502


async def test_text_completions(client: AsyncOpenAI) -> None:
    whole = await client.completions.create(model="default", prompt="Once", max_tokens=200, logprobs=1, echo=False)
    assert whole.choices[0].text.endswith("It is sunny in Oslo.")
    assert whole.choices[0].logprobs is not None
    echoed = await client.completions.create(model="default", prompt=["Once", [5, 6]], max_tokens=3, echo=True)  # type: ignore[list-item]
    assert [choice.index for choice in echoed.choices] == [0, 1]
    assert echoed.choices[0].text.startswith("Once")
    assert echoed.choices[0].finish_reason == "length"
    text = ""
    async for chunk in await client.completions.create(model="default", prompt="Once", max_tokens=200, stream=True):
        text += chunk.choices[0].text
    assert text == whole.choices[0].text


async def test_models(client: AsyncOpenAI) -> None:
    models = [model async for model in client.models.list()]
    assert models[0].model_extra["context_length"] > 0  # type: ignore[index]
    assert models[0].model_extra["capabilities"]["tools"]  # type: ignore[index]
    assert (await client.models.retrieve(models[0].id)).id == models[0].id
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("no-such-model")


async def test_a_client_that_leaves_stops_its_generation() -> None:
    engine = scripted([Script(text=ANSWER, delay=0.05, reason=None)] * 2)
    async with serving(engine) as running, client_of(running) as client:
        stream = await client.chat.completions.create(model="default", messages=HELLO, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await gone(running)
        assert len(running.engine.cancelled) == 1


async def gone(running: Running) -> None:
    async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
        while running.engine.running:
            await asyncio.sleep(0.005)
