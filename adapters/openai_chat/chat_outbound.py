"""Events → the chunks of Chat Completions, or one completion.

The constant parts of a frame are encoded once, so that a delta only costs the encoding of one JSON string.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import msgspec

from adapters.answer import Answer, PromptOf, field_on, finish_reason, fold, raise_failure, unknown_prompt
from adapters.errors import payload
from adapters.openai_chat.chat_inbound import ChatFlags
from adapters.openai_tokens import (
    chat_logprobs,
    combined_usage,
    progress_object,
    prompt_logprobs,
    timings_object,
    usage_so_far,
)
from adapters.request_tools import InputText, input_of
from adapters.sse import json_bytes, json_string
from events.metadata import Scored, error_metadata, finished_metadata, tokens_of, visible_tokens
from events.sampling import Wire
from events.vocabulary import (
    PROGRESS_EVENT,
    Custom,
    Event,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    TextMessageContent,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)

DONE = b"data: [DONE]\n\n"
ANSWER_FAILURES = ("tool_call_parse_error", "cancelled")
"""Failures that are reported within an answer, with finish_reason "error": a malformed call and a cancelled run."""
NO_FLAGS = ChatFlags()


class ChatIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every chunk repeats. created: seconds since the epoch. hidden_tools: names of the server's own
    tools."""

    id: str
    model: str
    created: int
    reasoning_content: bool = True
    hidden_tools: Container[str] = ()


def wire_finish(finish: str, named_tool: bool, functions: bool = False) -> str:
    """Return OpenAI's `finish_reason`. As at OpenAI, it is "stop" after a call that tool_choice named. It is "error"
    for a cancelled run."""
    if finish == "tool_calls":
        return "stop" if named_tool else "function_call" if functions else "tool_calls"
    return finish if finish in ("stop", "length", "error", "content_filter") else "error"


def stop_text(stop: str | int | None, include: bool) -> str:
    """Return the stop string that ended an answer, if its text has to include it."""
    return stop if include and isinstance(stop, str) else ""


def error_object(error: RunError | None, wire: Wire = "chat") -> dict[str, Any]:
    """Return the `error` of a chunk or body. error: None for a cancelled run."""
    if error is None:
        return {"message": "The run was cancelled.", "type": "server_error", "param": None, "code": "cancelled"}
    param = field_on(wire, error_metadata(error).param)
    fields: dict[str, Any] = payload("openai", error.code or "internal", error.message, param=param)["error"]
    if error.code in ANSWER_FAILURES:
        fields["type"] = fields["code"] = error.code
    return fields


class _ChatChoice:
    """The state of one of `n` answers, with the constant beginnings of its frames."""

    __slots__ = (
        "calls", "content_head", "ended", "first", "head", "index", "inputs", "reasoning_head", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, head: bytes, index: int) -> None:
        self.index = index
        self.head = head + b'"choices":[{"index":%d,"delta":{' % index
        self.content_head = self.head + b'"content":'
        self.reasoning_head = self.head + b'"reasoning":'
        self.calls: dict[str, tuple[bytes, int]] = {}
        self.inputs: dict[str, InputText] = {}
        self.first = True
        self.ended = False
        self.tokens = 0
        self.usage: Sequence[TokenUsage] = ()


