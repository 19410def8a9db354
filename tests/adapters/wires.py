"""Each wire's stream read back by a small client of that wire, and its body, as one plain answer.

What a client of any wire must come away with is the same: text, reasoning, calls, how it ended and the usage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from adapters import sse
from adapters.anthropic_messages import MessageIdentity, MessageStream, message_body
from adapters.generate import GenerateFlags, GenerateStream, Identity, generate_body
from adapters.openai_chat import ChatFlags, ChatIdentity, ChatStream, chat_body
from adapters.openai_responses import ResponseIdentity, ResponseStream, response_object
from adapters.ui_messages import UiMessageStream
from events.vocabulary import Event


class Heard(NamedTuple):
    """calls: (id, name, arguments). end: in OpenAI's words. usage: (prompt, completion, cached) tokens."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str, str], ...]
    end: str
    usage: tuple[int, int, int] | None


def framed(encoder: Any, events: Sequence[Event]) -> list[dict[str, Any]]:
    data = b"".join(encoder.encode(event, sequence=number) for number, event in enumerate(events, 1)) + encoder.finish()
    frames = [frame["data"] for frame in sse.parse([data])]
    return [json.loads(frame) for frame in frames if frame != "[DONE]"]


# ---- Chat Completions -----------------------------------------------------------------------------------------------

CHAT = ChatIdentity(id="chatcmpl-1", model="m", created=7)


def chat_streamed(events: Sequence[Event]) -> Heard:
    text = reasoning = ""
    calls: dict[int, list[str]] = {}
    end, usage = "", None
    for chunk in framed(ChatStream(CHAT, ChatFlags(include_usage=True)), events):
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            delta = choice["delta"]
            text += delta.get("content") or ""
            reasoning += delta.get("reasoning") or ""
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls[call["index"]] = [call["id"], call["function"]["name"], ""]
                calls[call["index"]][2] += call["function"]["arguments"]
            end = choice["finish_reason"] or end
    made = tuple((call[0], call[1], call[2]) for _, call in sorted(calls.items()))
    return Heard(text, reasoning, made, end, _openai_usage(usage))


def chat_whole(events: Sequence[Event]) -> Heard:
    body = json.loads(chat_body([events], CHAT))
    (choice,) = body["choices"]
    message = choice["message"]
    calls = tuple(
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    )
    assert "".join(body["extensions"]["reasoning_chunks"]) == message.get("reasoning", "")
    usage = _openai_usage(body["usage"]) if choice["finish_reason"] != "error" else None
    return Heard(message["content"] or "", message.get("reasoning", ""), calls, choice["finish_reason"], usage)


def _openai_usage(usage: dict[str, Any] | None) -> tuple[int, int, int] | None:
    if usage is None:
        return None
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


# ---- Responses ------------------------------------------------------------------------------------------------------

RESPONSE = ResponseIdentity(id="resp_1", model="m", created=7)
_STATUS = {"completed": "stop", "incomplete": "length", "failed": "error", "cancelled": "error"}


def responses_streamed(events: Sequence[Event]) -> Heard:
    text = reasoning = ""
    calls: dict[str, list[str]] = {}
    last: dict[str, Any] = {}
    for number, event in enumerate(framed(ResponseStream(RESPONSE), events)):
        assert event["sequence_number"] == number
        last = event.get("response", last)
        match event["type"]:
            case "response.output_text.delta":
                text += event["delta"]
            case "response.reasoning_text.delta":
                reasoning += event["delta"]
            case "response.function_call_arguments.delta":
                calls[event["item_id"]][2] += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                calls[event["item"]["id"]] = [event["item"]["call_id"], event["item"]["name"], ""]
    made = tuple((call[0], call[1], call[2]) for call in calls.values())
    return Heard(text, reasoning, made, _response_end(last), _response_usage(last))


def responses_whole(events: Sequence[Event]) -> Heard:
    response = response_object(events, RESPONSE)
    items = response["output"]
    parts = [(item["type"], part["text"]) for item in items for part in item.get("content") or ()]
    calls = tuple(
        (item["call_id"], item["name"], item["arguments"]) for item in items if item["type"] == "function_call"
    )
    said = {kind: "".join(text for of, text in parts if of == kind) for kind in ("message", "reasoning")}
    return Heard(said["message"], said["reasoning"], calls, _response_end(response), _response_usage(response))


def _response_end(response: dict[str, Any]) -> str:
    """Responses has no finish reason for calls: it is completed with function calls at its end."""
    end = _STATUS[response["status"]]
    called = any(item["type"] == "function_call" for item in response["output"])
    return "tool_calls" if end == "stop" and called else end


def _response_usage(response: dict[str, Any]) -> tuple[int, int, int] | None:
    usage = response["usage"]
    if usage is None or response["status"] in ("failed", "cancelled"):
        return None
    return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]


# ---- Anthropic ------------------------------------------------------------------------------------------------------

MESSAGE = MessageIdentity(id="msg_1", model="m")
_REASONS = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "refusal": "content_filter",
    None: "error",
}


