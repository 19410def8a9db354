"""The openai package's Responses talk to a running server: streams, stored conversations, background, cancelling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from agent_server.agent import Agent
from agent_server.engines.scripts import Fault, Script
from tests.server import Running, scripted, serving

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather now.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
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


def without_ids(response: Any) -> Any:
    found = response.model_dump()
    for name in ("id", "created_at"):
        found.pop(name)
    for item in found["output"]:
        item.pop("id")
        item.pop("call_id", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return found


async def test_one_response_both_ways(client: AsyncOpenAI) -> None:
    whole = await client.responses.create(model="default", input="Hello", instructions="Be brief.")
    assert whole.output_text == "It is sunny in Oslo."
    assert whole.status == "completed"
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.output[0].content[0].text.strip() == "I have it."  # type: ignore[union-attr, index]
    async with client.responses.stream(model="default", input="Hello", instructions="Be brief.") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert without_ids(final) == without_ids(whole)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == "It is sunny in Oslo."
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"


async def test_a_tool_round_trip_through_the_stored_response() -> None:
    async with serving(scripted([Script(text=CALL), Script(text=ANSWER)])) as running, client_of(running) as client:
        asked = await client.responses.create(model="default", input="Weather?", tools=[WEATHER], instructions="Hm.")
        call = asked.output[-1]
        assert call.type == "function_call" and call.arguments == '{"city": "Oslo"}'
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        answered = await client.responses.create(
            model="default", input=[output], previous_response_id=asked.id, tools=[WEATHER]
        )
        assert answered.output_text == "It is sunny in Oslo."
        prompt = running.server.model.prompts.detokenize(running.engine.requests[1].prompt_token_ids)
        assert "Weather?" in prompt and "sunny" in prompt and "Hm." not in prompt
        again = await client.responses.create(
            model="default", input="And now?", previous_response_id=asked.id, tools=[WEATHER]
        )
        assert again.status == "completed"


async def test_a_tool_round_trip_sent_back_whole() -> None:
    async with serving(scripted([Script(text=CALL), Script(text=ANSWER)])) as running, client_of(running) as client:
        asked = await client.responses.create(model="default", input="Weather?", tools=[WEATHER], store=False)
        items: list[Any] = [{"role": "user", "content": "Weather?"}]
        items += [item.model_dump(exclude_none=True) for item in asked.output]
        items.append({"type": "function_call_output", "call_id": asked.output[-1].call_id, "output": "sunny"})  # type: ignore[union-attr]
        answered = await client.responses.create(model="default", input=items, tools=[WEATHER], store=False)
        assert answered.output_text == "It is sunny in Oslo."
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(answered.id)


async def test_stored_responses(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="default", input="Hello", metadata={"k": "v"})
    assert (await client.responses.retrieve(made.id)).model_dump() == made.model_dump()
    items = [item async for item in client.responses.input_items.list(made.id)]
    assert items[0].content[0].text == "Hello"  # type: ignore[union-attr]
    await client.responses.delete(made.id)
    for missing in (client.responses.retrieve(made.id), client.responses.delete(made.id)):
        with pytest.raises(openai.NotFoundError):
            await missing
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="default", input="x", previous_response_id=made.id)


async def test_a_background_response_is_resumed_after_a_number() -> None:
    async with serving(scripted([Script(text=ANSWER, delay=0.02)])) as running, client_of(running) as client:
        seen = []
        stream = await client.responses.create(model="default", input="Hello", background=True, stream=True)
        async for event in stream:
            seen.append(event)
            if len(seen) == 6:
                break
        await stream.close()
        response_id = seen[0].response.id  # type: ignore[union-attr]
        assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
        assert (await client.responses.retrieve(response_id)).status == "in_progress"
        rest = [
            event
            async for event in await client.responses.retrieve(
                response_id, stream=True, starting_after=seen[-1].sequence_number
            )
        ]
        numbers = [event.sequence_number for event in seen + rest]
        assert numbers == list(range(len(numbers)))
        assert rest[-1].type == "response.completed"
        kept = await client.responses.retrieve(response_id)
        assert (kept.status, kept.output_text) == ("completed", "It is sunny in Oslo.")


async def test_a_background_response_can_be_polled_and_cancelled() -> None:
    async with (
        serving(scripted([Script(text=ANSWER, delay=0.05, reason=None)])) as running,
        client_of(running) as client,
    ):
        made = await client.responses.create(model="default", input="Hello", background=True)
        assert made.status == "queued"
        await asyncio.sleep(0.2)
        assert running.engine.running
        cancelled = await client.responses.cancel(made.id)
        assert cancelled.status == "cancelled"
        assert not running.engine.running
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(made.id)
        assert (await client.responses.retrieve(made.id)).status == "cancelled"


async def test_incomplete_and_failed() -> None:
    fault = Fault(action="error", kind="connection", after=15, message="The engine is gone.")
    engine = scripted([Script(text=ANSWER), Script(text=ANSWER, fault=fault), Script(text=ANSWER, fault=fault)])
    async with serving(engine) as running, client_of(running) as client:
        cut = await client.responses.create(model="default", input="Hello", max_output_tokens=14)
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")  # type: ignore[union-attr]
        assert cut.output[-1].status == "incomplete"  # type: ignore[union-attr]
        broken = await client.responses.create(model="default", input="Hello")
        assert (broken.status, broken.error.message) == ("failed", "The engine is gone.")  # type: ignore[union-attr]
        stream = await client.responses.create(model="default", input="Hello", stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"


async def test_reasoning_as_summary_and_sealed() -> None:
    agent = Agent(name="quiet", reasoning="hidden")
    async with serving(scripted([Script(text=ANSWER)] * 3), agents=[agent]) as running, client_of(running) as client:
        told: Any = {"summary": "auto"}
        hidden = await client.responses.create(
            model="quiet", input="Hello", include=["reasoning.encrypted_content"], store=False
        )
        thought = hidden.output[0]
        assert thought.type == "reasoning" and thought.encrypted_content and not thought.content
        items: list[Any] = [{"role": "user", "content": "Hello"}]
        items += [item.model_dump(exclude_none=True) for item in hidden.output]
        items.append({"role": "user", "content": "And?"})
        again = await client.responses.create(model="quiet", input=items, store=False, reasoning=told)
        assert again.output_text == "It is sunny in Oslo."
        prompt = running.server.model.prompts.detokenize(running.engine.requests[1].prompt_token_ids)
        assert "It is sunny in Oslo." in prompt
    async with serving(scripted(ANSWER)) as running, client_of(running) as client:
        shown = await client.responses.create(model="default", input="Hello", reasoning=told)
        assert shown.output[0].summary[0].text.strip() == "I have it."  # type: ignore[union-attr, index]


class City(BaseModel):
    name: str


async def test_structured_output_is_parsed() -> None:
    engine = scripted('<think>\n\n</think>\n\n{"name": "Oslo"}', supports_constraints=True)
    async with serving(engine) as running, client_of(running) as client:
        parsed = await client.responses.parse(model="default", input="Where?", text_format=City)
        assert parsed.output_parsed == City(name="Oslo")


async def test_log_probabilities(client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model="default", input="Hello", include=["message.output_text.logprobs"], top_logprobs=2
    )
    part = made.output[-1].content[0]  # type: ignore[union-attr, index]
    assert "".join(token.token for token in part.logprobs).endswith("It is sunny in Oslo.")


async def test_errors_name_their_field(client: AsyncOpenAI) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"conversation": 5}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"include": ["file_search_call.results"]}, "include"),
    ]
    for fields, param in refused:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**{"model": "default", "input": "x", **fields})
        assert caught.value.param == param
