"""The loop: turns, tools, limits, mixtures."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from agent_server.agents import Agent, ToolContext, ToolFault, ToolLimits, tool
from agent_server.engines.scripted import Fault, Script
from events.options import GenerationOptions, SamplingParams, ToolChoice
from events.vocabulary import (
    ActivitySnapshot,
    CancelledOutcome,
    Custom,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    StepStarted,
    SuccessOutcome,
    TextMessageContent,
    ToolCallArgs,
    ToolCallResult,
    ToolCallStart,
)
from tests.agents.harness import House, client_tool, names, of
from tests.agents.models import Model, call

pytestmark = pytest.mark.usefixtures("nothing_blocks")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def slow(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "done"


def text_of(events) -> str:
    return "".join(event.delta for event in of(events, TextMessageContent))


async def test_the_default_agent_serves_the_model_as_it_is():
    async with House([], Model(["<think>\nHm.\n</think>\n\nHello."])) as house:
        events = await house.ask("Hi")
    assert names(events) == [
        "RunStarted",
        "ReasoningStart",
        "ReasoningMessageStart",
        "ReasoningMessageContent",
        "ReasoningMessageEnd",
        "ReasoningEnd",
        "TextMessageStart",
        "TextMessageContent",
        "TextMessageEnd",
        "RunFinished",
    ]
    assert "".join(event.delta for event in of(events, ReasoningMessageContent)).strip() == "Hm."
    assert text_of(events) == "Hello."
    last = events[-1]
    assert last.outcome == SuccessOutcome() and last.metadata["finishReason"] == "stop"
    (usage,) = last.usage
    assert (
        usage.model == "test-model"
        and usage.output_tokens > 5
        and usage.total_tokens == usage.input_tokens + usage.output_tokens
    )
    assert last.metadata["timings"]["total"] >= last.metadata["timings"]["firstToken"] > 0


async def test_a_client_s_tool_ends_the_run_and_its_result_comes_with_the_next():
    model = Model([call("change_background", color="red"), "It is red."])
    async with House([], model) as house:
        events = await house.ask("red please", tools=[client_tool("change_background")])
        assert not of(events, ToolCallResult)
        (start,) = of(events, ToolCallStart)
        assert events[-1].outcome.pending_tool_call_ids == [start.tool_call_id]
        assert events[-1].metadata["finishReason"] == "tool_calls"
        assert json.loads("".join(event.delta for event in of(events, ToolCallArgs))) == {"color": "red"}
        house.messages.append({"id": "r1", "role": "tool", "toolCallId": start.tool_call_id, "content": "ok"})
        events = await house.ask(tools=[client_tool("change_background")])
    assert text_of(events) == "It is red."
    assert [message["role"] for message in model.told[1]["messages"]] == ["user", "assistant", "tool"]


async def test_server_tools_run_at_once_and_their_results_go_to_the_model():
    both, added = asyncio.Barrier(2), asyncio.Event()

    @tool
    async def meet() -> str:
        """Wait for the other two calls."""
        await added.wait()
        await both.wait()
        return "done"

    @tool(name="add")
    async def add_first(a: int, b: int) -> int:
        """Add."""
        added.set()
        return a + b

    model = Model([call("meet") + "\n" + call("add", a=2, b=3) + call("meet"), "Five."])
    async with House(Agent(name="default", tools=[add_first, meet]), model) as house:
        events = await house.ask("2 + 3?")
    results = of(events, ToolCallResult)
    assert [event.content for event in results] == ["done", "5", "done"]  # in the calls' order
    assert [event.step_name for event in of(events, StepStarted)] == ["step 1", "step 2"]
    assert text_of(events) == "Five."
    told = model.told[1]["messages"]
    assert [message["role"] for message in told] == ["user", "assistant", "tool", "tool", "tool"]
    assert len(told[1]["toolCalls"]) == 3
    assert events[-1].usage[0].input_tokens == sum(len(request.prompt_token_ids) for request in model.engine.requests)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_model_that_repeats_a_call_with_the_same_result_answers_without_tools(idempotent: bool):
    """A tool with effects may be called as often as the model wants, whatever it returns."""

    @tool(idempotent=idempotent)
    def press(key: str, count: int = 1) -> str:
        """Press a key."""
        return "ok"

    model = Model(
        [call("press", key="x", count=1), call("press", count=1, key="x"), call("press", key="x"), "Done.", "Yes."]
    )
    async with House(Agent(name="default", tools=[press]), model) as house:
        events = await house.ask("Press x.")
        if not idempotent:
            assert len(of(events, ToolCallResult)) == 3 and text_of(events) == "Done."
            return
        assert len(of(events, ToolCallResult)) == 2
        assert "repeated its calls" in str(events[-1].metadata["warnings"])
        await house.ask("Sure?")
    assert [each["choice"] for each in model.told] == ["auto", "auto", "none", "auto"]
    assert [message["role"] for message in model.told[2]["messages"]] == ["user", "assistant", "tool"]
    later = [message["role"] for message in model.told[3]["messages"]]
    assert later == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("arguments", ['{"key": "x"}', "[" * 5000, '{"key": "\ud800"}'])
async def test_a_choice_that_was_asked_for_holds_after_a_repetition_in_the_history(arguments: str):
    @tool(idempotent=True)
    def press(key: str) -> str:
        """Press a key."""
        return "ok"

    def made(id: str) -> list[dict[str, object]]:
        function = {"name": "press", "arguments": arguments}
        calls = [{"id": id, "type": "function", "function": function}]
        return [
            {"id": f"m{id}", "role": "assistant", "toolCalls": calls},
            {"id": f"r{id}", "role": "tool", "toolCallId": id, "content": "ok"},
        ]

    model = Model([call("press", key="x"), "Done."], grammars=True)
    options = GenerationOptions(store=False, tool_choice=ToolChoice("required"))
    async with House(Agent(name="default", tools=[press]), model) as house:
        house.messages += [{"id": "u", "role": "user", "content": "Press x."}, *made("1"), *made("2")]
        events = await house.ask(options=options)
    assert text_of(events) == "Done."
    assert model.told[0]["choice"] == "required"


@pytest.mark.parametrize("repeats_calls", [False, True])
async def test_a_model_may_poll(repeats_calls: bool):
    """Other results are progress; the same results are if the agent says so."""
    states = iter(["queued", "queued" if repeats_calls else "running", "done"])

    @tool(idempotent=True)
    def status() -> str:
        """Return the job's state."""
        return next(states)

    model = Model([call("status"), call("status"), call("status"), "Done."])
    async with House(Agent(name="default", tools=[status], repeats_calls=repeats_calls), model) as house:
        events = await house.ask("Wait for the job.")
    assert len(of(events, ToolCallResult)) == 3 and text_of(events) == "Done."
    assert {each["choice"] for each in model.told} == {"auto"}


