"""A LangGraph graph as a guest, translated from its own stream.

ag-ui-langgraph is not used: its MESSAGES_SNAPSHOT moves tool results to the end, its resumed runs repeat calls, and its
message ids are unknown to clients. Here assistant messages and tool results keep their ids from the graph's state, so
that the state can be compared with the conversation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

import pydantic_core
from ag_ui.core import AssistantMessage, Message, ReasoningMessage
from ag_ui.core import ToolMessage as AgUiToolMessage
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.pregel import Pregel
from langgraph.types import Command

from agent_server.agents.guests.guest import GuestInput
from agent_server.agents.guests.langchain_model import FROM_CLIENT, content_of, to_langchain, unanswered
from agent_server.bounded import BoundedCache
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


class Visibility:
    """Which parts of a model's messages clients see, as CopilotKit's `copilotkit_customize_config` writes it into the
    metadata of a config: `copilotkit:emit-messages` (a bool) and `copilotkit:emit-tool-calls` (a bool, or the names of
    the visible tools)."""

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
    """An assistant message that is being streamed, with its open part.

    tasks: the namespace of the node that writes it, `NODE:TASK|NODE:TASK`. hidden: ids of the calls that clients do not
    see. visible: whether any part of it was sent.
    """

    def __init__(self, id: str, visibility: Visibility, hidden: set[str], tasks: str = "") -> None:
        self.id = id
        self.tasks = tasks
        self.visibility = visibility
        self.hidden = hidden
        self.visible = False
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
                case "reasoning" if block.get("reasoning") and self.visibility.text:
                    id = f"{self.id}-reasoning"
                    if not self.reasoning:
                        yield from self.close()
                        self.reasoning = True
                        yield ReasoningStart(message_id=id)
                        yield ReasoningMessageStart(message_id=id, role="reasoning")
                    yield ReasoningMessageContent(message_id=id, delta=block["reasoning"])
                case "text" if block.get("text") and self.visibility.text:
                    if not self.text:
                        yield from self.close()
                        self.text = self.visible = True
                        yield TextMessageStart(message_id=self.id, role="assistant")
                    yield TextMessageContent(message_id=self.id, delta=block["text"])
                case "tool_call_chunk":
                    index = block.get("index")
                    if block.get("id") and self.calls.get(index) != block["id"]:
                        self.calls[index] = block["id"]
                        yield from self._open_call(block["id"], block.get("name") or "")
                    if block.get("args") and self.calls.get(index, "") not in ("", *self.hidden):
                        yield ToolCallArgs(tool_call_id=self.calls[index], delta=block["args"])
                case "tool_call" if block["id"] not in self.calls.values():
                    self.calls[block["id"]] = block["id"]
                    yield from self._open_call(block["id"], block["name"])
                    if block["id"] not in self.hidden:
                        arguments = pydantic_core.to_json(block["args"]).decode()
                        yield ToolCallArgs(tool_call_id=block["id"], delta=arguments)
                        yield from self.close()
                case _:
                    pass

    def _open_call(self, id: str, name: str) -> Iterator[Event]:
        yield from self.close()
        if not self.visibility.call(name):
            self.hidden.add(id)
            return
        self.call = id
        self.visible = True
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
    """Converts one run's stream. `finish` closes open messages."""

    def __init__(self) -> None:
        self._open: dict[str, OpenMessage] = {}
        self._steps: dict[str, str] = {}
        self._known_ids: set[str] = set()
        self._kept_ids: set[str] = set()
        self._usage: dict[str, TokenUsage] = {}
        self._messages: dict[str, OpenMessage] = {}
        self._hidden_calls: set[str] = set()
        self._hidden_results: set[str] = set()

    def hidden(self) -> set[str]:
        """The ids of messages that were hidden from clients, as the graph requested."""
        return {id for id, message in self._messages.items() if not message.visible} | self._hidden_results

    def dropped(self) -> set[str]:
        """The ids of messages that clients have and the graph's state does not."""
        return {id for id, message in self._messages.items() if message.visible} - self._kept_ids

    def read(self, mode: str, data: Any) -> Iterator[Event]:
        if mode == "messages":
            message, visibility = data[0], Visibility(data[1])
            id = str(message.id)
            if isinstance(message, ToolMessage) and message.tool_call_id in self._hidden_calls:
                self._hidden_results.add(id)
            elif isinstance(message, ToolMessage):
                self._known_ids.add(id)
                yield from self._close(lambda each: message.tool_call_id in each.calls.values())
                # A tool's result, with errors marked where clients expect it.
                content = message.content if isinstance(message.content, str) else message.text
                yield ToolCallResult(
                    message_id=id,
                    tool_call_id=message.tool_call_id,
                    content=content,
                    role="tool",
                    metadata={"isError": True} if message.status == "error" else None,
                )
            elif isinstance(message, AIMessageChunk):
                open_message = self._open.get(id)
                if open_message is None:
                    tasks = str(data[1].get("langgraph_checkpoint_ns", ""))
                    open_message = self._open[id] = self._open_message(id, visibility, tasks)
                    self._known_ids.add(id)
                yield from open_message.read(message)
                self._count(message)
                if message.chunk_position == "last":
                    yield from open_message.close()
            elif isinstance(message, AIMessage) and id not in self._known_ids:
                self._known_ids.add(id)
                complete = self._open_message(id, visibility)
                yield from complete.read(message)
                yield from complete.close()
                self._count(message)
        elif mode == "tasks":
            # The start or the end of a node. Concurrent nodes with the same name are one step.
            id, name = str(data["id"]), str(data["name"])
            if "input" in data:
                if name not in self._steps.values():
                    yield StepStarted(step_name=name)
                self._steps[id] = name
            elif self._steps.pop(id, None) is not None:
                yield from self._close(lambda each: not each.tasks or f":{id}" in each.tasks)
                if name not in self._steps.values():
                    yield StepFinished(step_name=name)
        elif mode == "custom":
            is_named = isinstance(data, dict) and isinstance(data.get("name"), str) and "value" in data
            value = data["value"] if is_named else data
            value = pydantic_core.to_jsonable_python(value, serialize_unknown=True)
            yield Custom(name=data["name"] if is_named else "langgraph", value=value)

    def finish(self) -> Iterator[Event]:
        return self._close(lambda each: True)

    def read_state(self, messages: Sequence[object], *, is_input: bool) -> Iterator[Event]:
        """Read the messages of the graph's state: those that a node wrote by itself are not streamed.

        is_input: whether it is the state with which the run begins.
        """
        self._kept_ids = {str(getattr(each, "id", "")) for each in messages}
        for each in messages:
            if isinstance(each, AIMessage | ToolMessage) and each.id not in self._known_ids:
                if is_input:
                    self._known_ids.add(str(each.id))
                else:
                    yield from self.read("messages", (each, {}))

    def _close(self, applies: Callable[[OpenMessage], bool]) -> Iterator[Event]:
        for message in [each for each in self._open.values() if applies(each)]:
            del self._open[message.id]
            yield from message.close()

    def usage(self) -> list[TokenUsage]:
        return list(self._usage.values())

    def _open_message(self, id: str, visibility: Visibility, tasks: str = "") -> OpenMessage:
        self._messages[id] = OpenMessage(id, visibility, self._hidden_calls, tasks)
        return self._messages[id]

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
"""Keys of a graph's state that have events of their own, or that come from the client."""
MODES = ("messages", "values", "custom", "tasks")
MAX_HIDDEN_THREADS = 10_000
"""For how many threads the hidden messages are remembered."""
CANCELLED = "__agui_cancelled__"
"""The key in the answer to a cancelled question, as ag-ui-langgraph sends it."""


