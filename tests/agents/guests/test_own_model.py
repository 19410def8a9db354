"""This server's model in other frameworks' agents, inside of their runs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from ag2 import Agent as Ag2Agent
from agno.agent import Agent as AgnoAgent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool as langchain_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import BadRequestError
from pydantic_ai import Agent as PydanticAgent

from adapters import sse
from agent_server import ServerModel, openai_client
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.agents.guests.graphs import weather
from tests.agents.guests.talking import body, events_of, told, user
from tests.server import scripted, serving

TOKENIZER = load_model_files(BUNDLED).tokenizer
CALL = '<think>\nI look.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"place": "Oslo"}}\n</tool_call>'
ANSWER = "<think>\n\n</think>\n\nSunny."
EXPECTED = [
    ("reasoning", "I look."),
    ("call", "weather"),
    ("args", '{"place": "Oslo"}'),
    ("result", "Sun in Oslo"),
    ("text", "Sunny."),
    ("finished", "success"),
]


def turn(request: GenerationRequest) -> Script:
    prompt = TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False)
    return Script(text=ANSWER if "<tool_response>" in prompt else CALL)


def langgraph(*, tool: Any = weather, **options: Any) -> Any:
    model = ServerModel(**options).bind_tools([tool])

    async def talk(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("talk", talk)
    builder.add_node("tools", ToolNode([tool]))
    builder.add_edge(START, "talk")
    builder.add_conditional_edges("talk", tools_condition)
    builder.add_edge("tools", "talk")
    compiled = builder.compile(checkpointer=InMemorySaver())
    compiled.name = "own"
    return compiled


def pydantic(calls: list[str] | None = None) -> Any:
    agent = PydanticAgent(name="own")

    @agent.tool_plain(name="weather")
    def look(place: str) -> str:
        """The weather in a place."""
        if calls is not None:
            calls.append(place)
        return f"Sun in {place}"

    return agent


@pytest.mark.parametrize("make", [langgraph, pydantic])
async def test_reasoning_and_calls_of_our_model_come_through_a_framework(make: Any) -> None:
    async with serving(scripted(turn), agents=[make()], api_keys=("acme:1",)) as running:
        frames = await events_of(running.url, body(user("Weather?")), authorization="Bearer 1")
        requests = running.engine.requests
    assert [each for each in told(frames) if each[0] != "state"] == EXPECTED
    assert {request.tenant for request in requests} == {"acme"} and len(requests) == 2
    assert len(frames[-1]["usage"]) == 1
    assert frames[-1]["usage"][0]["inputTokens"] == sum(len(request.prompt_token_ids) for request in requests)


class Client:
    name = "client"

    async def run(self, input: Any) -> Any:
        client = openai_client()
        stream = await client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "Hi"}], stream=True, temperature=0.5
        )
        yield {"type": "TEXT_MESSAGE_START", "messageId": "m"}
        async for chunk in stream:
            delta = chunk.choices[0].delta
            if text := delta.content or getattr(delta, "reasoning", None):
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": f"[{text}]"}
        yield {"type": "TEXT_MESSAGE_END", "messageId": "m"}
        whole = await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hi"}])
        yield {
            "type": "CUSTOM",
            "name": "whole",
            "value": whole.model_dump(mode="json")["choices"][0]["message"]["content"],
        }
        with pytest.raises(BadRequestError, match="one answer"):
            await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "Hi"}], n=2)


async def test_an_openai_client_streams_in_process() -> None:
    async with serving(scripted("<think>\nHm.\n</think>\n\nHello you."), agents=[Client()]) as running:
        frames = await events_of(running.url, body(user("x")))
        request = running.engine.requests[0]
    assert told(frames)[0][1].count("[") > 2 and told(frames)[0][1].replace("][", "") == "[Hm.Hello you.]"
    assert [frame["value"] for frame in frames if frame["type"] == "CUSTOM"] == ["Hello you."]
    assert request.sampling.temperature == 0.5


async def test_a_generation_ends_with_the_run_that_it_belongs_to() -> None:
    engine = scripted((Script(text="word " * 500, delay=0.01),))
    async with serving(engine, agents=[langgraph()]) as running:
        reading = asyncio.create_task(events_of(running.url, body(user("hi"))))
        while not (runs := running.server.runs.on_thread("t1")) or runs[0].log.last < 6:
            await asyncio.sleep(0.005)
        await runs[0].cancel()
        frames = await reading
        assert not running.engine.metrics().get("running")
    assert frames[-1]["outcome"] == {"type": "cancelled"}


async def test_more_runs_than_places_for_generations_all_end() -> None:
    """200 at once over CopilotKit, each with two generations, of which 64 go on at a time."""
    path = "/copilotkit/agent/own/run"
    async with serving(scripted(turn, max_running=64), agents=[langgraph()], max_runs=200) as running:
        async with httpx.AsyncClient(base_url=running.url, timeout=60, limits=httpx.Limits(max_connections=200)) as to:
            runs = [to.post(path, json=body(user("hi"), thread=f"t{n}", run=f"r{n}")) for n in range(200)]
            answers = await asyncio.gather(*runs)
        assert len(running.engine.requests) == 400
    for answer in answers:
        frames = [json.loads(frame["data"]) for frame in sse.parse([answer.content])]
        assert told(frames)[-1] == ("finished", "success") and ("text", "Sunny.") in told(frames)


async def test_the_requests_parameters_hold_where_the_framework_states_none() -> None:
    async with serving(scripted(ANSWER), agents=[langgraph(max_tokens=7)]) as running:
        await events_of(running.url, body(user("hi"), forwardedProps={"temperature": 0.25, "max_tokens": 50}))
        sampling = running.engine.requests[0].sampling
    assert (sampling.temperature, sampling.max_tokens) == (0.25, 7)


async def test_outside_of_a_run_the_model_says_where_it_works() -> None:
    with pytest.raises(RuntimeError, match="only within a run"):
        await ServerModel().ainvoke([HumanMessage("hi")])


def agno() -> Any:
    def weather(place: str) -> str:
        """The weather in a place."""
        made.append(place)
        return f"Sun in {place}"

    return AgnoAgent(name="own", tools=[weather], telemetry=False)


def ag2() -> Any:
    agent: Any = Ag2Agent("own")

    @agent.tool
    def weather(place: str) -> str:
        """The weather in a place."""
        made.append(place)
        return f"Sun in {place}"

    return agent


def counted_langgraph() -> Any:
    return langgraph(tool=counted)


def counted_pydantic() -> Any:
    return pydantic(made)


made: list[str] = []


@langchain_tool("weather")
def counted(place: str) -> str:
    """The weather in a place."""
    made.append(place)
    return f"Sun in {place}"


@pytest.mark.parametrize("make", [counted_langgraph, counted_pydantic, agno, ag2])
@pytest.mark.parametrize("end", ['{"place": "Os', '{"place": "Oslo"}'])
async def test_no_framework_makes_a_call_that_was_cut_off(make: Any, end: str) -> None:
    """LangChain and others complete such arguments, and would make the call."""
    made.clear()
    script = Script(text=CALL[: CALL.index(end) + len(end)], reason="length")
    async with serving(scripted([script]), agents=[make()]) as running:
        frames = await events_of(running.url, body(user("Weather?")))
        assert len(running.engine.requests) == 1
    assert made == []
    assert frames[-1]["type"] == "RUN_FINISHED", frames[-1]
    assert frames[-1]["metadata"]["finishReason"] == "length"
    begun = [frame["toolCallId"] for frame in frames if frame["type"] == "TOOL_CALL_START"]
    results = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    assert [result["toolCallId"] for result in results] == begun
    assert all("was not made" in result["content"] for result in results)