class ChatStream:
    """Encodes the events of one run, or of `n` runs distinguished by `choice`, as server-sent chunks."""

    content_type = "text/event-stream"

    def __init__(
        self, identity: ChatIdentity, flags: ChatFlags = NO_FLAGS, *, n: int = 1, prompts: Sequence[PromptOf] = ()
    ) -> None:
        """prompts: one for each of the `n` runs, or none."""
        self._flags = flags
        self._prompts = prompts or [unknown_prompt] * n
        self._hidden = identity.hidden_tools
        self._both_names = identity.reasoning_content
        self._details = flags.logprobs is not None or flags.token_ids or flags.continuous_usage
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            json_string(identity.id),
            identity.created,
            json_string(identity.model),
        )
        self._close = b',"usage":null}\n\n' if flags.include_usage else b"}\n\n"
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + self._close
        self._choices = [_ChatChoice(self._head, index) for index in range(n)]
        self._skip = len(self._head)

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        handler = _HANDLERS.get(type(event))
        if handler is None or getattr(event, "subagent_run_id", None) is not None:
            return b""
        return handler(self, event, self._choices[choice])

    def finish(self) -> bytes:
        """Return the end mark, after the usage chunk if it was requested and no answer failed."""
        if not self._flags.include_usage or not all(choice.ended for choice in self._choices):
            return DONE
        usage = combined_usage([choice.usage for choice in self._choices])
        return self._head + b'"choices":[],"usage":' + json_bytes(usage) + b"}\n\n" + DONE

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _text(self, event: TextMessageContent, choice: _ChatChoice) -> bytes:
        if event.metadata is not None and self._details:
            return self._with_details(b'"content":' + json_string(event.delta), event.metadata, choice, "content")
        if not event.delta:
            return b""
        if choice.first or self._flags.continuous_usage:
            return self._delta(b'"content":' + json_string(event.delta), choice)
        return choice.content_head + json_string(event.delta) + self._tail

    def _reasoning(self, event: ReasoningMessageContent, choice: _ChatChoice) -> bytes:
        if not self._flags.reasoning:
            return b""
        text = json_string(event.delta)
        if event.metadata is not None and self._details:
            return self._with_details(self._named_reasoning(text), event.metadata, choice, "reasoning")
        if not event.delta:
            return b""
        if choice.first or self._flags.continuous_usage:
            return self._delta(self._named_reasoning(text), choice)
        if self._both_names:
            return choice.reasoning_head + text + b',"reasoning_content":' + text + self._tail
        return choice.reasoning_head + text + self._tail

    def _named_reasoning(self, text: bytes) -> bytes:
        named = b'"reasoning":' + text
        return named + b',"reasoning_content":' + text if self._both_names else named

    def _call_start(self, event: ToolCallStart, choice: _ChatChoice) -> bytes:
        if event.tool_call_name in self._hidden:
            return b""
        index, id, name = len(choice.calls), json_string(event.tool_call_id), json_string(event.tool_call_name)
        entry = b'"tool_calls":[{"index":%d,' % index
        if self._flags.functions:  # the deprecated form: a single call without an id
            index, arguments_head = 0, b'"function_call":{"arguments":'
            delta = b'"function_call":{"name":%b,"arguments":""}' % name
        elif event.tool_call_name in self._flags.custom:  # it has text instead of arguments
            choice.inputs[event.tool_call_id] = InputText()
            arguments_head = entry + b'"custom":{"input":'
            delta = entry + b'"id":%b,"type":"custom","custom":{"name":%b,"input":""}}]' % (id, name)
        else:
            arguments_head = entry + b'"function":{"arguments":'
            delta = entry + b'"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]' % (id, name)
        choice.calls[event.tool_call_id] = (choice.head + arguments_head, index)
        if event.metadata is not None and self._details:
            return self._with_details(delta, event.metadata, choice, "tool_calls")
        return self._delta(delta, choice)

    def _call_end(self, event: ToolCallEnd, choice: _ChatChoice) -> bytes:
        reader = choice.inputs.pop(event.tool_call_id, None)
        remaining = reader.finish() if reader is not None else ""
        head, _ = choice.calls.get(event.tool_call_id, (b"", -1))
        return head + json_string(remaining) + b"}}]" + self._tail_of(choice) if remaining else b""

    def _arguments(self, event: ToolCallArgs, choice: _ChatChoice) -> bytes:
        head, index = choice.calls.get(event.tool_call_id, (b"", -1))
        if index < 0:
            return b""
        piece, key = event.delta, b'"function":{"arguments"'
        if (reader := choice.inputs.get(event.tool_call_id)) is not None:
            piece, key = reader.feed(piece), b'"custom":{"input"'
        text = json_string(piece)
        if event.metadata is not None and self._details:
            delta = b'"tool_calls":[{"index":%d,%b:%b}}]' % (index, key, text)
            if self._flags.functions:
                delta = b'"function_call":{"arguments":%b}' % text
            return self._with_details(delta, event.metadata, choice, "tool_calls")
        closing = b"}" if self._flags.functions else b"}}]"
        return head + text + closing + self._tail_of(choice) if piece else b""

    def _tail_of(self, choice: _ChatChoice) -> bytes:
        """Return the end of a frame without token details."""
        if not self._flags.continuous_usage:
            return self._tail
        return b'},"logprobs":null,"finish_reason":null}]' + self._close_of(choice)

    def _close_of(self, choice: _ChatChoice) -> bytes:
        """Return what follows a frame's choices: no usage, or this answer's usage so far."""
        if not self._flags.continuous_usage:
            return self._close
        return usage_so_far(self._prompts[choice.index](), choice.tokens)

    def _delta(self, delta: bytes, choice: _ChatChoice, tail: bytes | None = None) -> bytes:
        """Encode a frame with `delta`. A choice's first frame has the role, and the prompt's ids if requested."""
        end = self._tail_of(choice) if tail is None else tail
        if not choice.first:
            return choice.head + delta + end
        choice.first = False
        note = self._prompts[choice.index]() if self._flags.token_ids else None
        prompt_ids = (
            b'"prompt_token_ids":%b,' % json_bytes(note.ids) if note is not None and note.ids is not None else b""
        )
        return self._head + prompt_ids + choice.head[self._skip :] + b'"role":"assistant",' + delta + end

    def _with_details(self, delta: bytes, metadata: dict[str, object], choice: _ChatChoice, kind: str) -> bytes:
        tokens = tokens_of(metadata)
        choice.tokens += len(tokens)
        logprobs = b"null"
        if self._flags.logprobs is not None:
            visible = visible_tokens(metadata)
            logprobs = json_bytes(logprobs_object({kind: visible}, self._flags.logprobs, self._flags.as_ids))
        ids = b',"token_ids":' + json_bytes([token[0] for token in tokens]) if self._flags.token_ids else b""
        tail = b'},"logprobs":' + logprobs + b',"finish_reason":null' + ids + b"}]" + self._close_of(choice)
        return self._delta(delta, choice, tail)

    def _finish_chunk(self, event: RunFinished, choice: _ChatChoice) -> bytes:
        reason = wire_finish(finish_reason(event), self._flags.named_tool, self._flags.functions)
        if reason == "error":
            return self._failure(None, choice)
        choice.ended = True
        choice.usage = event.usage or ()
        metadata = finished_metadata(event)
        tokens = metadata.tokens or ()
        last: dict[str, object] = {"finish_reason": reason}
        if metadata.stop is not None:
            last["stop_reason"] = metadata.stop
        if self._flags.token_ids:
            last["token_ids"] = [token[0] for token in tokens]
        extensions = extensions_of(metadata.warnings, ())
        extra = b',"extensions":' + json_bytes(extensions) if extensions else b""
        if self._flags.timings:
            extra += b',"timings":' + json_bytes(timings_object(metadata.timings, choice.usage))
        choice.tokens += len(tokens)
        close = b"}]" + extra + self._close_of(choice)
        text = stop_text(metadata.stop, self._flags.include_stop)
        opening = b'"content":' + json_string(text) if choice.first or text else b""
        return self._delta(opening, choice, b'},"logprobs":null,' + json_bytes(last)[1:-1] + close)

    def _progress(self, event: Custom, choice: _ChatChoice) -> bytes:
        """Encode the prompt's progress: a frame before the answer's first one, without the role."""
        if event.name != PROGRESS_EVENT or not self._flags.progress:
            return b""
        extra = b',"prompt_progress":' + json_bytes(progress_object(event.value))
        return choice.head + b'},"logprobs":null,"finish_reason":null}]' + extra + self._close_of(choice)

    def _failure(self, event: RunError | None, choice: _ChatChoice) -> bytes:
        """Encode a failure as a frame that clients can read as a chunk that finished with "error" or as an object with
        an `error`. event: None for a cancelled run."""
        error = json_bytes(error_object(event))
        return choice.head + b'},"finish_reason":"error"}],"error":' + error + b"}\n\n"