class LangGraphGuest:
    """Serves one compiled graph. With a checkpointer it keeps its own state for a thread; without one every run starts
    with the whole conversation, and the graph cannot ask questions."""

    kind = "langgraph"
    errors_for_clients = False
    partial_snapshots = True

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self._graph = graph
        # Not from its JSON schema: before Python 3.12 pydantic cannot make one for a typing.TypedDict.
        self._inputs = frozenset(graph.channels)
        self._hidden: BoundedCache[str, set[str]] = BoundedCache(MAX_HIDDEN_THREADS)
        self._dropped: BoundedCache[str, set[str]] = BoundedCache(MAX_HIDDEN_THREADS)
        """The ids of messages that clients have and the graph did not keep, by thread."""

    async def run(self, input: GuestInput) -> AsyncIterator[object]:
        config, messages, values = await self._resume_point(input)
        graph_input: Any
        if input.resume:
            answers: dict[str, object] = {}
            for entry in input.resume:
                cancelled = {CANCELLED: True, "interruptId": entry.interrupt_id}
                answers[entry.interrupt_id] = cancelled if entry.status == "cancelled" else entry.payload
            graph_input = Command(resume=answers)
        else:
            graph_input = self._graph_input(input, messages, values)
        stream = GraphStream()
        sent_state = _shared(input.state)
        pending: dict[str, Interrupt] = {}
        is_input = True
        options: dict[str, Any] = {"stream_mode": list(MODES), "subgraphs": True}
        try:
            async for namespace, mode, data in self._graph.astream(graph_input, config, **options):
                for event in stream.read(mode, data):
                    yield event
                if mode == "values" and not namespace:
                    written = data.get("messages") if isinstance(data, dict) else None
                    for event in stream.read_state(written if isinstance(written, list) else (), is_input=is_input):
                        yield event
                    is_input = False
                    pending |= {each.id: _interrupt(each) for each in data.get("__interrupt__", ())}
                    shared = {**sent_state, **_shared(data)}
                    if shared != sent_state:
                        sent_state = shared
                        yield StateSnapshot(snapshot=sent_state)
            for event in stream.finish():
                yield event
            if input.stored:  # a run that was stopped keeps nothing of an answer that clients have in part
                _remember(self._dropped, input.thread_id, stream.dropped())
            # The stream reports concurrent interrupts one at a time, and repeats earlier ones of a resumed node.
            if pending and self._graph.checkpointer:
                state = await self._graph.aget_state({"configurable": {"thread_id": input.thread_id}})
                pending = {each.id: _interrupt(each) for each in state.interrupts}
        finally:
            if input.stored:
                # Remember which of the thread's messages are hidden from clients.
                _remember(self._hidden, input.thread_id, stream.hidden())
            else:
                checkpointer = self._graph.checkpointer
                if checkpointer and not isinstance(checkpointer, bool):
                    await checkpointer.adelete_thread(input.thread_id)
        outcome = InterruptOutcome(interrupts=list(pending.values())) if pending else None
        usage = stream.usage() or None
        yield RunFinished(thread_id=input.thread_id, run_id=input.run_id, outcome=outcome, usage=usage)

    async def close(self) -> None:
        pass

    async def _resume_point(
        self, input: GuestInput
    ) -> tuple[RunnableConfig, Sequence[BaseMessage], Mapping[str, object]]:
        """Where to continue: the newest checkpoint whose messages the conversation starts with, the rest of the
        conversation, and the newest state. An edited or shortened conversation continues from an older checkpoint."""
        config: RunnableConfig = {"configurable": {"thread_id": input.thread_id}}
        conversation = [each for each in input.messages if not isinstance(each, ReasoningMessage)]
        if not self._graph.checkpointer:
            return {}, to_langchain(conversation), {}
        newest: Mapping[str, object] = {}
        async for snapshot in self._graph.aget_state_history(config):
            values = snapshot.values if isinstance(snapshot.values, dict) else {}
            if input.resume:
                return config, (), values
            newest = newest or values
            stored = values.get("messages", ())
            if (rest := _rest(conversation, stored, self._hidden.get(input.thread_id) or set())) is not None:
                rest = _without(rest, self._dropped.get(input.thread_id) or set())
                return snapshot.config, [*unanswered(stored, rest), *to_langchain(rest, before=stored)], newest
        return config, to_langchain(conversation), {}

    def _graph_input(
        self, input: GuestInput, messages: Sequence[BaseMessage], values: Mapping[str, object]
    ) -> dict[str, object]:
        """The graph's input: the messages, the client's changes of the state, and its tools and context if the graph
        declares channels for them. Unchanged values are left out, because a reducer would add them again."""
        before = _shared(values)
        state = input.state if isinstance(input.state, dict) else {}
        graph_input: dict[str, object] = {
            key: value for key, value in state.items()
            if key in self._inputs and key not in PRIVATE and before.get(key) != value
        }  # fmt: skip
        tools = [
            {"type": "function", "function": each.model_dump(mode="json", by_alias=True)} for each in input.tools or ()
        ]
        context = [each.model_dump(mode="json") for each in input.context or ()]
        client_values: dict[str, object] = {
            "tools": tools,
            "copilotkit": {"actions": tools, "context": context},
            "ag-ui": {"tools": tools, "context": context},
        }
        graph_input |= {key: value for key, value in client_values.items() if key in self._inputs}
        return {**graph_input, "messages": list(messages)}


