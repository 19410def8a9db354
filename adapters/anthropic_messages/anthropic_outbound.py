"""Events → Messages API frames, or one message body."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec
import pydantic_core

from adapters import sse
from adapters.answer import Answer, PromptOf, fold, raise_failure, unknown_prompt, warning_extension
from adapters.anthropic_messages.anthropic_inbound import MessageFlags
from adapters.anthropic_messages.blocks import Blocks, Closed, Filled, Opened, Step
from adapters.errors import payload
from adapters.frame_json import json_bytes, json_string
from events.metadata import is_cut
from events.vocabulary import Event, RunError, RunFinished, RunStarted, TextMessageContent, TokenUsage, ToolCallEnd

NO_FLAGS = MessageFlags()
DELTA_TYPE = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """thread_id: of the run, for seals. hidden_tools: names of the server's own tools."""

    id: str
    model: str
    thread_id: str = ""
    hidden_tools: Container[str] = ()


def _blocks(identity: MessageIdentity, flags: MessageFlags) -> Blocks:
    return Blocks(thread_id=identity.thread_id, hidden_tools=identity.hidden_tools, hide_thinking=flags.hide_thinking)


def stop_reason(answer: Answer, flags: MessageFlags) -> tuple[str | None, str | None]:
    """(stop_reason, stop_sequence) for a run that finished; None stands for a cancelled run."""
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
    """Anthropic counts what was read from the cache beside the input, not in it."""
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
        """prompt: of the run, whose length the first frame tells; that frame waits until it is known."""
        self._prompt = prompt
        self._started = False
        self._identity = identity
        self._flags = flags
        self._blocks = _blocks(identity, flags)
        self._writing: str | None = None
        self._text_head = b""

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if type(event) is TextMessageContent and event.message_id == self._writing:
            return self._text_head + json_string(event.delta) + b"}}\n\n" if event.delta else b""
        if choice or isinstance(event, RunStarted) or getattr(event, "subagent_run_id", None) is not None:
            return b""
        return self._start() + self._encode(event)

    def _start(self) -> bytes:
        """`message_start`, in front of whatever comes first."""
        if self._started:
            return b""
        self._started = True
        note = self._prompt()
        usage = usage_object([TokenUsage(input_tokens=note.tokens)] if note is not None else ())
        return _frame("message_start", {"message": _message(self._identity, [], usage)}) + PING

    def _encode(self, event: Event) -> bytes:
        match event:
            case RunFinished():
                return self._steps(self._blocks.close()) + self._end(fold([event]))
            case RunError():
                return self._steps(self._blocks.close()) + self._error(event)
        frames = self._steps(self._blocks.feed(event))
        self._note_open_text()
        return frames

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """A long prompt that is being read is told of as soon as its length is known."""
        if not self._started and self._prompt() is None:
            return sse.KEEP_ALIVE
        return self._start() or PING

    def _note_open_text(self) -> None:
        """While a text block is being written, its deltas need no bookkeeping."""
        opened = self._blocks.open_text
        if opened is None:
            self._writing = None
        elif opened[0] != self._writing:
            self._writing = opened[0]
            self._text_head = (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                b'"delta":{"type":"text_delta","text":' % opened[1]
            )

    def _steps(self, steps: Iterable[Step]) -> bytes:
        return b"".join(_step(step) for step in steps)

    def _end(self, answer: Answer) -> bytes:
        reason, sequence = stop_reason(answer, self._flags)
        if reason is None:
            return _error_frame("internal", "The run was cancelled.")
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        told = warning_extension(answer.warnings)
        last = _frame("message_delta", {"delta": delta, "usage": usage_object(answer.usage), **told})
        return last + _frame("message_stop", {})

    def _error(self, event: RunError) -> bytes:
        return _error_frame(event.code or "internal", event.message)


def _error_frame(kind: str, message: str) -> bytes:
    return b"event: error\ndata: " + json_bytes(payload("anthropic", kind, message)) + b"\n\n"


def _step(step: Step) -> bytes:
    match step:
        case Opened(index, block):
            return _frame("content_block_start", {"index": index, "content_block": block})
        case Filled(index, kind, delta):
            return _frame("content_block_delta", {"index": index, "delta": {"type": DELTA_TYPE[kind], kind: delta}})
        case Closed(index):
            return _frame("content_block_stop", {"index": index})


def message_body(events: Sequence[Event], identity: MessageIdentity, flags: MessageFlags = NO_FLAGS) -> bytes:
    """A finished run as one message. Raises RequestError for a run that broke."""
    answer = fold(events, hidden_tools=identity.hidden_tools)
    raise_failure(answer, "messages")
    message = _message(identity, _content(events, identity, flags), usage_object(answer.usage))
    message["stop_reason"], message["stop_sequence"] = stop_reason(answer, flags)
    return json_bytes(message | warning_extension(answer.warnings))


def _content(events: Sequence[Event], identity: MessageIdentity, flags: MessageFlags) -> list[dict[str, object]]:
    blocks = _blocks(identity, flags)
    own = (event for event in events if getattr(event, "subagent_run_id", None) is None)
    steps = [step for event in own for step in blocks.feed(event)] + blocks.close()
    cut = {event.tool_call_id for event in events if isinstance(event, ToolCallEnd) and is_cut(event.metadata)}
    unfinished: set[int] = set()
    content: list[dict[str, object]] = []
    filled: dict[tuple[int, str], list[str]] = {}
    for step in steps:
        if isinstance(step, Opened):
            content.append(dict(step.block))
            if step.block["type"] == "tool_use" and str(step.block["id"]) in cut:
                unfinished.add(step.place)
        elif isinstance(step, Filled):
            filled.setdefault((step.place, step.kind), []).append(step.delta)
    for (index, kind), deltas in filled.items():
        text = "".join(deltas)
        read = {"input": input_object(text, index in unfinished)} if kind == "partial_json" else {kind: text}
        content[index].update(read)
    return content


def input_object(text: str, cut: bool = False) -> dict[str, object]:
    """A call's arguments as an object; what the model wrote wrong comes as it is, under one key. cut: the output ended
    within them, so they are what is whole of them, as Anthropic's SDK reads a stream that ends there."""
    try:
        value = pydantic_core.from_json(text, allow_partial=True) if cut and text else msgspec.json.decode(text or "{}")
    except (ValueError, msgspec.DecodeError, RecursionError):
        return {} if cut else {"_raw": text}
    return value if isinstance(value, dict) else {"_raw": text}


def count_body(tokens: int) -> bytes:
    return json_bytes({"input_tokens": tokens})
