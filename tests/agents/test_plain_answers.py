"""After the results of calls that a model wrote without markers, what is no new call is answered without the tools."""

from __future__ import annotations

import asyncio
import math
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ag_ui.core import RunAgentInput, Tool

from agent_server.agents import Agent, tool
from agent_server.agents.plain_answers import RESULTS_GIVEN, with_calls_as_written
from agent_server.engine_protocol.protocol import Alternative, Delta, EngineItem, GenerationRequest
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.runs.store import Store
from agent_server.settings import OutputSettings
from events.options import GenerationOptions, SamplingParams, ToolChoice
from events.vocabulary import Event, RunFinished, TextMessageContent, ToolCallStart
from tests.agents.harness import House, of
from tests.agents.models import Model, told
from tests.models.prompting.test_prompt import builder
from tests.template.folder import SHARED_TEMPLATES, own, own_names

pytestmark = pytest.mark.usefixtures("nothing_blocks")
TICKER = {"type": "object", "properties": {"ticker": {"type": "string"}}}
TOOLS = [Tool(name="price", description="", parameters=TICKER), Tool(name="send", description="")]
PRICED = '```json\n{"name": "price", "arguments": {"ticker": "AAPL"}}\n```'
WRITTEN = '```json\n{"name": "price", "arguments": {"ticker": "AAPL"}}\n```'
LISTED = '```json\n[\n{"name": "price", "arguments": {"ticker": "AAPL"}}\n]\n```'
SENT = '```json\n[\n{"name": "send", "arguments": {}}\n]\n```'
DESCRIBED = "To get the price, I called the function, whose response has it now."
ANSWER = "AAPL is at 187.42 dollars."
OPTIONS = GenerationOptions(store=False)


def model_of(*texts: str, chunk: int = 1) -> Model:
    """A model whose generations begin with these texts in turn."""
    model, left = Model([]), list(texts)
    model.engine = ScriptedEngine(
        lambda request: Script(text=left.pop(0), chunk=chunk, logprob=math.log(0.99)), supports_constraints=True
    )
    return model


def text(events: list[Event]) -> str:
    return "".join(event.delta for event in of(events, TextMessageContent))


def called(events: list[Event]) -> list[str]:
    return [event.tool_call_name for event in of(events, ToolCallStart)]


def conversation(id: str) -> list[dict[str, Any]]:
    """One that ends with the result of the call of this id."""
    made = {"id": id, "type": "function", "function": {"name": "price", "arguments": '{"ticker":"AAPL"}'}}
    return [
        {"id": "u", "role": "user", "content": "What is AAPL at?"},
        {"id": "a", "role": "assistant", "toolCalls": [made]},
        {"id": "r", "role": "tool", "toolCallId": id, "content": "187.42"},
    ]


async def answered(
    *texts: str,
    chunk: int = 1,
    id: str = "unmarked_call_1",
    options: GenerationOptions = OPTIONS,
    beginning: list[dict[str, Any]] | None = None,
    after: tuple[dict[str, Any], ...] = (),
    **settings: Any,
) -> tuple[list[Event], list[GenerationRequest]]:
    """The events and requests of a run over a conversation that ends with the result of a call."""
    model = model_of(*texts, chunk=chunk)
    model.output = OutputSettings(**settings)  # type: ignore[misc]
    async with House(Agent(name="default"), model) as house:
        house.messages = [*(beginning or conversation(id)), *after]
        events = await house.ask(options=options, tools=TOOLS)
    return events, model.engine.requests


