"""An answer that begins with one call in place of several is generated again as a list, and nobody sees the first."""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections.abc import AsyncGenerator
from typing import Any, Literal

import msgspec
import pytest
from ag_ui.core import Tool
from hypothesis import given
from hypothesis import strategies as st

from agent_server.agents import Agent
from agent_server.agents.call_lists import ListedCalls, begins_calls
from agent_server.agents.plain_answers import UNMARKED_CALL, declared_probability
from agent_server.engine_protocol.protocol import (
    Alternative,
    Delta,
    EngineInfo,
    EngineItem,
    Finished,
    GenerationRequest,
    Progress,
    Token,
)
from agent_server.engine_protocol.repetition import EVERY, WINDOW
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.settings import OutputSettings
from events.grammar import Function, plan
from events.options import GenerationOptions, SamplingParams, ToolChoice
from events.vocabulary import Custom, Event, RunFinished, TextMessageContent, ToolCallArgs, ToolCallStart
from tests.agents.harness import House, client_tool, of
from tests.agents.models import HERMES, Model

pytestmark = pytest.mark.usefixtures("nothing_blocks")
MERGED = '```json\n{\n  "name": "paint",\n  "arguments": {"color": "red and blue"}\n}\n```'
LIST = (
    '```json\n[\n  {"name": "paint", "arguments": {"color": "red"}},\n'
    '  {"name": "paint", "arguments": {"color": "blue"}}\n]\n```'
)
PAINT_RED, PAINT_BLUE = MERGED.replace("red and blue", "red"), MERGED.replace("red and blue", "blue")
OPTIONS = GenerationOptions(store=False)


class UnsureOfCommas(ScriptedEngine):
    """An engine that is certain of every token but commas."""

    probability = 0.5

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        comma = math.log(self.probability)
        async for item in super().generate(request):
            if isinstance(item, Delta) and request.sampling.logprobs is not None:
                scored = [msgspec.structs.replace(token, logprob=comma * (token.text == ",")) for token in item.tokens]
                item = msgspec.structs.replace(item, tokens=tuple(scored))
            yield item


async def answered(
    *texts: str,
    chunk: int = 1,
    options: GenerationOptions = OPTIONS,
    output: OutputSettings | None = None,
    engine: type[ScriptedEngine] = UnsureOfCommas,
    probability: float = 0.5,
    **asked: Any,
) -> tuple[list[Event], list[GenerationRequest]]:
    """The events of a run and the requests to an engine whose generations begin with these texts in turn.

    probability: of each token, or of the commas of an engine that is certain of the other tokens.
    """
    model, left = Model([]), list(texts)
    script = Script(chunk=chunk, logprob=math.log(probability))
    model.engine = engine(lambda request: msgspec.structs.replace(script, text=left.pop(0)), supports_constraints=True)
    if isinstance(model.engine, UnsureOfCommas):
        model.engine.probability = probability
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
    assert bytes(second.prediction).decode() == (
        '```json\n[\n  {\n    "name": "paint",\n    "arguments": {"color": "red and blue"}\n  }\n]\n```'
    )
    assert second.prompt_token_ids == first.prompt_token_ids
    assert second.sampling == msgspec.structs.replace(first.sampling, logprobs=20, temperature=0.0)
    assert second.request_id != first.request_id and second.constraint != first.constraint
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None and finished.usage[0].output_tokens == len(LIST)


@pytest.mark.parametrize("chunk", [1, 5, 1000])
@pytest.mark.parametrize(
    "said", [LIST, f"{PAINT_RED}\n\n{PAINT_BLUE}", f"{{{PAINT_RED[8:-4]}}}}}\n{{{PAINT_BLUE[8:-4]}}}}}"]
)
async def test_several_calls_are_sent_as_the_model_wrote_them(said: str, chunk: int):
    """Their ids tell the next request that they were written without markers."""
    events, requests = await answered(said, chunk=chunk)
    assert calls(events) == [("paint", {"color": "red"}), ("paint", {"color": "blue"})] and not text(events)
    assert len(requests) == 1
    assert all(call.tool_call_id.startswith(UNMARKED_CALL) for call in of(events, ToolCallStart))


@pytest.mark.parametrize("said", [LIST.replace('"blue"', "7"), f"{PAINT_RED}\n{PAINT_BLUE}".replace('"blue"', "7")])
async def test_several_calls_that_do_not_fit_are_written_again(said: str):
    events, (_, second) = await answered(said, LIST)
    assert calls(events) == [("paint", {"color": "red"}), ("paint", {"color": "blue"})] and not text(events)
    assert bytes(second.generated) == b"```json\n[\n"


