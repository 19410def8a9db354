"""Events → the frames of a streamed message of Anthropic's Messages, or one message."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import pydantic_core

from adapters import sse
from adapters.answer import Answer, PromptOf, fold, raise_failure, unknown_prompt, warning_extension
from adapters.anthropic_messages.content_blocks import digest
from adapters.anthropic_messages.messages_inbound import MessageFlags
from adapters.client_history import Seal, wrap
from adapters.errors import payload
from adapters.mcp_request import split_tool_name
from adapters.sse import json_bytes, json_string
from events.metadata import is_cut
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)


class BlockStart(NamedTuple):
    block_index: int
    block: dict[str, object]


class BlockDelta(NamedTuple):
    """kind: the key of the delta on the wire."""

    block_index: int
    kind: Literal["text", "thinking", "signature", "partial_json"]
    delta: str


class BlockStop(NamedTuple):
    block_index: int


Step = BlockStart | BlockDelta | BlockStop
BlockKind = Literal["text", "thinking", "tool_use", "mcp_tool_result"]
DELTA_KEY: dict[BlockKind, Literal["text", "thinking", "partial_json"]] = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "partial_json",
    "mcp_tool_result": "text",
}


class _WaitingBlock:
    """A block of the message. waiting: deltas that arrived while an earlier block was written. sealed: an encrypted
    value."""

    __slots__ = ("block", "deltas", "ended", "id", "kind", "opened", "sealed", "waiting")

    def __init__(self, kind: BlockKind, id: str, block: dict[str, object]) -> None:
        """block: as it is opened."""
        self.kind: BlockKind = kind
        self.id = id
        self.block = block
        self.opened = False
        self.ended = False
        self.sealed: str | None = None
        self.deltas: list[str] = []
        self.waiting: list[str] = []


class Blocks:
    """Converts events to steps of blocks. The first item of `_row` is the block being written."""

    def __init__(self, identity: MessageIdentity, flags: MessageFlags) -> None:
        self._mcp = flags.mcp  # their calls and results are shown
        self._mcp_calls: set[str] = set()
        self._thread_id = identity.thread_id
        self._hidden = identity.hidden_tools
        self._hide_thinking = flags.hide_thinking
        self._row: list[_WaitingBlock] = []
        self._index = 0

    @property
    def open_text(self) -> tuple[str, int] | None:
        """(message id, block index) while a text block is being written, so that the caller can encode its deltas
        directly."""
        head = self._row[0] if self._row else None
        return (head.id, self._index) if head is not None and head.opened and head.kind == "text" else None

    def feed(self, event: Event) -> list[Step]:
        steps: list[Step] = []
        if not isinstance(event, ReasoningEncryptedValue):
            self._advance(steps)
        match event:
            case TextMessageStart(message_id=id):
                self._row.append(_WaitingBlock("text", id, {"type": "text", "text": ""}))
            case ReasoningMessageStart(message_id=id):
                self._row.append(_WaitingBlock("thinking", id, {"type": "thinking", "thinking": "", "signature": ""}))
            case ToolCallStart(tool_call_id=id, tool_call_name=name):
                called: dict[str, object] = {"type": "tool_use", "id": id, "name": name, "input": {}}
                if (mcp_tool := split_tool_name(name, self._mcp)) is not None:
                    called |= {"type": "mcp_tool_use", "name": mcp_tool[1], "server_name": mcp_tool[0]}
                    self._mcp_calls.add(id)
                elif name in self._hidden:
                    return steps
                self._row.append(_WaitingBlock("tool_use", id, called))
                if len(self._row) == 1:
                    self._begin(steps)
            case ToolCallResult(tool_call_id=id) if id in self._mcp_calls:
                self._row.append(result := _WaitingBlock("mcp_tool_result", id, _result_block(event)))
                result.ended = True
                self._advance(steps)
            case TextMessageContent(message_id=id, delta=delta):
                self._fill("text", id, delta, steps)
            case ReasoningMessageContent(message_id=id, delta=delta):
                self._fill("thinking", id, delta, steps)
            case ToolCallArgs(tool_call_id=id, delta=delta):
                self._fill("tool_use", id, delta, steps)
            case TextMessageEnd(message_id=id):
                self._end("text", id, steps)
            case ReasoningMessageEnd(message_id=id):
                self._end("thinking", id, None)
            case ToolCallEnd(tool_call_id=id):
                self._end("tool_use", id, steps)
            case ReasoningEncryptedValue(subtype="message", entity_id=id, encrypted_value=value):
                if (item := self._find("thinking", id)) is not None:
                    item.sealed = wrap(Seal(self._thread_id, id, value))
            case _:
                pass
        return steps

    def close(self) -> list[Step]:
        """End and write all remaining blocks."""
        steps: list[Step] = []
        for item in self._row:
            item.ended = True
        self._advance(steps)
        return steps

    def _find(self, kind: BlockKind, id: str) -> _WaitingBlock | None:
        return next((item for item in self._row if item.id == id and item.kind == kind), None)

    def _fill(self, kind: BlockKind, id: str, delta: str, steps: list[Step]) -> None:
        item = self._find(kind, id)
        if item is None or not delta:
            return
        if item is self._row[0]:
            self._write(item, delta, steps)
        else:
            item.waiting.append(delta)

    def _write(self, item: _WaitingBlock, delta: str, steps: list[Step]) -> None:
        if not item.opened:
            self._begin(steps)
        if item.kind == "thinking":
            item.deltas.append(delta)
            if self._hide_thinking:
                return
        steps.append(BlockDelta(self._index, DELTA_KEY[item.kind], delta))

    def _begin(self, steps: list[Step]) -> None:
        item = self._row[0]
        item.opened = True
        steps.append(BlockStart(self._index, item.block))

    def _end(self, kind: BlockKind, id: str, steps: list[Step] | None) -> None:
        """Mark a block as ended. Reasoning (`steps` is None) is closed by the next event, since its seal may still
        follow."""
        if (item := self._find(kind, id)) is not None:
            item.ended = True
            if steps is not None:
                self._advance(steps)

    def _advance(self, steps: list[Step]) -> None:
        """Close the block being written if it has ended, and write the waiting ones after it."""
        while self._row:
            item = self._row[0]
            for delta in item.waiting:
                self._write(item, delta, steps)
            item.waiting.clear()
            if item.kind in ("tool_use", "mcp_tool_result") and not item.opened:
                self._begin(steps)
            if not item.ended:
                return
            self._row.pop(0)
            if item.opened and item.kind == "thinking":
                visible_text = "" if self._hide_thinking else "".join(item.deltas)
                steps.append(BlockDelta(self._index, "signature", item.sealed or digest(visible_text)))
            elif not item.opened and item.sealed is not None:
                steps.append(BlockStart(self._index, {"type": "redacted_thinking", "data": item.sealed}))
            elif not item.opened:
                continue
            steps.append(BlockStop(self._index))
            self._index += 1


def _result_block(event: ToolCallResult) -> dict[str, object]:
    parts = [event.content] if isinstance(event.content, str) else event.content
    texts = [
        part if isinstance(part, str) else part["text"] if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in parts
    ]
    return {
        "type": "mcp_tool_result",
        "tool_use_id": event.tool_call_id,
        "is_error": bool((event.metadata or {}).get("isError")),
        "content": [{"type": "text", "text": text} for text in texts],
    }


NO_FLAGS = MessageFlags()
DELTA_TYPE = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """thread_id: the run's thread, for seals. hidden_tools: names of the server's own tools."""

    id: str
    model: str
    thread_id: str = ""
    hidden_tools: Container[str] = ()


def stop_reason(answer: Answer, flags: MessageFlags) -> tuple[str | None, str | None]:
    """Return (stop_reason, stop_sequence) for a finished run; the reason is None for a cancelled one."""
    if answer.finish == "cancelled":
        return None, None
    if answer.finish == "content_filter":
        return "refusal", None
    if answer.interrupts:
        return "pause_turn", None
    if answer.finish == "stop" and isinstance(answer.stop, str):
        return "stop_sequence", answer.stop
    if answer.finish == "length":
        full = usage_object(answer.usage)["output_tokens"] < flags.max_tokens
        return "model_context_window_exceeded" if full else "max_tokens", None
    return "tool_use" if answer.finish == "tool_calls" else "end_turn", None


def usage_object(usage: Iterable[TokenUsage]) -> dict[str, int]:
    """Return Anthropic's usage, where `input_tokens` excludes the tokens that were read from the cache."""
    total = cached = output = 0
    for part in usage:
        total += part.input_tokens or 0
        cached += part.cached_input_tokens or 0
        output += part.output_tokens or 0
    return {
        "input_tokens": total - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _message(identity: MessageIdentity, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": identity.id,
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _frame(kind: str, data: dict[str, object]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json_bytes({"type": kind, **data}) + b"\n\n"


class MessageStream:
    """Encodes one run's events as the named events of a streamed message."""

    content_type = "text/event-stream"

    def __init__(
        self, identity: MessageIdentity, flags: MessageFlags = NO_FLAGS, *, prompt: PromptOf = unknown_prompt
    ) -> None:
        """prompt: returns the run's prompt, whose length is in the first frame."""
        self._prompt = prompt
        self._started = False
        self._identity = identity
        self._flags = flags
        self._blocks = Blocks(identity, flags)
        self._writing: str | None = None
        self._text_head = b""

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if type(event) is TextMessageContent and event.message_id == self._writing:
            return self._text_head + json_string(event.delta) + b"}}\n\n" if event.delta else b""
        if choice or isinstance(event, RunStarted) or getattr(event, "subagent_run_id", None) is not None:
            return b""
        start = self._start()
        match event:
            case RunFinished():
                return start + self._steps(self._blocks.close()) + self._end(fold([event]))
            case RunError():
                return start + self._steps(self._blocks.close()) + _error_frame(event.code or "internal", event.message)
        frames = self._steps(self._blocks.feed(event))
        # While a text block is being written, its deltas need no bookkeeping.
        open_text = self._blocks.open_text
        if open_text is None:
            self._writing = None
        elif open_text[0] != self._writing:
            self._writing = open_text[0]
            self._text_head = (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                b'"delta":{"type":"text_delta","text":' % open_text[1]
            )
        return start + frames

    def _start(self) -> bytes:
        """Return `message_start` before the first other frame, and nothing afterwards."""
        if self._started:
            return b""
        self._started = True
        note = self._prompt()
        usage = usage_object([TokenUsage(input_tokens=note.tokens)] if note is not None else ())
        return _frame("message_start", {"message": _message(self._identity, [], usage)}) + PING

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """Return a ping. While a long prompt is computed, `message_start` is sent as soon as its length is known."""
        if not self._started and self._prompt() is None:
            return sse.KEEP_ALIVE
        return self._start() or PING

    def _steps(self, steps: Iterable[Step]) -> bytes:
        frames = b""
        for step in steps:
            match step:
                case BlockStart(index, block):
                    frames += _frame("content_block_start", {"index": index, "content_block": block})
                case BlockDelta(index, kind, delta):
                    content = {"type": DELTA_TYPE[kind], kind: delta}
                    frames += _frame("content_block_delta", {"index": index, "delta": content})
                case BlockStop(index):
                    frames += _frame("content_block_stop", {"index": index})
        return frames

    def _end(self, answer: Answer) -> bytes:
        reason, sequence = stop_reason(answer, self._flags)
        if reason is None:
            return _error_frame("internal", "The run was cancelled.")
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        warnings = warning_extension(answer.warnings)
        last = _frame("message_delta", {"delta": delta, "usage": usage_object(answer.usage), **warnings})
        return last + _frame("message_stop", {})


def _error_frame(kind: str, message: str) -> bytes:
    return b"event: error\ndata: " + json_bytes(payload("anthropic", kind, message)) + b"\n\n"


def message_body(events: Sequence[Event], identity: MessageIdentity, flags: MessageFlags = NO_FLAGS) -> bytes:
    """Encode a finished run as one message. Raises RequestError for a failed run."""
    answer = fold(events, hidden_tools=identity.hidden_tools)
    raise_failure(answer, "messages")
    blocks = Blocks(identity, flags)
    own = (event for event in events if getattr(event, "subagent_run_id", None) is None)
    steps = [step for event in own for step in blocks.feed(event)] + blocks.close()
    cut = {event.tool_call_id for event in events if isinstance(event, ToolCallEnd) and is_cut(event.metadata)}
    unfinished: set[int] = set()
    content: list[dict[str, object]] = []
    filled: dict[tuple[int, str], list[str]] = {}
    for step in steps:
        if isinstance(step, BlockStart):
            content.append(dict(step.block))
            if step.block["type"] in ("tool_use", "mcp_tool_use") and str(step.block["id"]) in cut:
                unfinished.add(step.block_index)
        elif isinstance(step, BlockDelta):
            filled.setdefault((step.block_index, step.kind), []).append(step.delta)
    for (index, kind), deltas in filled.items():
        text = "".join(deltas)
        read = {"input": input_object(text, index in unfinished)} if kind == "partial_json" else {kind: text}
        content[index].update(read)
    message = _message(identity, content, usage_object(answer.usage))
    message["stop_reason"], message["stop_sequence"] = stop_reason(answer, flags)
    return json_bytes(message | warning_extension(answer.warnings))


def input_object(text: str, cut: bool = False) -> dict[str, object]:
    """Return a call's arguments as an object; malformed text is returned under the key `_raw`.

    cut: the output ended within them; the result is then their complete part, as Anthropic's SDK reads such a stream.
    """
    try:
        value = pydantic_core.from_json(text, allow_partial=True) if cut and text else msgspec.json.decode(text or "{}")
    except (ValueError, msgspec.DecodeError, RecursionError):
        return {} if cut else {"_raw": text}
    return value if isinstance(value, dict) else {"_raw": text}


def count_body(tokens: int) -> bytes:
    return json_bytes({"input_tokens": tokens})
