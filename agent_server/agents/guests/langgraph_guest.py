"""A LangGraph graph as a guest: its own stream, translated here.

Translated from `astream` and not through ag-ui-langgraph, whose MESSAGES_SNAPSHOT moves tool results to the end, whose
resumed runs repeat calls, and which gives messages ids that clients do not know. Here an assistant message and a tool
result have the ids that they have in the graph's own state, so that the state can be compared with the conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import pydantic_core
from ag_ui.core import Message, ReasoningMessage, ResumeEntry
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.pregel import Pregel
from langgraph.types import Command

from agent_server.agents.guests.guest import GuestInput
from agent_server.agents.guests.langchain_model import FROM_CLIENT, content_of, to_langchain, unanswered
from events.vocabulary import (
    Custom,
    Event,
    Interrupt,
    InterruptOutcome,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunFinished,
    StateSnapshot,
    StepFinished,
    StepStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

if TYPE_CHECKING:
    from langchain_core.runnables import RunnableConfig


class Emitted:
    """Which parts of a model's messages clients are shown, as CopilotKit's `copilotkit_customize_config` writes it into
    the metadata of a config: `copilotkit:emit-messages` (a bool) and `copilotkit:emit-tool-calls` (a bool, or the names
    of those that are shown)."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self.text = metadata.get("copilotkit:emit-messages") is not False
        self._calls = metadata.get("copilotkit:emit-tool-calls")

    def call(self, name: str) -> bool:
        if isinstance(self._calls, str):
            return name == self._calls
        if isinstance(self._calls, list | tuple | set | frozenset):
            return name in self._calls
        return self._calls is not False


class OpenMessage:
    """An assistant message that is being streamed: which of its parts is open. hidden: ids of the calls that clients
    are not shown. shown: whether anything of it was."""

    def __init__(self, id: str, emitted: Emitted, hidden: set[str]) -> None:
        self.id = id
        self.emitted = emitted
        self.hidden = hidden
        self.shown = False
        self.reasoning = False
        self.text = False
        self.call: str | None = None
        self.calls: dict[object, str] = {}

    def read(self, chunk: AIMessage) -> Iterator[Event]:
        blocks: list[Any] = list(chunk.content_blocks)
        if not blocks and isinstance(chunk.content, str) and chunk.content:
            blocks = [{"type": "text", "text": chunk.content}]
        for block in blocks:
            match block.get("type"):
                case "reasoning" if block.get("reasoning") and self.emitted.text:
                    yield from self._reason(block["reasoning"])
                case "text" if block.get("text") and self.emitted.text:
                    yield from self._speak(block["text"])
                case "tool_call_chunk":
                    yield from self._stream_call(block)
                case "tool_call":
                    yield from self._whole_call(block)
                case _:
                    pass

    def _reason(self, text: str) -> Iterator[Event]:
        id = f"{self.id}-reasoning"
        if not self.reasoning:
            yield from self.close()
            self.reasoning = True
            yield ReasoningStart(message_id=id)
            yield ReasoningMessageStart(message_id=id, role="reasoning")
        yield ReasoningMessageContent(message_id=id, delta=text)

    def _speak(self, text: str) -> Iterator[Event]:
        if not self.text:
            yield from self.close()
            self.text = self.shown = True
            yield TextMessageStart(message_id=self.id, role="assistant")
        yield TextMessageContent(message_id=self.id, delta=text)

    def _stream_call(self, block: dict[str, Any]) -> Iterator[Event]:
        index = block.get("index")
        if block.get("id") and self.calls.get(index) != block["id"]:
            self.calls[index] = block["id"]
            yield from self._open_call(block["id"], block.get("name") or "")
        if block.get("args") and self.calls.get(index, "") not in ("", *self.hidden):
            yield ToolCallArgs(tool_call_id=self.calls[index], delta=block["args"])

    def _whole_call(self, block: dict[str, Any]) -> Iterator[Event]:
        if block["id"] in self.calls.values():
            return
        self.calls[block["id"]] = block["id"]
        yield from self._open_call(block["id"], block["name"])
        if block["id"] in self.hidden:
            return
        yield ToolCallArgs(tool_call_id=block["id"], delta=pydantic_core.to_json(block["args"]).decode())
        yield from self.close()

    def _open_call(self, id: str, name: str) -> Iterator[Event]:
        yield from self.close()
        if not self.emitted.call(name):
            self.hidden.add(id)
            return
        self.call = id
        self.shown = True
        yield ToolCallStart(tool_call_id=id, tool_call_name=name, parent_message_id=self.id)

    def close(self) -> Iterator[Event]:
        if self.reasoning:
            self.reasoning = False
            yield ReasoningMessageEnd(message_id=f"{self.id}-reasoning")
            yield ReasoningEnd(message_id=f"{self.id}-reasoning")
        if self.text:
            self.text = False
            yield TextMessageEnd(message_id=self.id)
        if self.call is not None:
            yield ToolCallEnd(tool_call_id=self.call)
            self.call = None