async def test_what_goes_wrong_in_a_tool_is_told_to_the_model_and_the_run_goes_on():
    @tool
    def breaks() -> str:
        """Break."""
        raise KeyError("the cupboard is bare")

    @tool
    def refuses() -> str:
        """Refuse."""
        raise ToolFault("Not on a Sunday.")

    @tool(time_limit=0.05)
    async def hangs() -> str:
        """Hang."""
        await asyncio.Event().wait()
        return ""

    wrong = [
        call("breaks"),
        call("refuses"),
        call("hangs"),
        call("add", a="two", b=3),
        call("add", a=1),
        call("missing", x=1),
    ]
    model = Model(["".join(wrong), "I see."])
    async with House(Agent(name="default", tools=[add, breaks, refuses, hangs]), model) as house:
        events = await house.ask("go")
    results = sorted(event.content for event in of(events, ToolCallResult))
    assert len(results) == 6 and all(result.startswith("Error: ") for result in results)
    joined = "\n".join(results)
    for part in (
        "breaks failed.",
        "Not on a Sunday.",
        "longer than 0.05 s",
        "a: Input should be a valid integer",
        "b: Field required",
        "no tool called missing",
    ):
        assert part in joined
    assert "cupboard" not in joined  # clients show results to their users
    assert all(event.metadata == {"isError": True} for event in of(events, ToolCallResult))
    assert text_of(events) == "I see." and isinstance(events[-1], RunFinished)


async def test_results_are_capped():
    @tool
    def talks() -> str:
        """Talk."""
        return "x" * 5_000

    async with House(Agent(name="default", tools=[talks], result_limit=100), Model([call("talks"), "ok"])) as house:
        events = await house.ask("go")
    (result,) = of(events, ToolCallResult)
    assert result.content == "x" * 100 + "\n[cut: 4900 more characters]"


