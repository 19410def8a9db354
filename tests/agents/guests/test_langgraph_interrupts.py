"""LangGraph graphs that ask several questions at once, and that hide parts of what their models say: the real package,
over AG-UI's wire and CopilotKit's."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import interrupt

from tests.agents.guests.graphs import Scripted, State, weather
from tests.agents.guests.talking import body, events_of, told, user
from tests.server import scripted, serving

WIRES = ("/agui/{}", "/copilotkit/agent/{}/run")


class Answers(TypedDict, total=False):
    messages: list[Any]
    answers: Annotated[list[str], operator.add]


def asking(*questions: str) -> Any:
    def node(state: Answers) -> dict[str, Any]:
        return {"answers": [f"{question} {interrupt(question)}" for question in questions]}

    return node


def fan(**nodes: Any) -> Any:
    """A graph whose nodes all work in one superstep."""
    builder = StateGraph(Answers)
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(START, name)
    return builder


def several() -> Any:
    """One question of two nodes each, two of a third in turn, two in a subgraph, and a node that asks nothing."""
    inner = fan(first=asking("inner one?"), second=asking("inner two?")).compile()
    quick = lambda state: {"answers": ["quick"]}  # noqa: E731
    graph = fan(a=asking("a?"), twice=asking("one?", "two?"), inner=inner, b=asking("b?"), quick=quick)
    compiled = graph.compile(checkpointer=InMemorySaver())
    compiled.name = "asker"
    return compiled


def asked(frames: list[dict[str, Any]]) -> dict[str, str]:
    """The open questions: message → id."""
    assert frames[-1]["outcome"]["type"] == "interrupt", frames[-1]
    return {each["message"]: each["id"] for each in frames[-1]["outcome"]["interrupts"]}


@pytest.mark.parametrize("wire", WIRES)
async def test_all_questions_of_a_superstep_are_asked_together_and_answered_by_their_ids(wire: str):
    async with serving(scripted("no"), agents=[several()]) as running:

        async def run(number: int, **answers: str) -> list[dict[str, Any]]:
            resume = [{"interruptId": id, "status": "resolved", "payload": said} for id, said in answers.items()]
            more = {"resume": resume} if resume else {}
            return await events_of(running.url, body(user("go"), run=f"r{number}", **more), wire.format("asker"))

        first = asked(await run(1))
        assert set(first) == {"a?", "b?", "one?", "inner one?", "inner two?"}
        partial = await run(2, **{first["a?"]: "no"})
        # In another order than they were asked in: each answer goes to its own question.
        second = asked(await run(3, **{id: f"to {question}" for question, id in reversed(first.items())}))
        assert set(second) == {"two?"}, "what was answered is not asked again"
        last = await run(4, **{second["two?"]: "to two?"})
    assert "must answer every open interrupt" in str(partial[-1])
    state = next(each[1] for each in reversed(told(last)) if each[0] == "state")
    flat = [each if isinstance(each, str) else each[0] for each in state["answers"]]
    questions = ("a?", "b?", "one?", "two?", "inner one?", "inner two?")
    assert sorted(flat) == sorted([*(f"{question} to {question}" for question in questions), "quick"])
    assert last[-1]["outcome"]["type"] == "success"


@pytest.mark.parametrize("wire", WIRES)
async def test_one_of_several_questions_can_be_cancelled(wire: str):
    graph = fan(a=asking("a?"), b=asking("b?")).compile(checkpointer=InMemorySaver())
    graph.name = "asker"
    async with serving(scripted("no"), agents=[graph]) as running:
        first = asked(await events_of(running.url, body(user("go")), wire.format("asker")))
        resume = [
            {"interruptId": first["b?"], "status": "cancelled"},
            {"interruptId": first["a?"], "status": "resolved", "payload": "yes"},
        ]
        last = await events_of(running.url, body(user("go"), run="r2", resume=resume), wire.format("asker"))
    state = next(each[1] for each in reversed(told(last)) if each[0] == "state")
    assert "a? yes" in state["answers"] and "__agui_cancelled__" in str(state["answers"])


async def test_a_question_of_copilotkit_s_sdk_shows_its_message():
    def node(state: Answers) -> dict[str, Any]:
        value = {"__copilotkit_interrupt_value__": "Sure?", "__copilotkit_messages__": [AIMessage("Sure?")]}
        return {"answers": [interrupt(value)]}

    graph = fan(a=node).compile(checkpointer=InMemorySaver())
    graph.name = "asker"
    async with serving(scripted("no"), agents=[graph]) as running:
        frames = await events_of(running.url, body(user("go")), "/agui/asker")
    assert set(asked(frames)) == {"Sure?"}


def hiding(**metadata: Any) -> Any:
    """A graph whose first node thinks with a config of CopilotKit's, and whose last one says what is meant for people.
    The metadata is what `copilotkit_customize_config` of copilotkit 0.1.96 writes."""

    def script(messages: list[Any]) -> Any:
        if messages[-1].type == "tool":
            return "secret words"
        return [("weather", '{"place": "Oslo"}'), ("book", '{"place": "Rome"}')]

    thinker, speaker = Scripted(script=script), Scripted(script=lambda messages: f"heard {len(messages)}")
    quiet = {"metadata": {f"copilotkit:{name.replace('_', '-')}": value for name, value in metadata.items()}}

    async def think(state: State, config: RunnableConfig) -> dict[str, Any]:
        return {"messages": [await thinker.ainvoke(state["messages"], {**config, **quiet})]}

    async def speak(state: State) -> dict[str, Any]:
        return {"messages": [await speaker.ainvoke(state["messages"])]}

    def after(state: State) -> str:
        return "tools" if tools_condition(state) == "tools" else "speak"

    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("tools", ToolNode([weather], handle_tool_errors=True))
    builder.add_node("speak", speak)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", after)
    builder.add_edge("tools", "think")
    compiled = builder.compile(checkpointer=InMemorySaver())
    compiled.name, compiled.heard = "quiet", speaker.seen
    return compiled


@pytest.mark.parametrize(
    ("metadata", "calls", "text"),
    [
        ({}, ["weather", "book"], "secret words heard 5 "),
        ({"emit_messages": True, "emit_tool_calls": True}, ["weather", "book"], "secret words heard 5 "),
        ({"emit_messages": False}, ["weather", "book"], "heard 5 "),
        ({"emit_tool_calls": False}, [], "secret words heard 5 "),
        ({"emit_tool_calls": "book"}, ["book"], "secret words heard 5 "),
        ({"emit_tool_calls": ["weather"]}, ["weather"], "secret words heard 5 "),
        ({"emit_messages": False, "emit_tool_calls": False}, [], "heard 5 "),
    ],
)
@pytest.mark.parametrize("wire", WIRES)
async def test_what_a_config_hides_is_not_sent_and_stays_in_the_graph_s_state(wire, metadata, calls, text):
    graph = hiding(**metadata)
    async with serving(scripted("no"), agents=[graph]) as running:
        first = await events_of(running.url, body(user("hi")), wire.format("quiet"))
        second = await events_of(running.url, body(user("on", "u2"), run="r2"), wire.format("quiet"))
    for frames in (first, second):
        short = told(frames)
        assert [each[1] for each in short if each[0] == "call"] == calls
        assert len([each for each in short if each[0] == "result"]) == len(calls)
        said = "".join(frame["delta"] for frame in frames if frame["type"] == "TEXT_MESSAGE_CONTENT")
        assert said == (text if frames is first else text.replace("heard 5", "heard 11"))
    assert "secret" in str(graph.heard[1]) and len(graph.heard[1]) == 11, "the graph goes on from its own state"
