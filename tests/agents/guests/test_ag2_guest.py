"""An AG2 agent behind the server: what clients see of it, and what its model is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from ag2 import Agent, Context
from ag2.config import LLMClient
from ag2.events import (
    BaseEvent,
    ModelMessage,
    ModelMessageChunk,
    ModelReasoning,
    ModelRequest,
    ModelResponse,
    ToolCallEvent,
    ToolCallsEvent,
    ToolResultsEvent,
)
from ag2.testing import TestConfig as ScriptedConfig
from openai import AsyncOpenAI

from agent_server.engines.scripted import Script
from tests.agents.guests.talking import PAINT, body, events_of, told, user
from tests.server import scripted, serving

# AG2 1.2 leaves the streams of a question's first run to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:Unclosed <MemoryObject:ResourceWarning")


class Scripted(LLMClient):
    """Calls what a user's message names (`call NAME ARGUMENTS`), and says again anything else. `seen`: what it was
    told, and the prompt."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    async def __call__(self, messages: Sequence[BaseEvent], context: Context, **kwargs: Any) -> ModelResponse:
        self.seen.append((list(messages), list(context.prompt)))
        last = messages[-2] if isinstance(messages[-1], ModelRequest) and not messages[-1].parts else messages[-1]
        if isinstance(last, ToolResultsEvent):
            return await said(
                context, "It says: " + " ".join(str(part.content) for part in last.results[0].result.parts)
            )
        assert isinstance(last, ModelRequest)
        text = " ".join(str(getattr(part, "content", "")) for part in last.parts)
        if text.startswith("call"):
            _, name, arguments = text.split(" ", 2)
            call = ToolCallEvent(id=f"call-{len(messages)}", name=name, arguments=arguments)
            return ModelResponse(tool_calls=ToolCallsEvent([call]))
        if text == "wait":
            await context.send(ModelMessageChunk("Waiting"))
            await asyncio.Event().wait()
        if text == "fail":
            raise ValueError("the password is swordfish")
        await context.send(ModelReasoning("Thinking"))
        return await said(context, f"You said {text}")


async def said(context: Context, text: str) -> ModelResponse:
    for word in text.split(" "):
        await context.send(ModelMessageChunk(word + " "))
    message = ModelMessage(text)
    await context.send(message)
    return ModelResponse(message)


class Config(ScriptedConfig):
    def create(self) -> Any:
        return Scripted(self.events[0])


def ag2_agent(name: str = "ag2") -> Any:
    """The agent; `told` is what its model was told."""
    seen: list[Any] = []
    agent: Any = Agent(name, config=Config(seen, raise_tool_errors=False))  # type: ignore[arg-type]

    @agent.tool
    def weather(place: str) -> str:
        """The weather in a place."""
        if place == "Atlantis":
            raise ValueError("There is no such place.")
        return f"Sun in {place}"

    @agent.tool
    async def book(place: str, context: Context) -> str:
        """Book a journey, if a person agrees."""
        answer = await context.input(f"Book {place}?")
        return f"Booked {place}: {answer}"

    @agent.tool
    def rename(title: str, context: Context) -> str:
        """Rename the recipe."""
        before, context.variables["title"] = context.variables.get("title"), title
        return f"was {before}"

    agent.told = seen
    return agent


async def test_text_reasoning_context_and_state() -> None:
    agent = ag2_agent()
    async with serving(scripted("no"), agents=[agent]) as running:
        context = [{"description": "The page", "value": "a map"}]
        frames = await events_of(running.url, body(user("hi"), context=context))
        request = body(user('call rename {"title": "stew"}'), thread="t2", run="r2", state={"title": "pie"})
        renamed = await events_of(running.url, request)
    assert told(frames) == [("reasoning", "Thinking"), ("text", "You said hi "), ("finished", "success")]
    assert "The page: a map" in str(agent.told[0][1])
    assert ("result", "was pie") in told(renamed) and ("state", {"title": "stew"}) in told(renamed)


async def test_a_tools_error_is_told_to_the_model() -> None:
    async with serving(scripted("no"), agents=[ag2_agent()]) as running:
        frames = await events_of(running.url, body(user('call weather {"place": "Atlantis"}')))
    short = told(frames)
    assert short[0] == ("call", "weather") and "no such place" in short[2][1] and short[-1] == ("finished", "success")


ASKS = 'call book {"place": "Oslo"}'