_HANDLERS: dict[type, Callable[[ChatStream, Any, _ChatChoice], bytes]] = {
    TextMessageContent: ChatStream._text,
    ReasoningMessageContent: ChatStream._reasoning,
    ToolCallStart: ChatStream._call_start,
    ToolCallArgs: ChatStream._arguments,
    ToolCallEnd: ChatStream._call_end,
    Custom: ChatStream._progress,
    RunFinished: ChatStream._finish_chunk,
    RunError: ChatStream._failure,
}


def logprobs_object(kinds: Mapping[str, Sequence[Scored]], top: int, as_ids: bool = False) -> dict[str, object]:
    """Return the `logprobs` of a choice: OpenAI's `content` and `refusal`, and the tokens of reasoning and calls under
    names of our own, since OpenAI has no fields for them."""
    by_kind = {kind: chat_logprobs(tokens, top, as_ids) for kind, tokens in kinds.items() if tokens}
    return {"content": by_kind.pop("content", None), "refusal": None, **by_kind}


def extensions_of(warnings: Sequence[str] | None, interrupts: Sequence[object]) -> dict[str, object]:
    extensions: dict[str, object] = {"warnings": list(warnings)} if warnings else {}
    if interrupts:
        extensions["interrupts"] = list(interrupts)
    return extensions


