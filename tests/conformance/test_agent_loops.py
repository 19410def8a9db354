"""Agent frameworks run their own loops, tools and several turns, against a running server."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as LoopAgent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.server import Running, scripted, serving

TOKENIZER = load_model_files(BUNDLED).tokenizer


def call(name: str, **arguments: Any) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<think>\nI need {name}.\n</think>\n\n<tool_call>\n{written}\n</tool_call>"


def turn_of(request: GenerationRequest) -> Script:
    """What the model would say next, by how many results the prompt holds."""
    results = TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False).count("<tool_response>")
    said = [
        call("get_weather", city="Oslo"),
        call("to_fahrenheit", celsius=20),
        "<think>\n\n</think>\n\nIt is 68 F in Oslo.",
    ]
    return Script(text=said[min(results, 2)])


@contextlib.asynccontextmanager
async def model_of(wire: str, running: Running) -> AsyncIterator[Any]:
    """The framework's model over a client that is closed in the end."""
    if wire == "anthropic":
        async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as claude:
            yield AnthropicModel("default", provider=AnthropicProvider(anthropic_client=claude))
        return
    async with AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client:
        model = OpenAIChatModel if wire == "chat" else OpenAIResponsesModel
        yield model("default", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_pydantic_ai_takes_its_turns(wire: str, streamed: bool) -> None:
    called: list[str] = []
    async with serving(scripted(turn_of)) as running, model_of(wire, running) as model:
        agent = LoopAgent(model, instructions="Use your tools.")

        @agent.tool_plain
        def get_weather(city: str) -> str:
            """The weather in a city."""
            called.append(f"weather {city}")
            return "20 degrees"

        @agent.tool_plain
        def to_fahrenheit(celsius: float) -> float:
            """Convert a temperature."""
            called.append(f"fahrenheit {celsius:g}")
            return celsius * 9 / 5 + 32

        if streamed:
            async with agent.run_stream("How warm is it in Oslo?") as stream:
                output = await stream.get_output()
        else:
            output = (await agent.run("How warm is it in Oslo?")).output
        assert len(running.engine.requests) == 3
    assert output == "It is 68 F in Oslo."
    assert called == ["weather Oslo", "fahrenheit 20"]


@langchain_tool
def get_weather(city: str) -> str:
    """The weather in a city."""
    return "20 degrees"


@langchain_tool
def to_fahrenheit(celsius: float) -> float:
    """Convert a temperature."""
    return celsius * 9 / 5 + 32


async def test_langchain_streams_its_turns() -> None:
    tools = {"get_weather": get_weather, "to_fahrenheit": to_fahrenheit}
    async with serving(scripted(turn_of)) as running, httpx.AsyncClient() as http:
        model = ChatOpenAI(
            model="default", base_url=running.url + "/v1", api_key="none", max_retries=0, http_async_client=http
        )
        history: list[Any] = [HumanMessage("How warm is it in Oslo?")]
        for _ in range(3):
            said: Any = None
            async for chunk in model.bind_tools(list(tools.values())).astream(history):
                said = chunk if said is None else said + chunk
            history.append(said)
            for made in said.tool_calls:
                result = tools[made["name"]].invoke(made["args"])
                history.append(ToolMessage(str(result), tool_call_id=made["id"]))
        whole = await model.ainvoke(history[:-1])
    assert history[-1].content == whole.content == "It is 68 F in Oslo."
    assert whole.usage_metadata is not None and whole.usage_metadata["total_tokens"] > 0