async def test_a_client_that_returns_the_ids_gets_an_answer():
    model = model_of(PRICED, LISTED, DESCRIBED, ANSWER)
    async with House(Agent(name="default"), model) as house:
        events = await house.ask("What is AAPL at?", options=OPTIONS, tools=TOOLS)
        (started,) = of(events, ToolCallStart)
        assert started.tool_call_id.startswith("unmarked_call_")
        house.messages.append({"id": "r", "role": "tool", "toolCallId": started.tool_call_id, "content": "187.42"})
        events = await house.ask(options=OPTIONS, tools=TOOLS)
    assert text(events) == ANSWER and not called(events)
    *_, first, second = model.engine.requests
    with_tools, without = told(first), told(second)
    assert with_tools["tools"] == ["price", "send"] and without["tools"] == []
    assert not with_tools.get("instructions") and without["instructions"] == RESULTS_GIVEN
    # Beside the tools the call is text, as the model wrote it; without them it is the template's.
    assert [each.get("content") for each in with_tools["messages"]] == ["What is AAPL at?", WRITTEN, "187.42"]
    assert [each.get("content") for each in without["messages"]] == ["What is AAPL at?", None, "187.42"]
    assert without["messages"][1]["toolCalls"] and not with_tools["messages"][1].get("toolCalls")
    assert first.constraint is not None and second.constraint is None
    assert second.request_id != first.request_id
    room = {"max_tokens": 32768 - len(second.prompt_token_ids)}  # its prompt may be longer than the first one's
    assert second.sampling == msgspec.structs.replace(first.sampling, logprobs=None, **room)
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None
    assert finished.usage[0].input_tokens == len(first.prompt_token_ids)
    assert finished.usage[0].output_tokens == len(ANSWER)


@pytest.mark.parametrize(
    "said",
    [
        DESCRIBED,
        "\n Äpfel",
        "",
        " \n",
        PRICED,
        PRICED[8:-4],
        "```json\n{" + PRICED[8:-4] + "}\n```",
        '{"name":"price","arguments":{ "currency": "USD", "ticker": "AAPL" } }',
        PRICED + "\nThis gets the price.",
        LISTED,
        '<tools>\n{"name": "price", "arguments": {"ticker": "AAPL"}}\n</tools>',
        LISTED.replace("\n]", ',\n{"name": "send", "arguments": {}}\n]'),
        "Price: 187.42",  # no call in Python's syntax, for names have their case
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
async def test_what_is_no_new_call_is_answered_without_the_tools(said: str, chunk: int):
    events, (_, second) = await answered(said, ANSWER, chunk=chunk)
    assert text(events) == ANSWER and not called(events)
    assert told(second)["tools"] == []


async def test_a_new_call_is_made():
    events, requests = await answered('```json\n{"name": "send", "arguments": {}}\n```', SENT)
    assert called(events) == ["send"] and all(told(each)["tools"] for each in requests)
    other = PRICED.replace("AAPL", "MSFT")
    events, requests = await answered(other, f"```json\n[\n{other[8:-4]}\n]\n```")
    assert called(events) == ["price"] and all(told(each)["tools"] for each in requests)


@pytest.mark.parametrize(
    "said",
    [
        SENT,
        '<tools>\n{"name": "send", "arguments": {}}\n</tools>',
        '<tool_call>\n{"name": "send", "arguments": {}}\n</tool_call>',
    ],
)
async def test_calls_in_other_forms_are_read_as_before(said: str):
    events, requests = await answered(said)
    assert len(requests) == 1 and called(events) == ["send"]


@pytest.mark.parametrize(
    "said",
    [
        "I'll send it to you now: 187.42 dollars.",
        "Next, let me see.",
        '{"ticker": 1}',
        "price: 187.42",
        "pri",
        "```python\nprint(187.42)\n```",
        "**187.42**",
        "<b>187.42</b>",
        "[1]",
    ],
)
async def test_what_may_be_something_else_is_sent_as_it_is(said: str):
    events, requests = await answered(said)
    assert len(requests) == 1 and text(events) == said


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "tool_call_1"},  # written with markers, or by another server
        {"after": ({"id": "w", "role": "user", "content": "Thanks. And what is a ticker?"},)},
        {"options": GenerationOptions(store=False, tool_choice=ToolChoice("none"))},
        {"options": GenerationOptions(store=False, sampling=SamplingParams(logprobs=1))},
        {"options": GenerationOptions(store=False, sampling=SamplingParams(max_tokens=60))},
        {"unmarked_calls": "strict"},
    ],
)
async def test_other_answers_are_left_to_the_model(changed: dict[str, Any]):
    events, requests = await answered(DESCRIBED, **changed)
    assert len(requests) == 1 and DESCRIBED.startswith(text(events)) and len(text(events)) >= 60


