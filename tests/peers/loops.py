"""Agent loops of frameworks that cannot share an environment with ours: `python loops.py FRAMEWORK BASE_URL`.

Runs where the framework is installed, and prints one JSON object: what was called, with what, and the last answer, for a
run in one piece and for a streamed one.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

QUESTION = "How warm is it in Oslo?"
Loop = Callable[[str, bool], Awaitable[dict[str, Any]]]


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"20 degrees in {city}"


def to_fahrenheit(celsius: float) -> float:
    """Convert a temperature."""
    return celsius * 9 / 5 + 32


TOOLS = {"get_weather": get_weather, "to_fahrenheit": to_fahrenheit}


def declared(name: str, key: str, kind: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {key: {"type": kind}}, "required": [key]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


async def litellm_loop(url: str, streamed: bool) -> dict[str, Any]:
    """litellm's chat completions, with the loop written out as its documentation does."""
    import litellm

    tools = [declared("get_weather", "city", "string"), declared("to_fahrenheit", "celsius", "number")]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    called: list[Any] = []
    while len(messages) < 12:
        asked: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
        answer: Any = await litellm.acompletion(
            model="openai/default", api_base=url, api_key="none", messages=messages, tools=tools, **asked
        )
        if streamed:
            answer = litellm.stream_chunk_builder([chunk async for chunk in answer], messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return {"called": called, "answer": message.content, "tokens": answer.usage.total_tokens}
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            called.append([call.function.name, arguments])
            result = TOOLS[call.function.name](**arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
    raise RuntimeError("the loop did not end")


def agents_loop(wire: str) -> Loop:
    """openai-agents' own runner, over Chat Completions or Responses."""

    async def loop(url: str, streamed: bool) -> dict[str, Any]:
        from agents import (
            Agent,
            ModelSettings,
            OpenAIChatCompletionsModel,
            OpenAIResponsesModel,
            Runner,
            function_tool,
            set_tracing_disabled,
        )
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        called: list[Any] = []

        @function_tool(name_override="get_weather")
        def weather(city: str) -> str:
            called.append(["get_weather", {"city": city}])
            return get_weather(city)

        @function_tool(name_override="to_fahrenheit")
        def fahrenheit(celsius: float) -> float:
            called.append(["to_fahrenheit", {"celsius": celsius}])
            return to_fahrenheit(celsius)

        kind: Any = OpenAIChatCompletionsModel if wire == "chat" else OpenAIResponsesModel
        async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            model = kind(model="default", openai_client=client)
            settings = ModelSettings(include_usage=True)
            tools = [weather, fahrenheit]
            agent = Agent(name="a", instructions="Use them.", model=model, tools=tools, model_settings=settings)
            if streamed:
                result: Any = Runner.run_streamed(agent, QUESTION)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, QUESTION)
        return {"called": called, "answer": result.final_output, "tokens": result.context_wrapper.usage.total_tokens}

    return loop


async def agui_loop(url: str, streamed: bool) -> dict[str, Any]:
    """Agent Framework's AG-UI client, whose tools the server's agent calls."""
    from agent_framework import Agent, tool
    from agent_framework_ag_ui import AGUIChatClient

    called: list[Any] = []

    @tool(name="get_weather")
    def weather(city: str) -> str:
        """The weather in a city."""
        called.append(["get_weather", {"city": city}])
        return get_weather(city)

    @tool(name="to_fahrenheit")
    def fahrenheit(celsius: float) -> float:
        """Convert a temperature."""
        called.append(["to_fahrenheit", {"celsius": celsius}])
        return to_fahrenheit(celsius)

    async with AGUIChatClient(endpoint=url.removesuffix("/v1") + "/agui") as client:
        agent = Agent(client=client, name="a", tools=[weather, fahrenheit])
        if streamed:
            text = "".join([update.text async for update in agent.run(QUESTION, stream=True)])
        else:
            text = (await agent.run(QUESTION)).text
    return {"called": called, "answer": text, "tokens": 1}  # the client reports no usage


LOOPS: dict[str, Loop] = {
    "agent-framework": agui_loop,
    "litellm": litellm_loop,
    "openai-agents chat": agents_loop("chat"),
    "openai-agents responses": agents_loop("responses"),
}


async def main(framework: str, url: str) -> None:
    results = {form: await LOOPS[framework](url, form == "streamed") for form in ("whole", "streamed")}
    print(json.dumps(results))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
