"""A pydantic-ai agent behind the server: what clients see of it, and what its model is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import StateSnapshotEvent
from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, ToolReturn
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel
from pydantic_ai.ui import StateDeps

from tests.agents.guests.talking import PAINT, body, events_of, told, user
from tests.server import scripted, serving


class Recipe(BaseModel):
    title: str = "soup"


def traveller() -> Any:
    """The agent; `told` is what its model was told: the last part of each request, and the instructions."""
    seen: list[tuple[Any, Any]] = []

    async def say(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        last = messages[-1].parts[-1]
        seen.append((last.part_kind, info.instructions))
        if last.part_kind != "user-prompt":
            yield f"It says: {last.content}"
        elif str(last.content).startswith("call"):
            _, name, arguments = str(last.content).split(" ", 2)
            yield {0: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"call-{len(messages)}")}
        else:
            yield {0: DeltaThinkingPart(content="Thinking")}
            for word in f"You said {last.content}".split(" "):
                yield word + " "

    agent: Any = Agent(FunctionModel(stream_function=say), name="traveller", deps_type=StateDeps[Recipe], retries=3)

    @agent.tool_plain
    def weather(place: str) -> str:
        if place == "Atlantis":
            raise ModelRetry("There is no such place.")
        return f"Sun in {place}"

    @agent.tool_plain(requires_approval=True)
    def book(place: str) -> str:
        return f"Booked {place}"

    @agent.tool
    def rename(context: RunContext[StateDeps[Recipe]], title: str) -> ToolReturn:
        before, context.deps.state.title = context.deps.state.title, title
        return ToolReturn(return_value=f"was {before}", metadata=[StateSnapshotEvent(snapshot={"title": title})])

    agent.told = seen
    return agent


async def test_text_reasoning_context_and_state() -> None:
    agent = traveller()
    async with serving(scripted("no"), agents=[agent]) as running:
        context = [{"description": "The page", "value": "a map"}]
        frames = await events_of(running.url, body(user("hi"), context=context))
        request = body(user('call rename {"title": "stew"}'), thread="t2", run="r2", state={"title": "pie"})
        renamed = await events_of(running.url, request)
    assert told(frames) == [("reasoning", "Thinking"), ("text", "You said hi "), ("finished", "success")]
    assert "The page: a map" in agent.told[0][1]
    assert ("state", {"title": "stew"}) in told(renamed) and ("result", "was pie") in told(renamed)


class Order(BaseModel):
    title: str


async def test_a_state_without_defaults_is_the_clients() -> None:
    async def say(messages: list[Any], info: AgentInfo) -> AsyncIterator[Any]:
        yield "Ready."

    agent: Any = Agent(FunctionModel(stream_function=say), name="orders", deps_type=StateDeps[Order])
    async with serving(scripted("no"), agents=[agent]) as running:
        frames = await events_of(running.url, body(user("hi"), state={"title": "soup"}))
    assert told(frames)[-2:] == [("text", "Ready."), ("finished", "success")]


async def test_a_tools_error_is_told_to_the_model() -> None:
    async with serving(scripted("no"), agents=[traveller()]) as running:
        frames = await events_of(running.url, body(user('call weather {"place": "Atlantis"}')))
    short = told(frames)
    assert short[0] == ("call", "weather") and "no such place" in short[2][1] and short[-1] == ("finished", "success")


async def test_an_approval_with_edited_arguments_under_the_servers_rules() -> None:
    async with serving(scripted("no"), agents=[traveller()]) as running:

        async def run(number: int, id: str = "", payload: Any = None) -> list[dict[str, Any]]:
            resume = {"resume": [{"interruptId": id, "status": "resolved", "payload": payload}]} if id else {}
            return await events_of(running.url, body(user('call book {"place": "Oslo"}'), run=f"r{number}", **resume))

        first = await run(1)
        asked = first[-1]["outcome"]["interrupts"][0]
        refused = await run(2, asked["id"], {"approved": "perhaps"})
        last = await run(3, asked["id"], {"approved": True, "editedArgs": {"place": "Bergen"}})
        again = await run(4, asked["id"], {"approved": True, "editedArgs": {"place": "Bergen"}})
    assert asked["reason"] == "tool_call" and told(refused)[-1][0] == "error"
    assert told(last)[0] == ("result", "Booked Bergen") and told(last)[-1] == ("finished", "success")
    assert "TOOL_CALL_START" not in json.dumps(last) and told(again)[-1] == ("finished", "success")


async def test_calls_of_the_clients_tools_wait_for_the_client() -> None:
    async with serving(scripted("no"), agents=[traveller()]) as running:
        first = await events_of(running.url, body(user("call paint {}"), tools=[PAINT]))
        call = first[-1]["outcome"]["pendingToolCallIds"][0]
        result = {"id": "res", "role": "tool", "toolCallId": call, "content": "red"}
        second = await events_of(running.url, body(result, run="r2", tools=[PAINT]))
    assert told(second) == [("text", "It says: red"), ("finished", "success")]
