"""A LangGraph graph as a guest: its own stream, translated here.

Translated from `astream` and not through ag-ui-langgraph, whose MESSAGES_SNAPSHOT moves tool results to the end, whose
resumed runs repeat calls, and which gives messages ids that clients do not know. Here an assistant message and a tool
result have the ids that they have in the graph's own state, so that the state can be compared with the conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import pydantic_core
from ag_ui.core import Message, ReasoningMessage, ResumeEntry
from langchain_core.messages import BaseMessage
from langgraph.pregel import Pregel
from langgraph.types import Command

from agent_server.agents.guests.guest import GuestInput
from agent_server.agents.guests.langchain_messages import FROM_CLIENT, content_of, to_langchain, unanswered
from agent_server.agents.guests.langgraph_stream import GraphStream
from events.vocabulary import Event, Interrupt, InterruptOutcome, RunFinished, StateSnapshot

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig

PRIVATE = ("messages", "tools", "copilotkit", "ag-ui")
"""Keys of a graph's state that are told otherwise, or are the client's own."""
MODES = ("messages", "values", "custom", "tasks")
MOST_HIDDEN = 10_000
"""Threads of which it is remembered which messages clients do not have."""
CANCELLED = "__agui_cancelled__"
"""What an interrupted node gets for a question that was cancelled, as from ag-ui-langgraph."""


class LangGraphGuest:
    """Serves one compiled graph. With a checkpointer it keeps its own state for a thread; without one every run begins
    anew with the whole conversation, and the graph cannot ask questions."""

    kind = "langgraph"
    careful = False
    partial_snapshots = True

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self._graph = graph
        # Not its JSON schema: pydantic makes none of a typing.TypedDict before Python 3.12.
        self._inputs = frozenset(graph.channels)
        self._hidden: OrderedDict[str, set[str]] = OrderedDict()

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        config, messages, values = await self._place(input)
        given: Any = Command(resume=_answers(input.resume)) if input.resume else self._given(input, messages, values)
        stream = GraphStream()
        interrupts: list[Interrupt] = []
        try:
            async for event in self._events(input, given, config, stream, interrupts):
                yield event
        finally:
            if input.kept:
                self._note_hidden(input.thread_id, stream.hidden())
            else:
                await self._forget(input.thread_id)
        outcome = InterruptOutcome(interrupts=interrupts) if interrupts else None
        usage = stream.usage() or None
        yield RunFinished(thread_id=input.thread_id, run_id=input.run_id, outcome=outcome, usage=usage)

    async def _events(
        self, input: GuestInput, given: Any, config: RunnableConfig, stream: GraphStream, interrupts: list[Interrupt]
    ) -> AsyncIterator[Event]:
        """The graph's work. All questions that it waits for are put into `interrupts`."""
        told = _shared(input.state)
        asked: dict[str, Interrupt] = {}
        options: dict[str, Any] = {"stream_mode": list(MODES), "subgraphs": True}
        async for namespace, mode, data in self._graph.astream(given, config, **options):
            for event in stream.read(mode, data):
                yield event
            if mode == "values" and not namespace:
                asked |= {each.id: _interrupt(each) for each in data.get("__interrupt__", ())}
                shared = {**told, **_shared(data)}
                if shared != told:
                    told = shared
                    yield StateSnapshot(snapshot=told)
        for event in stream.finish():
            yield event
        # The stream tells of nodes that stop side by side one at a time, and of what a resumed one asked before.
        if asked and self._graph.checkpointer:
            state = await self._graph.aget_state({"configurable": {"thread_id": input.thread_id}})
            asked = {each.id: _interrupt(each) for each in state.interrupts}
        interrupts.extend(asked.values())

    async def close(self) -> None:
        pass

    async def _place(self, input: GuestInput) -> tuple[RunnableConfig, Sequence[BaseMessage], Mapping[str, object]]:
        """Where the run goes on: the newest checkpoint whose messages the conversation begins with, the rest of the
        conversation, and the newest state. An edited or shortened conversation goes on from an older checkpoint."""
        config: RunnableConfig = {"configurable": {"thread_id": input.thread_id}}
        wanted = [each for each in input.messages if not isinstance(each, ReasoningMessage)]
        if not self._graph.checkpointer:
            return {}, to_langchain(wanted), {}
        newest: Mapping[str, object] = {}
        async for found in self._graph.aget_state_history(config):
            values = found.values if isinstance(found.values, dict) else {}
            if input.resume:
                return config, (), values
            newest = newest or values
            held = values.get("messages", ())
            if (rest := _rest(wanted, held, self._hidden.get(input.thread_id, set()))) is not None:
                return found.config, [*unanswered(held, rest), *to_langchain(rest, before=held)], newest
        return config, to_langchain(wanted), {}

    def _given(
        self, input: GuestInput, messages: Sequence[BaseMessage], values: Mapping[str, object]
    ) -> dict[str, object]:
        """The graph's input: the messages, what the client changed of the state, its tools and context where the graph
        declares a place for them. A value that is unchanged is left out: a reducer would add it once more."""
        before = _shared(values)
        state = input.state if isinstance(input.state, dict) else {}
        given: dict[str, object] = {
            key: value for key, value in state.items()
            if key in self._inputs and key not in PRIVATE and before.get(key) != value
        }  # fmt: skip
        tools = [
            {"type": "function", "function": each.model_dump(mode="json", by_alias=True)} for each in input.tools or ()
        ]
        context = [each.model_dump(mode="json") for each in input.context or ()]
        places: dict[str, object] = {
            "tools": tools,
            "copilotkit": {"actions": tools, "context": context},
            "ag-ui": {"tools": tools, "context": context},
        }
        given |= {key: value for key, value in places.items() if key in self._inputs}
        return {**given, "messages": list(messages)}

    def _note_hidden(self, thread_id: str, ids: set[str]) -> None:
        """Remember which of a thread's messages clients do not have."""
        if ids:
            self._hidden[thread_id] = self._hidden.pop(thread_id, set()) | ids
            if len(self._hidden) > MOST_HIDDEN:
                self._hidden.popitem(last=False)

    async def _forget(self, thread_id: str) -> None:
        checkpointer = self._graph.checkpointer
        if checkpointer and not isinstance(checkpointer, bool):
            await checkpointer.adelete_thread(thread_id)