class GraphStream:
    """Reads one run's stream. `finish` ends what is open."""

    def __init__(self) -> None:
        self._open: dict[str, OpenMessage] = {}
        self._steps: dict[str, str] = {}
        self._seen: set[str] = set()
        self._usage: dict[str, TokenUsage] = {}
        self._messages: dict[str, OpenMessage] = {}
        self._hidden_calls: set[str] = set()
        self._hidden_results: set[str] = set()

    def hidden(self) -> set[str]:
        """Ids of the messages that clients were shown nothing of, because the graph says so."""
        return {id for id, message in self._messages.items() if not message.shown} | self._hidden_results

    def read(self, mode: str, data: Any) -> Iterator[Event]:
        if mode == "messages":
            yield from self._message(data[0], Emitted(data[1]))
        elif mode == "tasks":
            yield from self._task(data)
        elif mode == "custom":
            named = isinstance(data, dict) and isinstance(data.get("name"), str) and "value" in data
            value = data["value"] if named else data
            value = pydantic_core.to_jsonable_python(value, serialize_unknown=True)
            yield Custom(name=data["name"] if named else "langgraph", value=value)

    def finish(self) -> Iterator[Event]:
        for message in self._open.values():
            yield from message.close()
        self._open.clear()

    def usage(self) -> list[TokenUsage]:
        return list(self._usage.values())

    def _message(self, message: BaseMessage, emitted: Emitted) -> Iterator[Event]:
        id = str(message.id)
        if isinstance(message, ToolMessage) and message.tool_call_id in self._hidden_calls:
            self._hidden_results.add(id)
        elif isinstance(message, ToolMessage):
            yield from self.finish()
            # A tool's result; an error says so where clients look for it.
            content = message.content if isinstance(message.content, str) else message.text
            result = ToolCallResult(
                message_id=str(message.id),
                tool_call_id=message.tool_call_id,
                content=content,
                role="tool",
                metadata={"isError": True} if message.status == "error" else None,
            )
            yield result
        elif isinstance(message, AIMessageChunk):
            opened = self._open.get(id)
            if opened is None:
                opened = self._open[id] = self._opened(id, emitted)
                self._seen.add(id)
            yield from opened.read(message)
            self._count(message)
            if message.chunk_position == "last":
                yield from opened.close()
        elif isinstance(message, AIMessage) and id not in self._seen:
            self._seen.add(id)
            whole = self._opened(id, emitted)
            yield from whole.read(message)
            yield from whole.close()
            self._count(message)

    def _opened(self, id: str, emitted: Emitted) -> OpenMessage:
        self._messages[id] = OpenMessage(id, emitted, self._hidden_calls)
        return self._messages[id]

    def _task(self, data: dict[str, object]) -> Iterator[Event]:
        """A node begins or has ended. Nodes of one name at once are one step."""
        id, name = str(data["id"]), str(data["name"])
        if "input" in data:
            if name not in self._steps.values():
                yield StepStarted(step_name=name)
            self._steps[id] = name
        elif self._steps.pop(id, None) is not None and name not in self._steps.values():
            yield from self.finish()
            yield StepFinished(step_name=name)

    def _count(self, message: AIMessage) -> None:
        used = message.usage_metadata
        if not used:
            return
        name = str(message.response_metadata.get("model_name") or "unknown")
        before = self._usage.get(name) or TokenUsage(model=name)
        self._usage[name] = TokenUsage(
            model=name,
            input_tokens=used["input_tokens"] + (before.input_tokens or 0),
            output_tokens=used["output_tokens"] + (before.output_tokens or 0),
            total_tokens=used["total_tokens"] + (before.total_tokens or 0),
        )


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
                # Remember which of a thread's messages clients do not have.
                ids = stream.hidden()
                if ids:
                    self._hidden[input.thread_id] = self._hidden.pop(input.thread_id, set()) | ids
                    if len(self._hidden) > MOST_HIDDEN:
                        self._hidden.popitem(last=False)
            else:
                checkpointer = self._graph.checkpointer
                if checkpointer and not isinstance(checkpointer, bool):
                    await checkpointer.adelete_thread(input.thread_id)
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