def _remember(known: BoundedCache[str, set[str]], thread_id: str, ids: set[str]) -> None:
    if ids:
        known.put(thread_id, (known.get(thread_id) or set()) | ids)


def _rest(conversation: Sequence[Message], stored: Sequence[object], hidden: Set[str]) -> list[Message] | None:
    """The part of the conversation after a state's messages; None if it does not continue them. hidden: ids of the
    messages that clients do not have.

    The graph owns its state: clients may have answers that it streamed and did not keep, such as a router's, and
    messages that it removed from the beginning. Only a user's message that differs is an edit.
    """
    answered = {each.tool_call_id for each in conversation if isinstance(each, AgUiToolMessage)}
    # Clients have neither the graph's own instructions nor empty messages, nor results that the graph made up.
    visible: list[BaseMessage] = []
    for each in stored:
        if not isinstance(each, BaseMessage) or each.id in hidden:
            continue
        has_content = each.type == "ai" and (bool(each.content) or bool(getattr(each, "tool_calls", None)))
        is_result = isinstance(each, ToolMessage) and each.tool_call_id in answered
        if has_content or is_result or each.response_metadata.get(FROM_CLIENT):
            visible.append(each)
    if not visible:
        return list(conversation)
    start = next((index for index, each in enumerate(conversation) if _is_same(each, visible[0])), 0)
    matched = 0
    for index in range(start, len(conversation)):
        if matched == len(visible):
            return list(conversation[index:])
        message, stored_message = conversation[index], visible[matched]
        if _is_same(message, stored_message):
            if stored_message.type == "human" and content_of(message.content) != stored_message.content:
                return None
            matched += 1
        elif not isinstance(message, AssistantMessage | AgUiToolMessage):
            return None
    return [] if matched == len(visible) else None