def answers(id: str, payload: Any, status: str = "resolved") -> dict[str, Any]:
    return {"resume": [{"interruptId": id, "status": status, "payload": payload}]}


async def test_a_question_under_the_servers_rules() -> None:
    async with serving(scripted("no"), agents=[ag2_agent()]) as running:
        first = await events_of(running.url, body(user(ASKS)))
        asked = first[-1]["outcome"]["interrupts"][0]
        without = await events_of(running.url, body(user("hi", "u2"), run="r2"))
        last = await events_of(running.url, body(run="r3", **answers(asked["id"], "by train")))
        again = await events_of(running.url, body(run="r4", **answers(asked["id"], "by train")))
        other = await events_of(running.url, body(user(ASKS, "u5"), run="r5", thread="t2"))
        id = other[-1]["outcome"]["interrupts"][0]["id"]
        cancelled = await events_of(running.url, body(run="r6", thread="t2", **answers(id, None, "cancelled")))
    assert asked["message"] == "Book Oslo?" and told(without)[-1][0] == "error"
    assert told(last)[0] == ("result", "Booked Oslo: by train") and told(last)[-1] == ("finished", "success")
    assert told(again)[-1] == ("finished", "success") and ("result", "Booked Oslo: by train") not in told(again)
    assert "Booked" not in json.dumps(cancelled)


async def test_an_answer_to_a_question_that_is_held_no_more_is_refused_in_words() -> None:
    agent = ag2_agent()
    async with serving(scripted("no"), agents=[agent]) as running:
        first = await events_of(running.url, body(user(ASKS)))
        id = first[-1]["outcome"]["interrupts"][0]["id"]
        await running.server.agents["ag2"].guest.close()
        late = await events_of(running.url, body(run="r2", **answers(id, "yes")))
    assert late[-1]["type"] == "RUN_ERROR" and "Ask the agent again" in late[-1]["message"]


async def test_calls_of_the_clients_tools_wait_for_the_client() -> None:
    async with serving(scripted("no"), agents=[ag2_agent()]) as running:
        first = await events_of(running.url, body(user("call paint {}"), tools=[PAINT]))
        call = first[-1]["outcome"]["pendingToolCallIds"][0]
        result = {"id": "res", "role": "tool", "toolCallId": call, "content": "red"}
        second = await events_of(running.url, body(result, run="r2", tools=[PAINT]))
    assert told(second) == [("text", "It says: red "), ("finished", "success")]


async def test_a_failure_keeps_the_exceptions_text_and_a_stop_ends_the_work() -> None:
    async with serving(scripted("no"), agents=[ag2_agent()]) as running:
        failed = await events_of(running.url, body(user("fail")))
        before = len(asyncio.all_tasks())
        reading = asyncio.create_task(events_of(running.url, body(user("wait"), thread="t2", run="r2")))
        while not (runs := running.server.runs.on_thread("t2")) or runs[0].log.last < 3:
            await asyncio.sleep(0.005)
        await runs[0].cancel()
        stopped = await reading
        held = [task for task in asyncio.all_tasks() if "run_stream" in repr(task.get_coro())]
    assert failed[-1]["message"] == "The agent ag2 failed. The server's log says why."
    assert stopped[-1]["outcome"] == {"type": "cancelled"} and before and not held


async def test_an_agent_without_a_model_uses_ours_also_after_a_question() -> None:
    agent: Any = Agent("own")

    @agent.tool
    async def book(place: str, context: Context) -> str:
        """Book a journey, if a person agrees."""
        return f"Booked {place}: {await context.input('Sure?')}"

    calls = '<tool_call>{"name": "book", "arguments": {"place": "Oslo"}}</tool_call>'
    engine = scripted([Script(text=calls), Script(text="All booked"), Script(text="Hello")])
    async with (
        serving(engine, agents=[agent]) as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = await events_of(running.url, body(user("book")))
        asked = first[-1]["outcome"]["interrupts"][0]
        last = await events_of(running.url, body(run="r2", **answers(asked["id"], "yes")))
        said_too = await client.chat.completions.create(model="own", messages=[{"role": "user", "content": "hi"}])
    assert told(last) == [("result", "Booked Oslo: yes"), ("text", "All booked"), ("finished", "success")]
    assert last[-1]["usage"][0]["outputTokens"] > 0
    assert said_too.choices[0].message.content == "Hello"