@pytest.mark.parametrize("repeats_calls", [False, True])
async def test_an_agent_makes_a_repeated_call_only_if_it_says_so(repeats_calls: bool):
    made = []

    @tool
    def price(ticker: str) -> str:
        """Return the price."""
        made.append(ticker)
        return "187.42"

    texts = [PRICED, LISTED, PRICED, LISTED, DESCRIBED, ANSWER] if repeats_calls else [PRICED, LISTED, PRICED, ANSWER]
    model = model_of(*texts)
    async with House(Agent(name="default", tools=[price], repeats_calls=repeats_calls), model) as house:
        events = await house.ask("What is AAPL at?", options=OPTIONS)
    assert text(events) == ANSWER and made == ["AAPL"] * (1 + repeats_calls)
    assert model.told[-1]["tools"] == [] and len(model.engine.requests) == len(texts)


async def test_several_calls_are_written_as_a_list_and_others_as_the_template_writes_them():
    def turn(*ids: str) -> list[dict[str, Any]]:
        calls = [{"id": id, "type": "function", "function": {"name": "send", "arguments": "{}"}} for id in ids]
        results = [{"id": f"r{id}", "role": "tool", "toolCallId": id, "content": "sent"} for id in ids]
        return [{"id": f"a{ids[0]}", "role": "assistant", "content": "Now.", "toolCalls": calls}, *results]

    after = (*turn("unmarked_call_2", "unmarked_call_3"), *turn("tool_call_4"), *turn("tool_call_5", "unmarked_call_6"))
    _, (request,) = await answered(DESCRIBED, after=after)
    said = [each for each in told(request)["messages"] if each["role"] == "assistant"]
    sent = '{"name": "send", "arguments": {}}'
    assert [each["content"] for each in said] == [
        WRITTEN.replace('": "A', '":"A'),
        f"Now.\n```json\n[\n  {sent},\n  {sent}\n]\n```",
        "Now.",
        "Now.",
    ]
    assert [len(each.get("toolCalls") or ()) for each in said] == [0, 0, 1, 2]


TEMPLATES = {name: own(name) for name in own_names()}
TEMPLATES |= {path.name: path.read_text("utf-8") for path in sorted(SHARED_TEMPLATES.glob("*.jinja"))}


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_writes_the_result_beside_the_tools_and_without_them(name: str) -> None:
    messages = [*conversation("unmarked_call_1"), {"id": "b", "role": "assistant", "content": "That is all."}]
    messages.append({"id": "w", "role": "user", "content": "And MSFT?"})
    more = {"threadId": "t", "runId": "r", "state": None, "context": [], "forwardedProps": {}, "messages": messages}
    input = RunAgentInput.model_validate({**more, "tools": []})
    written = input.model_copy(update={"messages": with_calls_as_written(input.messages), "tools": TOOLS})
    for each in (input, written):
        prompt = builder(TEMPLATES[name]).build(each, GenerationOptions()).text
        assert "187.42" in prompt.partition("That is all.")[0]


class Unlikely(ScriptedEngine):
    """An engine that draws this text although another one was likelier."""

    text = ""

    async def generate(self, request: GenerationRequest) -> AsyncIterator[EngineItem]:
        likelier = (Alternative(0, "x", 0.0),)
        async for item in super().generate(request):
            if isinstance(item, Delta) and request.sampling.logprobs:
                drawn = [
                    msgspec.structs.replace(token, alternatives=likelier) if token.text in self.text else token
                    for token in item.tokens
                ]
                item = msgspec.structs.replace(item, tokens=tuple(drawn))
            yield item