def _without(rest: Sequence[Message], dropped: Set[str]) -> list[Message]:
    """Leave out messages with these ids, and the results of their calls."""
    gone = [each for each in rest if each.id in dropped]
    calls = {call.id for each in gone if isinstance(each, AssistantMessage) for call in each.tool_calls or ()}
    return [each for each in rest if each.id not in dropped and getattr(each, "tool_call_id", None) not in calls]


def _is_same(message: Message, stored: BaseMessage) -> bool:
    call = getattr(message, "tool_call_id", None)
    return message.id == stored.id or (call is not None and call == getattr(stored, "tool_call_id", None))


def _shared(values: object) -> dict[str, object]:
    """The part of a state that clients have, as JSON."""
    if not isinstance(values, dict):
        return {}
    public = {key: value for key, value in values.items() if key not in PRIVATE and not str(key).startswith("__")}
    json_state: dict[str, object] = pydantic_core.to_jsonable_python(public, serialize_unknown=True)
    return json_state


def _interrupt(interrupt: Any) -> Interrupt:
    """A node's question. A string is its message; an object has the message in `message` or `question`, and may have a
    `responseSchema` for the answer."""
    value = pydantic_core.to_jsonable_python(interrupt.value, serialize_unknown=True)
    # As copilotkit_interrupt of CopilotKit's SDK writes it.
    if isinstance(value, dict) and "__copilotkit_interrupt_value__" in value:
        value = value["__copilotkit_interrupt_value__"]
    fields = value if isinstance(value, dict) else {}
    message = value if isinstance(value, str) else fields.get("message") or fields.get("question")
    schema = fields.get("responseSchema") or getattr(interrupt, "response_schema", None)
    return Interrupt(
        id=interrupt.id,
        reason="langgraph:interrupt",
        message=message if isinstance(message, str) else None,
        response_schema=schema if isinstance(schema, dict) else None,
        metadata={"value": value},
    )