async def test_client_and_server_tools_may_be_mixed_in_one_turn():
    model = Model([call("change_background", color="red") + call("add", a=1, b=2), "Done."])
    async with House(Agent(name="default", tools=[add]), model) as house:
        events = await house.ask("both", tools=[client_tool("change_background")])
        (result,) = of(events, ToolCallResult)
        background, added = of(events, ToolCallStart)
        assert result.tool_call_id == added.tool_call_id and result.content == "3"
        assert events[-1].outcome.pending_tool_call_ids == [background.tool_call_id]
        house.messages.insert(2, {"id": "r1", "role": "tool", "toolCallId": background.tool_call_id, "content": "ok"})
        events = await house.ask(tools=[client_tool("change_background")])
    assert text_of(events) == "Done."


async def test_the_engine_is_told_which_turns_go_on_with_work_that_was_begun():
    model = Model([call("add", a=1, b=2), call("change_background", color="red"), "Done.", "Hello."])
    async with House(Agent(name="default", tools=[add]), model) as house:
        events = await house.ask("both", tools=[client_tool("change_background")])
        (background,) = events[-1].outcome.pending_tool_call_ids
        house.messages.append({"id": "r1", "role": "tool", "toolCallId": background, "content": "ok"})
        await house.ask(tools=[client_tool("change_background")])
        await house.ask("hello")
    assert [request.turn for request in model.engine.requests] == [0, 1, 1, 0]


async def test_max_steps_ends_clearly_with_every_call_answered():
    async with House(Agent(name="default", tools=[add], max_steps=3), Model(lambda _: call("add", a=1, b=1))) as house:
        events = await house.ask("for ever")
    assert len(of(events, StepStarted)) == len(of(events, ToolCallResult)) == 3
    assert events[-1].metadata["finishReason"] == "length"
    assert "max_steps" in events[-1].metadata["warnings"][0]


async def test_a_forced_choice_of_tool_holds_for_the_first_turn_alone():
    model = Model([call("add", a=1, b=1), "Two."], grammars=True)
    options = GenerationOptions(store=False, tool_choice=ToolChoice("required"))
    async with House(Agent(name="default", tools=[add]), model) as house:
        await house.ask("go", options=options)
    assert [each["choice"] for each in model.told] == ["required", "auto"]


async def test_plain_functions_run_in_a_thread_and_may_show_progress_and_change_the_state():
    where = []

    @tool
    def work(context: ToolContext) -> str:
        """Work.

        Args:
            context: not part of the schema
        """
        where.append(threading.current_thread() is threading.main_thread())
        context.progress({"done": 1})
        context.state["steps"] = ["a"]
        context.push_state()
        context.progress("half way")
        context.state["steps"].append("b")
        return "worked"

    assert work.parameters == {"type": "object", "properties": {}, "additionalProperties": False}
    async with House(Agent(name="default", tools=[work], state={}), Model([call("work"), "ok"])) as house:
        events = await house.ask("go")
    assert where == [False]
    shown = of(events, ActivitySnapshot)
    assert [each.content.get("done") or each.content["message"] for each in shown] == [1, "half way"]
    assert len({each.message_id for each in shown}) == 1 and shown[0].content["toolName"] == "work"
    assert house.state == {"steps": ["a", "b"]}


async def test_a_generator_tool_streams_progress_and_its_last_item_is_the_result():
    @tool
    async def count(to: int):
        """Count."""
        for number in range(to):
            yield {"number": number}
        yield f"counted to {to}"

    async with House(Agent(name="default", tools=[count]), Model([call("count", to=2), "ok"])) as house:
        events = await house.ask("go")
    assert [each.content["number"] for each in of(events, ActivitySnapshot)] == [0, 1]
    assert of(events, ToolCallResult)[0].content == "counted to 2"