def chat_body(runs: Sequence[Sequence[Event]], identity: ChatIdentity, flags: ChatFlags = NO_FLAGS) -> bytes:
    """Encode the finished runs of all `n` choices as one `chat.completion`.

    Raises RequestError, with the run's error kind, for a run that ended with RUN_ERROR.
    """
    answers = [fold(events, hidden_tools=identity.hidden_tools) for events in runs]
    for answer in answers:
        raise_failure(answer, "chat", ANSWER_FAILURES)
    broken = next((answer for answer in answers if answer.finish in ("error", "cancelled")), None)
    warnings = list(dict.fromkeys(warning for answer in answers for warning in answer.warnings))
    interrupts = [interrupt for answer in answers for interrupt in answer.interrupts]
    body: dict[str, Any] = {
        "id": identity.id,
        "object": "chat.completion",
        "created": identity.created,
        "model": identity.model,
        "choices": [_choice(answer, index, identity, flags) for index, answer in enumerate(answers)],
        "usage": combined_usage([answer.usage for answer in answers]),
        "extensions": {  # the chunks of all choices in order
            "reasoning_chunks": [chunk for answer in answers for chunk in answer.pieces.reasoning if flags.reasoning],
            "tool_call_chunks": [chunk for answer in answers for chunk in answer.pieces.calls],
            **extensions_of(warnings, interrupts),
        },
    }
    if broken is not None:
        body["error"] = error_object(broken.error)
    if flags.timings and answers:
        body["timings"] = timings_object(answers[0].metadata.timings, answers[0].usage)
    if flags.prompt_logprobs is not None and answers:
        body["prompt_logprobs"] = prompt_logprobs(answers[0].metadata.prompt_logprobs or (), flags.prompt_logprobs)
    if flags.token_ids and answers and (ids := answers[0].metadata.prompt_token_ids) is not None:
        body["prompt_token_ids"] = ids
    return json_bytes(body)


def _choice(answer: Answer, index: int, identity: ChatIdentity, flags: ChatFlags) -> dict[str, object]:
    text = answer.text + stop_text(answer.stop, flags.include_stop)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if answer.calls else ""),
        "refusal": None,
    }
    if answer.reasoning and flags.reasoning:
        message["reasoning"] = answer.reasoning
        if identity.reasoning_content:
            message["reasoning_content"] = answer.reasoning
    if answer.calls and flags.functions:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
            if call.name in flags.custom
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    logprobs = None
    if flags.logprobs is not None:
        kinds = {
            "content": answer.pieces.text_tokens,
            "reasoning": answer.pieces.reasoning_tokens if flags.reasoning else [],
            "tool_calls": answer.pieces.call_tokens,
        }
        logprobs = logprobs_object(kinds, flags.logprobs, flags.as_ids)
    choice: dict[str, object] = {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": wire_finish(answer.finish, flags.named_tool, flags.functions),
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if flags.token_ids:
        choice["token_ids"] = [token[0] for token in answer.pieces.tokens]
    return choice
