"""The openai package's Responses talk to a running server: streams, stored conversations, background, cancelling."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from agent_server.agents import Agent
from agent_server.engines.scripted import Fault, Script
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
    for name in ("id", "created_at", "completed_at"):
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
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        assert (await client.responses.retrieve(made.id)).status == "cancelled"


async def test_cancelling_tells_how_a_background_response_ended_and_refuses_others() -> None:
    """As at OpenAI: cancelling one that is over gives it as it is."""
    async with serving(scripted(ANSWER)) as running, client_of(running) as client:
        made = await client.responses.create(model="default", input="Hello", background=True)
        async with asyncio.timeout(5):
            while (await client.responses.retrieve(made.id)).status != "completed":
                await asyncio.sleep(0.01)
        over = await client.responses.cancel(made.id)
        assert (over.status, over.output_text) == ("completed", "It is sunny in Oslo.")
        waited_for = await client.responses.create(model="default", input="Hello")
        with pytest.raises(openai.BadRequestError):
            await client.responses.cancel(waited_for.id)


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
        ({"tools": [{"name": "telepathy"}]}, "tools.0.type"),
        ({"conversation": 5}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"include": "file_search_call.results"}, "include"),
    ]
    for fields, param in refused:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(**{"model": "default", "input": "x", **fields})
        assert caught.value.param == param


class Summariser:
    """Answers "Noted.", or, where it is asked for a summary, what it was given to summarise of."""

    def __init__(self, context: int = 4096) -> None:
        self.summarised: list[str] = []
        self.engine = scripted(self, context_length=context)

    def __call__(self, request: Any) -> Script:
        prompt = self.engine_text(request)
        if "Summarise this beginning" not in prompt:
            return Script(text="Noted.")
        self.summarised.append(prompt)
        return Script(text=f"Summary {len(self.summarised)}: the ship is the Fram.")

    def engine_text(self, request: Any) -> str:
        return str(self.prompts.detokenize(request.prompt_token_ids))

    prompts: Any = None


@contextlib.asynccontextmanager
async def summarising(context: int = 4096) -> AsyncIterator[tuple[Summariser, Running, AsyncOpenAI]]:
    script = Summariser(context)
    async with serving(script.engine, max_context=context) as running, client_of(running) as client:
        script.prompts = running.server.model.prompts
        yield script, running, client


TALK: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "My ship is the Fram."},
    {"role": "assistant", "content": "A fine ship."},
    {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
]


async def test_a_compacted_conversation_is_gone_on_with() -> None:
    async with summarising() as (script, running, client):
        made = await client.responses.compact(model="default", input=TALK, instructions="Speak of ships.")
        assert made.object == "response.compaction" and made.id.startswith("resp_")
        assert [(item.type, getattr(item, "role", None)) for item in made.output] == [
            ("message", "developer"), ("message", "user"), ("compaction", None),
        ]  # fmt: skip
        sealed = made.output[-1]
        assert sealed.type == "compaction" and "Fram" not in sealed.encrypted_content
        assert made.usage.input_tokens > 20 and made.usage.output_tokens > 4
        assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
        (summarised,) = script.summarised
        for part in ("Speak of ships.", "A fine ship.", "calls get_weather", "tool: sunny"):
            assert part in summarised
        items: list[Any] = [item.model_dump(exclude_none=True, warnings=False) for item in made.output]
        items.append({"role": "user", "content": "Which ship?"})
        answered = await client.responses.create(model="default", input=items)
        assert answered.output_text == "Noted."
        prompt = script.engine_text(running.engine.requests[-1])
        assert "Summary 1: the ship is the Fram." in prompt and prompt.count("My ship is the Fram.") == 1
        assert "A fine ship." not in prompt and "sunny" not in prompt
        again = await client.responses.compact(model="default", previous_response_id=answered.id)
        assert [getattr(item, "role", None) for item in again.output] == ["developer", "user", "user", None]
        assert "Summary 1: the ship is the Fram." in script.summarised[1]
        counted = await client.responses.input_tokens.count(model="default", input=items)
        assert counted.input_tokens == len(running.engine.requests[1].prompt_token_ids)


async def test_what_is_longer_than_the_context_is_summarised_in_pieces() -> None:
    async with summarising(context=600) as (script, running, client):
        talk: list[Any] = []
        for number in range(12):
            talk += [{"role": "user", "content": f"Number {number}: " + "word " * 40}]
            talk += [{"role": "assistant", "content": f"I have number {number}."}]
        made = await client.responses.compact(model="default", input=talk)
        assert len(made.output) == 13 and len(script.summarised) > 2
        for earlier, prompt in enumerate(script.summarised[1:], 1):
            assert f"Summary {earlier}: the ship" in prompt
        assert made.usage.input_tokens == sum(len(each.prompt_token_ids) for each in running.engine.requests)


async def test_a_compaction_item_that_was_not_sealed_here_is_refused() -> None:
    async with summarising() as (_, _, client):
        item: Any = {"type": "compaction", "encrypted_content": "gAAAA"}
        with pytest.raises(openai.BadRequestError, match="send the conversation itself") as caught:
            await client.responses.create(model="default", input=[item])
        assert caught.value.param == "input.0.encrypted_content"
        with pytest.raises(openai.BadRequestError, match="input is required"):
            await client.responses.compact(model="default")
        with pytest.raises(openai.NotFoundError):
            await client.responses.compact(model="default", previous_response_id="resp_none")


async def test_a_summary_that_fails_is_an_error() -> None:
    async with serving(scripted([Script(text=" ")])) as running, client_of(running) as client:
        with pytest.raises(openai.InternalServerError, match="no summary"):
            await client.responses.compact(model="default", input="Hello")


# ---- compaction within a response ---------------------------------------------------------------------------------------

NOW: Any = {"type": "compaction_trigger"}
LONG: list[Any] = [
    turn
    for number in range(6)
    for turn in (
        {"role": "user", "content": f"Number {number}: " + "word " * 30},
        {"role": "assistant", "content": f"I have number {number}."},
    )
]


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


async def streamed(client: AsyncOpenAI, **fields: Any) -> tuple[list[Any], Any]:
    events = [event async for event in await client.responses.create(model="default", stream=True, **fields)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events, events[-1].response


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [False, True])
async def test_a_trigger_makes_the_conversation_short_in_the_place_of_an_answer(stream: bool, store: bool) -> None:
    fields: dict[str, Any] = {"input": [*TALK, NOW], "instructions": "Speak of ships.", "store": store}
    async with summarising() as (script, running, client):
        if stream:
            events, made = await streamed(client, **fields)
            assert [event.type for event in events] == [
                "response.created", "response.in_progress", "response.output_item.added",
                "response.compaction.compacting", "response.output_item.done", "response.completed",
            ]  # fmt: skip
            told = events[3]
            assert (told.item_id, told.output_index) == (made.output[0].id, 0) == (events[4].item.id, 0)
            assert events[4].item == made.output[0]
        else:
            made = await client.responses.create(model="default", **fields)
        assert kinds(made) == ["compaction"] and made.status == "completed"
        assert made.output[0].id.startswith("cmp_") and "Fram" not in made.output[0].encrypted_content
        assert made.usage is not None and made.usage.output_tokens > 4 and len(running.engine.requests) == 1
        assert "My ship is the Fram." in script.summarised[0] and "calls get_weather" in script.summarised[0]

        item = made.output[0].model_dump(exclude_none=True)
        again = [item, {"role": "user", "content": "Which ship?"}]
        for given in (again, [*TALK, *again]):  # what stood before it may be left out, or not
            answered = await client.responses.create(model="default", input=given)
            assert answered.output_text == "Noted."
            prompt = script.engine_text(running.engine.requests[-1])
            assert "Summary 1: the ship is the Fram." in prompt and "Which ship?" in prompt
            assert "Be brief." in prompt and "A fine ship." not in prompt and "Speak of ships." not in prompt


async def test_a_response_goes_on_from_a_compaction_that_was_stored() -> None:
    async with summarising() as (script, running, client):
        first = await client.responses.create(model="default", input=TALK)
        short = await client.responses.create(model="default", input=[NOW], previous_response_id=first.id)
        assert kinds(short) == kinds(await client.responses.retrieve(short.id)) == ["compaction"]
        await client.responses.create(model="default", input="Which ship?", previous_response_id=short.id)
        prompt = script.engine_text(running.engine.requests[-1])
        assert "Summary 1: the ship is the Fram." in prompt and "A fine ship." not in prompt
        referred: list[Any] = [{"type": "item_reference", "id": short.output[0].id}, {"role": "user", "content": "Eh?"}]
        await client.responses.create(model="default", input=referred)
        assert "Summary 1: the ship is the Fram." in script.engine_text(running.engine.requests[-1])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_above_its_threshold_is_made_short_before_it_is_answered(stream: bool) -> None:
    asked = [*LONG, {"role": "user", "content": "And now?"}]
    managed: Any = [{"type": "compaction", "compact_threshold": 300}]
    async with summarising() as (script, running, client):
        plain = await client.responses.create(model="default", input=asked)
        assert kinds(plain) == ["message"]
        fields: dict[str, Any] = {"input": asked, "context_management": managed, "instructions": "Speak of ships."}
        if stream:
            events, made = await streamed(client, **fields)
            assert [event.type for event in events[:5]] == [
                "response.created", "response.in_progress", "response.output_item.added",
                "response.compaction.compacting", "response.output_item.done",
            ]  # fmt: skip
            assert "response.output_text.delta" in [event.type for event in events[5:]]
        else:
            made = await client.responses.create(model="default", **fields)
        assert kinds(made) == ["compaction", "message"] and made.output_text == "Noted."
        prompt = script.engine_text(running.engine.requests[-1])
        assert len(running.engine.requests[-1].prompt_token_ids) < 300
        assert "Summary 1" in prompt and "Number 0" not in prompt and "And now?" in prompt
        assert "Number 0" in script.summarised[0] and "Speak of ships." in prompt

        sent = [item.model_dump(exclude_none=True) for item in made.output]
        follow: list[Any] = [*asked, *sent, {"role": "user", "content": "Then?"}]
        stored = {"input": "Then?", "previous_response_id": made.id}
        for given in ({"input": follow}, {"input": follow[len(asked) :]}, stored):
            before = len(script.summarised)
            answered = await client.responses.create(model="default", context_management=managed, **given)
            assert kinds(answered) == ["message"] and len(script.summarised) == before
            prompt = script.engine_text(running.engine.requests[-1])
            assert "Summary 1" in prompt and "Number 0" not in prompt and "And now?" in prompt
            assert prompt.count("Noted.") == 1 and "Speak of ships." not in prompt


async def test_a_conversation_that_is_longer_than_the_context_is_made_short() -> None:
    async with summarising(context=400) as (script, _, client):
        asked: list[Any] = [*LONG, {"role": "user", "content": "And now?"}]
        with pytest.raises(openai.BadRequestError, match="context"):
            await client.responses.create(model="default", input=asked)
        managed: Any = [{"type": "compaction"}]
        made = await client.responses.create(model="default", input=asked, context_management=managed)
        assert kinds(made) == ["compaction", "message"] and len(script.summarised) > 0
        short = await client.responses.create(model="default", input=[*asked, NOW])
        assert kinds(short) == ["compaction"]


async def test_a_conversation_is_kept_with_its_compactions() -> None:
    async with summarising() as (script, running, client):
        talk = await client.conversations.create(items=TALK)
        short = await client.responses.create(model="default", conversation=talk.id, input=[NOW])
        assert kinds(short) == ["compaction"]
        await client.responses.create(model="default", conversation=talk.id, input="Which ship?")
        prompt = script.engine_text(running.engine.requests[-1])
        assert "Summary 1: the ship is the Fram." in prompt and "A fine ship." not in prompt
        items = await client.conversations.items.list(talk.id, order="asc")
        assert [item.type for item in items.data][-3:] == ["compaction", "message", "message"]


async def test_what_cannot_be_made_short_says_so() -> None:
    call = {"type": "function_call", "call_id": "c9", "name": "get_weather", "arguments": "{}"}
    refused: list[tuple[dict[str, Any], str]] = [
        ({"input": [NOW]}, "conversation"),
        ({"input": [NOW, {"role": "user", "content": "x"}]}, "must be the last item"),
        ({"input": [{"role": "user", "content": "x"}, call, NOW]}, "without results"),
        ({"input": "x", "context_management": [{"type": "trim"}]}, "compaction"),
        ({"input": "x", "context_management": [{"type": "compaction", "compact_threshold": 0}]}, "at least 1"),
        ({"input": "x", "context_management": [{"type": "compaction"}] * 2}, "one entry"),
    ]
    async with summarising() as (_, _, client):
        for fields, said in refused:
            with pytest.raises(openai.BadRequestError, match=said):
                await client.responses.create(model="default", **fields)


async def test_a_trigger_without_a_summary_is_an_error_and_no_item() -> None:
    async with serving(scripted([Script(text=" ")] * 2)) as running, client_of(running) as client:
        asked: list[Any] = [{"role": "user", "content": "x"}, NOW]
        with pytest.raises(openai.InternalServerError, match="no summary"):
            await client.responses.create(model="default", input=asked)
        _, failed = await streamed(client, input=asked)
        assert failed.status == "failed" and failed.output == []