def written(*made: tuple[str, dict[str, Any]]) -> str:
    """A list of calls in a fence."""
    return (
        "```json\n[\n" + ",\n".join(json.dumps({"name": name, "arguments": given}) for name, given in made) + "\n]\n```"
    )


RED, BLUE, DRAWN = ("paint", {"color": "red"}), ("paint", {"color": "blue"}), ("draw", {"text": '"}],[{'})
TWO_TOOLS = [client_tool("paint"), client_tool("draw")]


@pytest.mark.parametrize(
    ("listed", "probability", "kept"),
    [
        ((RED, BLUE, DRAWN), 0.97, (RED, BLUE, DRAWN)),
        ((RED, BLUE, DRAWN), 0.95, (RED, BLUE)),
        ((RED, DRAWN, BLUE), 0.95, (RED,)),
        ((DRAWN, RED), 0.95, (DRAWN,)),
        ((RED, RED, BLUE), 1.0, (RED,)),
        ((RED, BLUE, RED), 0.5, (RED, BLUE)),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
async def test_a_call_that_nobody_asked_for_ends_the_list(
    listed: tuple[Any, ...], probability: float, kept: tuple[Any, ...], chunk: int
):
    """A repeated one, or one of another tool that the model was not certain of."""
    events, _ = await answered(MERGED, written(*listed), chunk=chunk, probability=probability, tools=TWO_TOOLS)
    assert calls(events) == list(kept) and not text(events)
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None and finished.usage[0].output_tokens == len(written(*kept))


PLAIN = "I cannot paint on paper."


@pytest.mark.parametrize(("probability", "made"), [(0.9, True), (0.88, False)])
@pytest.mark.parametrize("chunk", [1, 1000])
async def test_a_call_is_not_made_if_the_model_would_rather_call_an_undeclared_function(
    probability: float, made: bool, chunk: int
):
    """The name and its closing quote are six tokens; the alternatives of each belong to no declared function."""
    events, requests = await answered(MERGED, LIST, PLAIN, chunk=chunk, probability=probability, engine=ScriptedEngine)
    if made:
        assert len(calls(events)) == 2 and not text(events) and len(requests) == 2
        return
    assert text(events) == PLAIN and not calls(events)
    first, second, third = requests
    assert third.constraint is None and third.prompt_token_ids != first.prompt_token_ids == second.prompt_token_ids
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None and finished.usage[0].output_tokens == len(PLAIN)


def scored(text: str, *alternatives: tuple[str, float], probability: float = 1.0) -> Token:
    others = tuple(Alternative(at, each, math.log(chance)) for at, (each, chance) in enumerate(alternatives, 1))
    return Token(0, text, math.log(probability), others)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([scored('{"name": "pai')], None),
        ([scored('{"name": "paint')], None),
        ([scored('{"name": "'), scored("paint"), scored('"')], 1.0),
        ([scored('{"name": "'), scored("paint", ("dr", 0.3), ("wri", 0.1), probability=0.6), scored('"')], 0.9),
        ([scored('{"name": "'), scored("pa", ("paint", 0.4), probability=0.5), scored("int", probability=0.5),
          scored('"', ("er", 0.2), probability=0.8)], 0.9 * 0.5 * 0.8),
        ([scored('{"name":'), scored(' "pa', (' "dr', 0.2), ('"pa', 0.5), probability=0.3), scored('int"')], 1.0),
        ([scored('{"name":'), scored(' "pa', (' "wr', 0.2), ('"pa', 0.5), probability=0.3), scored('int"')], 0.6),
    ],
)  # fmt: skip
def test_the_probability_of_the_declared_functions(tokens: list[Token], expected: float | None):
    found = declared_probability(tokens, {"paint", "draw"})
    assert found == expected if expected is None else found == pytest.approx(expected)


@pytest.mark.parametrize("logprob", [-0.01, -0.5, None])
@given(data=st.data())
def test_what_is_sent_of_a_list_does_not_depend_on_its_tokens(logprob: float | None, data: st.DataObject):
    body = written(RED, DRAWN, RED).removeprefix("```json\n[")
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1))))
    listed, sent = ListedCalls(), ""
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        sent += "".join(token.text for token in listed.take(Token(0, body[start:end], logprob)))
        if listed.ended:
            break
    expected = written(RED, DRAWN) if logprob == -0.01 else written(RED)
    assert listed.ended and "```json\n[" + sent + "\n]\n```" == expected


