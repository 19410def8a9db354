"""Tokens that come several at once: one event says what one token after the other would have said."""

from __future__ import annotations

import pytest
from ag_ui.core import Tool

from agent_server.agents import Agent
from agent_server.engines.scripted import Script
from events.message import Folder
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import Event, ReasoningMessageContent, RunError, RunFinished, TextMessageContent, ToolCallArgs
from tests.agents.harness import House, client_tool, of
from tests.agents.models import Model

pytestmark = pytest.mark.usefixtures("nothing_blocks")
OUTPUT = (
    "<think>Some thoughts, and < more of them.</think>Well: a < b, it is said."
    '<tool_call>\n{"name": "paint", "arguments": {"color": "dark <think> red"}}\n</tool_call>'
)
DELTAS = (TextMessageContent, ReasoningMessageContent, ToolCallArgs)


async def events_of(chunk: int, *, details: bool = False) -> list[Event]:
    options = GenerationOptions(
        store=False, token_details=details, sampling=SamplingParams(logprobs=1 if details else None)
    )
    async with House(Agent(name="default"), Model([Script(text=OUTPUT, chunk=chunk)])) as house:
        return await house.ask("Hello", options=options, tools=[client_tool("paint")])


def folded(events: list[Event]) -> list[dict[str, object]]:
    folder = Folder()
    for event in events:
        folder.add(event)
    return folder.messages


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("chunk", [2, 3, 7, 40, 1000])
async def test_the_same_is_said_in_fewer_events(chunk: int, details: bool):
    one_by_one, together = await events_of(1, details=details), await events_of(chunk, details=details)
    assert len(together) < len(one_by_one)
    for kind in DELTAS:
        assert "".join(event.delta for event in of(together, kind)) == "".join(e.delta for e in of(one_by_one, kind))
    rows = [[row for event in of(found, DELTAS) for row in (event.metadata or {}).get("tokens", [])]  # type: ignore[arg-type]
            for found in (one_by_one, together)]  # fmt: skip
    assert rows[0] == rows[1] and bool(rows[0]) == details
    assert of(together, RunFinished)[0].usage == of(one_by_one, RunFinished)[0].usage


async def test_every_token_of_one_item_in_one_event_for_each_part():
    events = await events_of(1000)
    assert [event.delta for event in of(events, ReasoningMessageContent)] == ["Some thoughts, and < more of them."]
    assert [event.delta for event in of(events, TextMessageContent)] == ["Well: a < b, it is said."]
    assert [event.delta for event in of(events, ToolCallArgs)] == ['{"color": "dark <think> red"}']


@pytest.mark.parametrize(("count", "message"), [(40_000, "more than 524288 bytes of schemas")])
async def test_tools_that_are_too_large_are_refused_before_a_prompt_is_made(count: int, message: str):
    large = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}
    model = Model([Script(text="Never said.")])
    rendered: list[object] = []

    async def build(*arguments: object, **options: object) -> None:
        rendered.append(arguments)

    model.prompts.build_async = build  # type: ignore[method-assign, assignment]
    async with House(Agent(name="default"), model) as house:
        tools = [Tool(name="f", description="", parameters=large)]
        events = await house.ask("Hello", options=GenerationOptions(store=False), tools=tools)
    (error,) = of(events, RunError)
    assert (error.code, (error.metadata or {})["param"]) == ("invalid_request", "tools")
    assert message in error.message and rendered == []
