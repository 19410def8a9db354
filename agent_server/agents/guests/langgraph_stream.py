"""What LangGraph's `astream` gives (modes messages, custom, tasks) as events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic_core
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage

from events.vocabulary import (
    Custom,
    Event,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
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
            yield _result(message)
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


def _result(message: ToolMessage) -> Event:
    """A tool's result; an error says so where clients look for it."""
    content = message.content if isinstance(message.content, str) else message.text
    return ToolCallResult(
        message_id=str(message.id),
        tool_call_id=message.tool_call_id,
        content=content,
        role="tool",
        metadata={"isError": True} if message.status == "error" else None,
    )