@pytest.mark.parametrize(("drawn", "made"), [("d", []), ("rgu", ["send"])], ids=["the name", "the arguments"])
@pytest.mark.parametrize("chunk", [1, 1000])
async def test_only_the_likeliest_function_is_called(drawn: str, made: list[str], chunk: int):
    model = model_of()
    left = [SENT.replace("[\n", "").replace("\n]", ""), SENT if made else ANSWER]
    model.engine = Unlikely(
        lambda request: Script(text=left.pop(0), chunk=chunk, logprob=math.log(0.99)), supports_constraints=True
    )
    model.engine.text = drawn
    async with House(Agent(name="default"), model) as house:
        house.messages = conversation("unmarked_call_1")
        events = await house.ask(options=OPTIONS, tools=TOOLS)
    assert (called(events), text(events)) == (made, "" if made else ANSWER)


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_a_call_is_repeated_once_if_it_failed(failures: int):
    messages: list[dict[str, Any]] = []
    for number in range(max(1, failures)):
        (user, made, result) = conversation(f"unmarked_call_{number}")
        messages += [user] if not number else []
        error = {"error": "Try again."} if failures else {}
        messages += [{**made, "id": f"a{number}"}, {**result, "id": f"r{number}", **error}]
    sent = {"id": "unmarked_call_s", "type": "function", "function": {"name": "send", "arguments": "{}"}}
    after = (
        {"id": "as", "role": "assistant", "toolCalls": [sent]},
        {"id": "rs", "role": "tool", "toolCallId": "unmarked_call_s", "content": "sent"},
    )
    again = failures == 1
    events, requests = await answered(PRICED, LISTED if again else ANSWER, beginning=messages, after=after)
    assert called(events) == (["price"] if again else []) and len(requests) == 2


async def test_what_an_earlier_repetition_left_is_not_shown_again():
    again = {
        "id": "unmarked_call_2",
        "type": "function",
        "function": {"name": "price", "arguments": '{"ticker": "AAPL"}'},
    }
    repeated = (
        {"id": "a2", "role": "assistant", "toolCalls": [again]},
        {"id": "r2", "role": "tool", "toolCallId": "unmarked_call_2", "content": "187.42"},
    )
    _, (first, second) = await answered(PRICED, ANSWER, after=repeated)
    assert len(told(first)["messages"]) == 5 and len(told(second)["messages"]) == 3


async def test_a_later_server_continues_the_answer_from_the_prompt_that_it_began_with(tmp_path: Path):
    def lives(name: str, *texts: str) -> House:
        left = list(texts)
        model = Model([])
        model.engine = ScriptedEngine(
            lambda request: Script(text=left.pop(0), chunk=1, delay=0.002, logprob=0.0), supports_constraints=True
        )
        return House(
            Agent(name="default"), model, Store(f"sqlite:///{tmp_path / name}"), run_limits={"save_every": 0.001}
        )

    shown: list[tuple[int, Event]] = []
    async with lives("before", DESCRIBED, ANSWER) as house:
        house.messages = conversation("unmarked_call_1")
        run = await house.start(options=GenerationOptions(store=True), tools=TOOLS)
        async for number, event in run.events():
            shown.append((number, event))
            if len(text([event for _, event in shown])) == 12:
                break
        await asyncio.sleep(0.02)
        with sqlite3.connect(tmp_path / "before") as before, sqlite3.connect(tmp_path / "after") as after:
            before.backup(after)
        await run.cancel()
    async with lives("after", ANSWER) as house:
        await house.manager.resume_orphans()
        run = await house.manager.find(run.id)
        shown += [(number, event) async for number, event in run.events(shown[-1][0])]
        (request,) = house.model.engine.requests
    assert text([event for _, event in shown]) == ANSWER
    assert told(request)["tools"] == [] and ANSWER.encode().startswith(bytes(request.generated))
    assert len(request.generated) >= 12
