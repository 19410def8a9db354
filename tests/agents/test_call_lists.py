"""An answer that begins with one call in place of several is generated again as a list, and nobody sees the first."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_server.agents import Agent
from agent_server.agents.call_lists import begins_with_object
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.settings import OutputSettings
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import Event, RunFinished, TextMessageContent, ToolCallArgs, ToolCallStart
from tests.agents.harness import House, client_tool, of
from tests.agents.models import Model

pytestmark = pytest.mark.usefixtures("nothing_blocks")
MERGED = '```json\n{\n  "name": "paint",\n  "arguments": {"color": "red and blue"}\n}\n```'
LIST = (
    '```json\n[\n  {"name": "paint", "arguments": {"color": "red"}},\n'
    '  {"name": "paint", "arguments": {"color": "blue"}}\n]\n```'
)
OPTIONS = GenerationOptions(store=False)


async def answered(
    *texts: str,
    chunk: int = 1,
    options: GenerationOptions = OPTIONS,
    output: OutputSettings | None = None,
    **asked: Any,
) -> tuple[list[Event], list[GenerationRequest]]:
    """The events of a run and the requests to an engine whose generations begin with these texts in turn."""
    model, left = Model([]), list(texts)
    model.engine = ScriptedEngine(lambda request: Script(text=left.pop(0), chunk=chunk), supports_constraints=True)
    model.output = output or OutputSettings()  # type: ignore[misc]
    async with House(Agent(name="default"), model) as house:
        events = await house.ask(
            "Paint it red and blue.", **{"options": options, "tools": [client_tool("paint")], **asked}
        )
    return events, model.engine.requests


def calls(events: list[Event]) -> list[tuple[str, dict[str, Any]]]:
    arguments: dict[str, str] = {}
    for event in of(events, ToolCallArgs):
        arguments[event.tool_call_id] = arguments.get(event.tool_call_id, "") + event.delta
    return [(event.tool_call_name, json.loads(arguments[event.tool_call_id])) for event in of(events, ToolCallStart)]


def text(events: list[Event]) -> str:
    return "".join(event.delta for event in of(events, TextMessageContent))


@pytest.mark.parametrize("chunk", [1, 2, 5, 17, 1000])
async def test_two_calls_that_would_be_one(chunk: int):
    events, (first, second) = await answered(MERGED, LIST, chunk=chunk)
    assert calls(events) == [("paint", {"color": "red"}), ("paint", {"color": "blue"})] and not text(events)
    assert bytes(second.generated) == b"```json\n[\n"
    assert (second.prompt_token_ids, second.sampling) == (first.prompt_token_ids, first.sampling)
    assert second.request_id != first.request_id and second.constraint != first.constraint
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None and finished.usage[0].output_tokens == len(LIST)


async def test_the_list_continues_what_the_model_wrote_before_the_object():
    merged, written = MERGED.removeprefix("```json\n").removesuffix("\n```"), LIST[8:-4]
    _, (_, second) = await answered(merged, written)
    assert bytes(second.generated) == b"[\n"
    doubled = "```json\n{" + merged + "}\n```"  # as Qwen2.5-Coder's template shows a call
    events, (_, second) = await answered(doubled, LIST)
    assert bytes(second.generated) == b"```json\n[\n" and len(calls(events)) == 2


async def test_a_list_with_text_after_it_is_still_an_example():
    events, _ = await answered(MERGED, f"{LIST}\nThat is how it is called.")
    assert not calls(events) and text(events) == f"{LIST}\nThat is how it is called."


@pytest.mark.parametrize(
    "said",
    [
        "Painted.",
        '{"color": "red", "name": "paint"}',
        '```json\n{"name": "draw", "arguments": {}}\n```',
        "``",
        "",
        LIST,
    ],
)
async def test_other_answers_are_sent_as_they_are(said: str):
    events, requests = await answered(said)
    assert len(requests) == 1
    assert text(events) == ("" if calls(events) else said)


@pytest.mark.parametrize(
    ("changed", "output"),
    [
        ({"parallel_tool_calls": False}, {}),
        ({"token_details": True}, {}),
        ({"sampling": SamplingParams(logprobs=1)}, {}),
        ({"sampling": SamplingParams(max_tokens=40)}, {}),  # no room for a list
        ({}, {"unmarked_calls": "strict"}),
        ({}, {"constrain_tools": False}),
    ],
)
async def test_where_one_call_stays_one(changed: dict[str, Any], output: dict[str, Any]):
    options = GenerationOptions(store=False, **changed)
    _, requests = await answered(MERGED, options=options, output=OutputSettings(**output))
    assert len(requests) == 1


async def test_no_call_is_looked_for_where_no_tool_is_offered():
    events, requests = await answered(MERGED, tools=[])
    assert len(requests) == 1 and text(events) == MERGED


NAMES = {"paint", "paint_twice"}


@pytest.mark.parametrize(
    ("said", "begins"),
    [
        (MERGED, True),
        (' {"name":"paint_twice", "arguments": {}}', True),
        ('```\n{{"name": "paint"', True),
        ("```tool_call\n" + MERGED[8:], True),
        ('{"name": "pain"}', False),
        ('{"arguments": {}, "name": "paint"}', False),
        ("``` json", False),
        ("```python\nprint()", False),
        ("[1, 2]", False),
        ("The name", False),
    ],
)
def test_every_beginning_is_undecided_or_decided_for_good(said: str, begins: bool):
    verdicts = [begins_with_object(said[:end], NAMES) for end in range(len(said) + 1)]
    assert verdicts[-1] is begins
    decided = verdicts.index(begins)
    assert set(verdicts[:decided]) <= {None} and set(verdicts[decided:]) == {begins}