def _shown(held: Sequence[object]) -> list[BaseMessage]:
    """Those of a state's messages that clients have: not the graph's own instructions, nor empty ones."""
    found = []
    for each in held:
        if not isinstance(each, BaseMessage):
            continue
        said = each.type == "ai" and (bool(each.content) or bool(getattr(each, "tool_calls", None)))
        if said or each.type == "tool" or each.response_metadata.get(FROM_CLIENT):
            found.append(each)
    return found


def _rest(wanted: Sequence[Message], held: Sequence[object], hidden: Set[str]) -> list[Message] | None:
    """What the conversation holds beyond a state's messages; None if it does not begin with them. hidden: ids of
    messages that clients were not shown."""
    shown = [kept for kept in _shown(held) if kept.id not in hidden]
    if len(shown) > len(wanted):
        return None
    for message, kept in zip(wanted, shown, strict=False):
        same = message.id == kept.id or getattr(message, "tool_call_id", 0) == getattr(kept, "tool_call_id", 1)
        if not same or (kept.type == "human" and content_of(message.content) != kept.content):
            return None
    return list(wanted[len(shown) :])


def _shared(values: object) -> dict[str, object]:
    """A state as clients have it, as JSON."""
    if not isinstance(values, dict):
        return {}
    kept = {key: value for key, value in values.items() if key not in PRIVATE and not str(key).startswith("__")}
    found: dict[str, object] = pydantic_core.to_jsonable_python(kept, serialize_unknown=True)
    return found


def _answers(resume: Sequence[ResumeEntry]) -> dict[str, object]:
    """The answers by the interrupts' ids, as the graph takes them."""
    return {
        each.interrupt_id: {CANCELLED: True, "interruptId": each.interrupt_id}
        if each.status == "cancelled"
        else each.payload
        for each in resume
    }


def _interrupt(asked: Any) -> Interrupt:
    """A node's question. A text is its message; of an object, `message` or `question` is, and a `responseSchema` in it
    holds for the answer."""
    value = pydantic_core.to_jsonable_python(asked.value, serialize_unknown=True)
    if (
        isinstance(value, dict) and "__copilotkit_interrupt_value__" in value
    ):  # copilotkit_interrupt of CopilotKit's SDK
        value = value["__copilotkit_interrupt_value__"]
    fields = value if isinstance(value, dict) else {}
    message = value if isinstance(value, str) else fields.get("message") or fields.get("question")
    schema = fields.get("responseSchema") or getattr(asked, "response_schema", None)
    return Interrupt(
        id=asked.id,
        reason="langgraph:interrupt",
        message=message if isinstance(message, str) else None,
        response_schema=schema if isinstance(schema, dict) else None,
        metadata={"value": value},
    )