def anthropic_streamed(events: Sequence[Event]) -> Heard:
    blocks: list[dict[str, Any]] = []
    reason, usage = None, None
    for frame in framed(MessageStream(MESSAGE), events):
        match frame["type"]:
            case "content_block_start":
                assert frame["index"] == len(blocks)
                blocks.append({**frame["content_block"], "partial_json": ""})
            case "content_block_delta":
                for key, value in frame["delta"].items():
                    if key != "type":
                        blocks[frame["index"]][key] += value
            case "message_delta":
                reason, usage = frame["delta"]["stop_reason"], frame["usage"]
    return _anthropic(blocks, reason, usage, lambda block: block["partial_json"])


def anthropic_whole(events: Sequence[Event]) -> Heard:
    message = json.loads(message_body(events, MESSAGE))
    usage = message["usage"] if message["stop_reason"] else None
    return _anthropic(message["content"], message["stop_reason"], usage, lambda block: json.dumps(block["input"]))


def _anthropic(blocks: list[Any], reason: str | None, usage: Any, arguments: Callable[[Any], str]) -> Heard:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    reasoning = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    calls = tuple((block["id"], block["name"], arguments(block)) for block in blocks if block["type"] == "tool_use")
    counted = None
    if usage is not None:
        cached = usage["cache_read_input_tokens"]
        counted = (usage["input_tokens"] + cached, usage["output_tokens"], cached)
    return Heard(text, reasoning, calls, _REASONS[reason], counted)


# ---- the generation protocol ----------------------------------------------------------------------------------------

GENERATE = Identity(request_id="gen_1", model="m")


def generate_streamed(events: Sequence[Event]) -> Heard:
    messages = framed(GenerateStream(GENERATE, GenerateFlags(), lambda: 0.0), events)
    text = reasoning = ""
    calls: dict[str, list[str]] = {}
    for message in messages:
        if message["type"] != "token":
            continue
        channel = message.get("channel")
        if channel is None:
            text += message["token"]
            assert message["generated_text"] == text
        elif channel == "reasoning":
            reasoning += message["token"]
        else:
            made = message["tool_call"]
            calls.setdefault(made["id"], [made["id"], made["name"], ""])[2] += message["token"]
    last = messages[-1]
    heard = _generated(last)
    assert (heard.text, heard.reasoning) == (text, reasoning)
    assert {call[0]: call[2] for call in heard.calls if call[2]} == {key: call[2] for key, call in calls.items()}
    return heard


def generate_whole(events: Sequence[Event]) -> Heard:
    return _generated(json.loads(generate_body(events, GENERATE, GenerateFlags())))


def _generated(message: dict[str, Any]) -> Heard:
    calls = tuple((call["id"], call["name"], call["arguments"]) for call in message.get("tool_calls", ()))
    end = message.get("finish_reason", "error")
    end = "error" if end == "cancelled" else end
    usage = _openai_usage(message["usage"]) if end != "error" else None
    return Heard(message["generated_text"], message.get("reasoning", ""), calls, end, usage)


# ---- the AI SDK's UI messages ---------------------------------------------------------------------------------------


def ui_messages_streamed(events: Sequence[Event]) -> Heard:
    """As the client reads it: a delta belongs to a part that is open, and parts do not outlive their step."""
    text = reasoning = ""
    calls: dict[str, list[str]] = {}
    open_parts: set[tuple[str, str]] = set()
    end, usage = "", None
    for chunk in framed(UiMessageStream("ui-1"), events):
        kind, _, _ = chunk["type"].rpartition("-")
        match chunk["type"]:
            case "text-start" | "reasoning-start":
                open_parts.add((kind, chunk["id"]))
            case "text-end" | "reasoning-end":
                open_parts.remove((kind, chunk["id"]))
            case "text-delta" | "reasoning-delta":
                assert (kind, chunk["id"]) in open_parts
                text += chunk["delta"] if kind == "text" else ""
                reasoning += chunk["delta"] if kind == "reasoning" else ""
            case "tool-input-start":
                calls[chunk["toolCallId"]] = [chunk["toolCallId"], chunk["toolName"], ""]
            case "tool-input-delta":
                calls[chunk["toolCallId"]][2] += chunk["inputTextDelta"]
            case "tool-input-available":
                assert chunk["input"] == json.loads(calls[chunk["toolCallId"]][2] or "{}")
            case "tool-input-error":
                assert chunk["input"] == calls[chunk["toolCallId"]][2]
            case "finish-step":
                open_parts.clear()
            case "finish":
                end = chunk["finishReason"].replace("-", "_")
                (usage,) = chunk["messageMetadata"]["usage"]
            case "abort" | "error":
                end = "error"
    made = tuple((call[0], call[1], call[2]) for call in calls.values())
    counted = usage and (usage["inputTokens"], usage["outputTokens"], usage["cachedInputTokens"])
    return Heard(text, reasoning, made, end, counted)


STREAMED: dict[str, Callable[[Sequence[Event]], Heard]] = {
    "chat": chat_streamed,
    "responses": responses_streamed,
    "anthropic": anthropic_streamed,
    "generate": generate_streamed,
    "ui messages": ui_messages_streamed,
}
"""Every wire; the AI SDK has no answer that is sent whole."""
WHOLE: dict[str, Callable[[Sequence[Event]], Heard]] = {
    "chat": chat_whole,
    "responses": responses_whole,
    "anthropic": anthropic_whole,
    "generate": generate_whole,
}
