"""The state that a LangGraph graph owns: messages that it keeps, drops, removes or writes without a model's stream."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langchain_core.messages import BaseMessage, RemoveMessage, SystemMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages

from tests.agents.guests.graphs import Scripted
from tests.agents.guests.talking import body, events_of, told, user
from tests.agents.guests.test_langgraph_guest import PAINT, messages_of
from tests.server import scripted, serving


class State(TypedDict, total=False):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], operator.add]
    summary: str


def compiled(*nodes: Any, checkpointer: Any = True) -> Any:
    """A graph of nodes one after the other."""
    builder = StateGraph(State)
    for node in nodes:
        builder.add_node(node)
    for before, after in itertools.pairwise(nodes):
        builder.add_edge(before.__name__, after.__name__)
    builder.add_edge(START, nodes[0].__name__)
    made = builder.compile(checkpointer=InMemorySaver() if checkpointer else None)
    made.name = "graph"
    return made


async def conversation(graph: Any, *texts: str, tools: tuple[Any, ...] = ()) -> list[list[dict[str, Any]]]:
    """The events of each run of a client that sends everything that it has."""
    runs: list[list[dict[str, Any]]] = []
    async with serving(scripted("no"), agents=[graph]) as running:
        for number, text in enumerate(texts):
            before = [each for each in (await messages_of(running) if runs else []) if each["role"] != "reasoning"]
            said = body(*before, user(text, f"u{number}"), run=f"r{number}", tools=list(tools))
            runs.append(await events_of(running.url, said))
    return runs


def texts_of(messages: list[BaseMessage]) -> list[str]:
    return [f"{each.type}: {each.text.strip()}" for each in messages]


@pytest.mark.parametrize("written", [{"role": "ai", "content": "hello"}, ("ai", "hello")])
@pytest.mark.parametrize("checkpointer", [True, False])
async def test_a_message_that_a_node_writes_by_itself_is_sent(written: Any, checkpointer: bool) -> None:
    def hello(state: MessagesState) -> dict[str, Any]:
        return {"messages": [written]}

    for frames in await conversation(compiled(hello, checkpointer=checkpointer), "one", "two"):
        assert [each for each in told(frames) if each[0] == "text"] == [("text", "hello")]


async def test_an_answer_that_the_graph_did_not_keep_leaves_its_state_alone() -> None:
    model = Scripted(script=lambda messages: "route" if messages[0].type == "system" else "answer")

    async def router(state: State) -> dict[str, Any]:
        await model.ainvoke([SystemMessage("route"), *state["messages"]])
        return {"log": ["routed"]}

    async def talk(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def summary(state: State) -> dict[str, Any]:
        await model.ainvoke([SystemMessage("summarise"), *state["messages"]])
        return {"log": ["summarised"]}

    runs = await conversation(compiled(router, talk, summary), "one", "two", "three")
    assert [each for each in told(runs[-1]) if each[0] == "state"][-1] == (
        "state",
        {"log": ["routed", "summarised"] * 3},
    )
    assert texts_of(model.seen[-2]) == ["human: one", "ai: answer", "human: two", "ai: answer", "human: three"]


async def test_messages_that_the_graph_removed_stay_removed() -> None:
    model = Scripted(script=lambda messages: "answer")

    async def talk(state: State) -> dict[str, Any]:
        told_before = SystemMessage(state.get("summary", "nothing"))
        return {"messages": [await model.ainvoke([told_before, *state["messages"]])]}

    async def shorten(state: State) -> dict[str, Any]:
        removed = [RemoveMessage(id=each.id) for each in state["messages"][:-2]]
        return {"messages": removed, "summary": f"{len(removed)} removed"} if removed else {}

    await conversation(compiled(talk, shorten), "one", "two", "three")
    assert texts_of(model.seen[-1]) == ["system: 2 removed", "human: two", "ai: answer", "human: three"]


async def test_a_call_that_the_client_leaves_unanswered_does_not_freeze_the_state() -> None:
    model = Scripted(
        script=lambda messages: [("paint", "{}")] if messages[-1].text == "paint" else f"{len(messages)} messages"
    )

    async def talk(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])], "log": ["talked"]}

    runs = await conversation(compiled(talk), "paint", "two", "three", "four", tools=(PAINT,))
    assert [each for each in told(runs[-1]) if each[0] == "state"][-1] == ("state", {"log": ["talked"] * 4})
    assert texts_of(model.seen[-1])[2] == "tool: The call was not made."


class Slow(Scripted):
    pause: float

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream(messages):
            yield chunk
            await asyncio.sleep(self.pause)


@pytest.mark.parametrize("said", ["slow words that go on", [("paint", '{"a": 1}')]])
async def test_a_node_that_ends_leaves_the_messages_of_others_open(said: Any) -> None:
    models = {
        "slow": Slow(script=lambda messages: said, pause=0.1),
        "quick": Slow(script=lambda messages: "quick", pause=0),
    }
    builder = StateGraph(State)
    for name, model in models.items():

        async def node(state: State, model: Any = model) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder.add_node(name, node)
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    graph.name = "graph"
    (frames,) = await conversation(graph, "go", tools=(PAINT,))
    arguments = "".join(frame["delta"] for frame in frames if frame["type"] == "TOOL_CALL_ARGS")
    starts = sum(frame["type"] == "TEXT_MESSAGE_START" for frame in frames)
    assert (arguments, starts) == (('{"a": 1}', 1) if isinstance(said, list) else ("", 2))


async def test_what_a_person_stopped_is_known_in_the_next_turn() -> None:
    model = Slow(script=lambda messages: "a long answer " * 100 if len(messages) == 1 else "done", pause=0.05)

    async def talk(state: State) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async with serving(scripted("no"), agents=[compiled(talk)]) as running:
        run = asyncio.create_task(events_of(running.url, body(user("one"))))
        async with httpx.AsyncClient(base_url=running.url) as client:
            while not model.seen:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # a few words
            assert (await client.post("/agui/runs/r1/cancel")).status_code < 300
        await run
        kept = [each for each in await messages_of(running) if each["role"] != "reasoning"]
        await events_of(running.url, body(*kept, user("two", "u2"), run="r2"))
    assert [each.type for each in model.seen[-1]] == ["human", "ai", "human"]