async def test_a_list_that_its_limit_cuts_off_is_sent_as_text():
    options = GenerationOptions(store=False, sampling=SamplingParams(max_tokens=110))
    events, _ = await answered(MERGED, written(RED, BLUE), options=options)
    assert not calls(events) and text(events) == written(RED, BLUE)[:110]
    (finished,) = of(events, RunFinished)
    assert finished.usage is not None and finished.usage[0].output_tokens == 110


async def test_the_list_continues_what_the_model_wrote_before_the_object():
    merged, written = MERGED.removeprefix("```json\n").removesuffix("\n```"), LIST[8:-4]
    _, (_, second) = await answered(merged, written)
    assert bytes(second.generated) == b"[\n"
    doubled = "```json\n{" + merged + "}\n```"  # as Qwen2.5-Coder's template shows a call
    events, (_, second) = await answered(doubled, LIST)
    assert bytes(second.generated) == b"```json\n[\n" and len(calls(events)) == 2


async def test_an_object_that_was_not_closed_is_made_a_list_too():
    events, (_, second) = await answered('```json\n{"name": "paint", "arguments": ', LIST)
    assert len(calls(events)) == 2 and bytes(second.prediction).startswith(b"```json\n[\n")


DOCUMENT = "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz ", k=600))


@pytest.mark.parametrize("chunk", [1, 1000])
@pytest.mark.parametrize("key", ["color", "colour"])
async def test_a_long_call_is_sent_as_it_is_if_it_fits_its_schema(key: str, chunk: int):
    call = json.dumps({"name": "paint", "arguments": {key: DOCUMENT}})
    schema = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    tool = Tool(name="paint", description="Paints.", parameters=schema)
    events, requests = await answered(call, LIST[8:-4], chunk=chunk, tools=[tool])
    assert calls(events) == ([("paint", {key: DOCUMENT})] if key == "color" else [RED, BLUE]) and not text(events)
    assert len(requests) == (1 if key == "color" else 2)
    assert of(events, ToolCallStart)[0].tool_call_id.startswith("unmarked_call")


@pytest.mark.parametrize("after", ["", '"}}', '"}}\nThat is how it is called.'])
async def test_an_object_that_repeats_itself_is_made_a_list_before_it_ends(after: str):
    beginning = '{"name": "paint", "arguments": {"color": "'
    events, (first, second) = await answered(beginning + "red and " * 100 + after, LIST[8:-4])
    assert calls(events) == [RED, BLUE] and not text(events)
    assert second.sampling.temperature == first.sampling.temperature  # the likeliest text repeats itself too
    assert WINDOW < len(second.prediction) < WINDOW + len(beginning) + 2 * EVERY


async def test_a_client_is_told_that_a_string_was_ended():
    class Engine(UnsureOfCommas):
        async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
            async for item in super().generate(request):
                yield msgspec.structs.replace(item, closed_string=True) if isinstance(item, Finished) else item

    events, _ = await answered(MERGED, LIST, engine=Engine)
    (warning,) = (events[-1].metadata or {})["warnings"]
    assert "repeated itself" in warning


@pytest.mark.parametrize("after", ["\nThat is how it is called.", " Or:\n" + MERGED])
@pytest.mark.parametrize("merged", [MERGED, MERGED[8:-4], "```json\n{" + MERGED[8:-4] + "}\n```"])
@pytest.mark.parametrize("chunk", [1, 1000])
async def test_an_example_is_sent_as_it_is(merged: str, after: str, chunk: int):
    events, requests = await answered(merged + after, chunk=chunk)
    assert len(requests) == 1 and not calls(events) and text(events) == merged + after


async def test_a_call_that_is_cut_off_or_stopped_is_not_written_again():
    for sampling in (SamplingParams(max_tokens=65), SamplingParams(stop=("arguments",))):
        _, requests = await answered(MERGED, options=GenerationOptions(store=False, sampling=sampling))
        assert len(requests) == 1


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


@pytest.mark.parametrize("continues", ["exact", "plain", "no"])
async def test_the_grammar_begins_where_the_engine_begins_it(continues: Literal["exact", "plain", "no"]):
    """An engine that takes the beginning as part of its prompt begins the grammar behind it."""

    class Engine(UnsureOfCommas):
        @property
        def info(self) -> EngineInfo:
            return msgspec.structs.replace(super().info, continues=continues)

    _, requests = await answered(MERGED, LIST, engine=Engine)
    if continues == "no":
        assert len(requests) == 1
        return
    constraint = requests[1].constraint
    assert constraint is not None
    first = constraint.value["format"]["elements"][0]
    assert (first == {"type": "const_string", "value": "```json\n["}) is (continues == "exact")