async def test_cancel_during_a_tool_stops_the_tool():
    stopped = asyncio.Event()
    begun = asyncio.Event()

    @tool
    async def waits() -> str:
        """Wait."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async with House(Agent(name="default", tools=[waits]), Model([call("waits")])) as house:
        run = await house.start("go")
        async with asyncio.timeout(5):
            await begun.wait()
        await run.cancel()
        events = await house.follow(run)
        assert stopped.is_set()
    assert events[-1].outcome == CancelledOutcome()


async def test_a_client_that_leaves_in_silence_frees_the_engine_s_slot():
    model = Model([Script(text="never", first_delay=60)])
    async with House([], model) as house:
        run = await house.manager.start(house.input("hi"), GenerationOptions(store=False), grace=0)
        reader = run.events()
        await anext(reader)
        while not model.engine.running:
            await asyncio.sleep(0.005)
        await reader.aclose()
        async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
            while model.engine.running:
                await asyncio.sleep(0.001)
        assert len(model.engine.cancelled) == 1


async def test_a_cancelled_turn_keeps_what_was_said():
    stuck = Script(text="One two three four five six", fault=Fault(action="hang", after=8))
    async with House([], Model([stuck])) as house:
        run = await house.start("count")
        reader, read = run.events(), ""
        while not read.startswith("One"):
            event = (await anext(reader))[1]
            read += event.delta if isinstance(event, TextMessageContent) else ""
        await run.cancel()
        events = await house.follow(run)
    assert names(events)[-2:] == ["TextMessageEnd", "RunFinished"]
    assert text_of(events).startswith("One") and not text_of(events).endswith("six")


@pytest.mark.parametrize(
    ("fault", "code", "retryable"),
    [
        (Fault(action="error", after=3, kind="out_of_memory", message="too large"), "out_of_memory", False),
        (Fault(action="end", after=3), "connection", True),
        (Fault(action="crash", after=3), "internal", False),
    ],
)
async def test_an_engine_that_fails_closes_what_is_open_and_says_so(fault, code, retryable):
    async with House([], Model([Script(text="Hello there", fault=fault)])) as house:
        events = await house.ask("hi")
    assert names(events)[-2:] == ["TextMessageEnd", "RunError"]
    assert isinstance(events[-1], RunError) and events[-1].code == code
    assert events[-1].metadata["retryable"] is retryable


async def test_pause_resume_and_modify_reach_the_engine_and_are_acknowledged():
    model = Model([Script(text="a", reason=None)])  # a token in every turn of the event loop
    async with House([], model) as house:
        run = await house.start("go")
        reader = run.events()
        while not isinstance((await anext(reader))[1], TextMessageContent):
            pass
        assert await run.pause()
        while not isinstance((await anext(reader))[1], Custom):
            pass
        for _ in range(100):
            await asyncio.sleep(0)
        assert await run.modify({"max_tokens": 20_000})
        for _ in range(100):
            await asyncio.sleep(0)
        assert await run.resume()
        await anext(reader), await anext(reader), await anext(reader)
        assert await run.modify({"max_tokens": 1})
        events = await house.follow(run)
    paused, *rest = (at for at, event in enumerate(events) if isinstance(event, Custom))
    assert [events[at].value["action"] for at in (paused, *rest)] == ["paused", "modified", "resumed", "modified"]
    assert rest[:2] == [paused + 1, paused + 2]  # without a token between them
    assert events[-1].metadata["finishReason"] == "length"


async def test_token_details_ride_on_the_deltas_and_are_not_kept_in_messages():
    model = Model(["Hello."])
    options = GenerationOptions(store=False, token_details=True, sampling=SamplingParams(logprobs=2))
    async with House([], model) as house:
        run = await house.start("hi", options=options)
        events = [event async for _, event in run.events()]
    rows = [row for event in of(events, TextMessageContent) for row in event.metadata["tokens"]]
    assert "".join(row[1] for row in rows) == "Hello." and all(len(row[3]) == 2 for row in rows)


async def test_instructions_may_follow_the_state_and_settings_fill_what_the_request_leaves_open():
    agent = Agent(
        name="default",
        instructions=lambda state: f"Be {state['mood']}.",
        state={"mood": "kind"},
        state_in_prompt=True,
        sampling=SamplingParams(temperature=0.3, max_tokens=7),
        thinking=False,
    )
    model = Model(["ok"])
    async with House(agent, model) as house:
        await house.ask("hi", options=GenerationOptions(store=False, sampling=SamplingParams(max_tokens=3)))
    told = model.told[0]
    assert told["instructions"] == 'Be kind.\n\nShared state:\n{"mood":"kind"}' and told["thinking"] is False
    assert (model.engine.requests[0].sampling.temperature, model.engine.requests[0].sampling.max_tokens) == (0.3, 3)


async def test_a_tool_s_time_limit_comes_from_the_server_where_nothing_else_sets_it():
    model = Model([call("slow", seconds=5), "ok"])
    async with House(Agent(name="default", tools=[slow]), model, limits=ToolLimits(seconds=0.05)) as house:
        events = await house.ask("go")
    assert "longer than 0.05 s" in of(events, ToolCallResult)[0].content