async def test_tokens_are_cached_as_before_the_list():
    """The second generation finds the whole prompt in the cache, because the first has computed it."""

    class Engine(UnsureOfCommas):
        @property
        def info(self) -> EngineInfo:
            return msgspec.structs.replace(super().info, tells_progress=True)

        async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
            size = len(request.prompt_token_ids)
            assert request.progress is not bool(request.generated)
            if request.progress:
                yield Progress(total=size, cached=7, processed=7, seconds=0.0)
                yield Progress(total=size, cached=7, processed=size, seconds=0.1)
            async for item in super().generate(request):
                if isinstance(item, Finished):
                    usage = msgspec.structs.replace(item.usage, cached_tokens=size - 1 if request.generated else 7)
                    item = msgspec.structs.replace(item, usage=usage)
                yield item

    for texts in ((MERGED, LIST), ("Painted.",)):
        events, _ = await answered(*texts, engine=Engine)
        (finished,) = of(events, RunFinished)
        assert finished.usage is not None and finished.usage[0].cached_input_tokens == 7
        assert not of(events, Custom)  # nobody asked for the progress


async def test_what_is_changed_before_the_list_is_changed_in_it():
    model, left = Model([]), [MERGED, LIST]
    model.engine = ScriptedEngine(
        lambda request: Script(text=left.pop(0), delay=0.002, logprob=0.0), supports_constraints=True
    )
    async with House(Agent(name="default"), model) as house:
        run = await house.start("Paint it red and blue.", options=OPTIONS, tools=[client_tool("paint")])
        while not model.engine.requests:
            await asyncio.sleep(0)
        assert await run.controls.modify({"temperature": 0.25})
        assert len(calls(await house.follow(run))) == 2
    assert [request.sampling.temperature for request in model.engine.requests] != [0.25, 0.25]
    assert model.engine.requests[1].sampling.temperature == 0.25


async def test_a_required_call_that_no_grammar_enforces_is_checked_like_others():
    options = GenerationOptions(store=False, tool_choice=ToolChoice("required"), constrain_tools=False)
    example = f"{MERGED}\nThat is how it is called."
    events, _ = await answered(example, options=options)
    assert not calls(events) and text(events) == example
    enforced = GenerationOptions(store=False, tool_choice=ToolChoice("required"))
    events, (request,) = await answered(LIST, options=enforced)
    assert len(calls(events)) == 2 and request.constraint is not None


@pytest.mark.parametrize(("bare", "lists"), [("declared", True), ("never", False)])
def test_no_list_is_written_that_would_not_be_read(bare: Literal["declared", "never"], lists: bool):
    output_format = msgspec.structs.replace(HERMES, tools=msgspec.structs.replace(HERMES.tools, bare=bare))
    for mode in ("auto", "required"):
        made = plan(
            output_format, functions=[Function("paint", {"type": "object"})], choice=ToolChoice(mode), parallel=True,
            response_format=None, stage="content", marker_ids={},
        )  # fmt: skip
        assert ("```json" in json.dumps(made.tag)) is (lists and mode == "required")
        assert (made.call_list is not None) is (lists and mode == "auto")


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
        (MERGED + "\nThat", False),
        (MERGED[8:-4] + " is", False),
        (LIST, True),
        (f"{MERGED}\n\n{MERGED}", True),
        (f"{MERGED}\n{LIST}", True),
        (f"{MERGED[8:-4]}\n{MERGED[8:-4]}", True),
        ("{" + MERGED[8:-4] + "}}\n{" + MERGED[8:-4], True),
        (f"{MERGED}\n```python\nprint()", False),
        (f'{MERGED}\n```json\n{{"result"', False),
        (f"{LIST}\n\nThese paint", False),
    ],
)
def test_every_beginning_is_undecided_then_a_call_and_then_perhaps_an_example(said: str, begins: bool):
    verdicts = [begins_calls(said[:end], NAMES) for end in range(len(said) + 1)]
    assert verdicts[-1] is begins
    order = [verdict for at, verdict in enumerate(verdicts) if at == 0 or verdict is not verdicts[at - 1]]
    assert order in ([None, True], [None, False], [None, True, False])


@pytest.mark.parametrize("name", ['["paint"]', "{}", "null", "1"])
def test_a_name_that_is_no_string_is_left_to_the_parser(name: str):
    body, listed = f'{{"name": {name}, "arguments": {{}}}}]', ListedCalls()
    assert "".join(token.text for token in listed.take(Token(0, body, None))) == body and not listed.ended
