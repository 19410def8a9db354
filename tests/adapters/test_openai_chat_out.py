"""Whole frame sequences of Chat Completions, and the body that says the same."""

from __future__ import annotations

import json

import pytest
from inline_snapshot import snapshot
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from adapters.errors import RequestError
from adapters.openai_chat import ChatFlags, ChatIdentity, ChatStream, chat_body
from events.vocabulary import Event, RunError, TextMessageContent
from tests.adapters import recorded

IDENTITY = ChatIdentity(id="chatcmpl-1", model="m", created=7)
PLAIN_FLAGS = ChatFlags()


def frames(events: list[Event], flags: ChatFlags = PLAIN_FLAGS, identity: ChatIdentity = IDENTITY) -> list[str]:
    stream = ChatStream(identity, flags)
    data = b"".join(stream.encode(event, sequence=i) for i, event in enumerate(events, 1)) + stream.finish()
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    return [part.removeprefix("data: ") for part in parts]


def deltas(events: list[Event], flags: ChatFlags = PLAIN_FLAGS) -> list[object]:
    found = []
    for frame in frames(events, flags):
        if frame == "[DONE]":
            found.append(frame)
            continue
        chunk = json.loads(frame)
        if "error" not in chunk:
            ChatCompletionChunk.model_validate(chunk, strict=True)
        assert (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) == (
            "chatcmpl-1",
            "chat.completion.chunk",
            7,
            "m",
        )
        found.append({key: value for key, value in chunk.items() if key not in ("id", "object", "created", "model")})
    return found


def test_plain_text() -> None:
    assert frames(recorded.PLAIN) == snapshot(
        [
            '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"},"logprobs":null,"finish_reason":null}]}',
            '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"lo é\\n"},"logprobs":null,"finish_reason":null}]}',
            '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}',
            "[DONE]",
        ]
    )


def test_reasoning_text_and_calls() -> None:
    assert deltas(recorded.FULL, ChatFlags(include_usage=True)) == snapshot(
        [
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"role": "assistant", "reasoning": "I ", "reasoning_content": "I "},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"reasoning": "think", "reasoning_content": "think"},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [{"index": 0, "delta": {"content": "Let me "}, "logprobs": None, "finish_reason": None}],
                "usage": None,
            },
            {
                "choices": [{"index": 0, "delta": {"content": "look."}, "logprobs": None, "finish_reason": None}],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {
                            "tool_calls": [
                                {
                                    "index": 0,
                                    "id": "call_1",
                                    "type": "function",
                                    "function": {"name": "get_weather", "arguments": ""},
                                }
                            ]
                        },
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"tool_calls": [{"index": 0, "function": {"arguments": ' "Oslo"}'}}]},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {
                            "tool_calls": [
                                {
                                    "index": 1,
                                    "id": "call_2",
                                    "type": "function",
                                    "function": {"name": "now", "arguments": ""},
                                }
                            ]
                        },
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"tool_calls": [{"index": 1, "function": {"arguments": "{}"}}]},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}], "usage": None},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 9,
                    "total_tokens": 29,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
            },
            "[DONE]",
        ]
    )


def test_length_stays_length() -> None:
    assert deltas(recorded.CUT) == snapshot(
        [
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"role": "assistant", "content": "Once upon"},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ]
            },
            {"choices": [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}]},
            "[DONE]",
        ]
    )


def test_an_error_ends_the_stream_in_both_forms() -> None:
    assert deltas(recorded.BROKEN, ChatFlags(include_usage=True)) == snapshot(
        [
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"role": "assistant", "content": "Once"},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                "usage": None,
            },
            {
                "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
                "error": {
                    "message": "The engine was lost.",
                    "type": "server_error",
                    "param": None,
                    "code": "connection",
                },
            },
            "[DONE]",
        ]
    )


def test_a_broken_tool_call_in_strict_mode() -> None:
    events = recorded.started() + recorded.failed("tool_call_parse_error", "Tool call parsing failed: Invalid JSON")
    assert deltas(events) == snapshot(
        [
            {
                "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
                "error": {
                    "message": "Tool call parsing failed: Invalid JSON",
                    "type": "tool_call_parse_error",
                    "param": None,
                    "code": "tool_call_parse_error",
                },
            },
            "[DONE]",
        ]
    )


def test_a_cancelled_run_is_no_success() -> None:
    assert deltas(recorded.CANCELLED)[-2:] == snapshot(
        [
            {
                "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}],
                "error": {
                    "message": "The run was cancelled.",
                    "type": "server_error",
                    "param": None,
                    "code": "cancelled",
                },
            },
            "[DONE]",
        ]
    )


def test_an_empty_answer_has_a_role() -> None:
    assert deltas(recorded.EMPTY) == snapshot(
        [
            {
                "choices": [
                    {
                        "index": 0,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": "stop",
                    }
                ]
            },
            "[DONE]",
        ]
    )


def test_log_probabilities_and_token_ids() -> None:
    tokens = [[5, "He", -0.5, [[5, "He", -0.5], [6, "\u00e9", -1.5]]], [7, "y", -0.25, []]]
    events = recorded.started() + recorded.text() + recorded.finished()
    events.insert(2, TextMessageContent(message_id="m1", delta="Hey", metadata={"tokens": tokens}))
    flags = ChatFlags(logprobs=1, token_ids=True)
    assert deltas(events, flags)[0] == snapshot(
        {
            "choices": [
                {
                    "index": 0,
                    "delta": {"role": "assistant", "content": "Hey"},
                    "logprobs": {
                        "content": [
                            {
                                "token": "He",
                                "logprob": -0.5,
                                "bytes": [72, 101],
                                "top_logprobs": [{"token": "He", "logprob": -0.5, "bytes": [72, 101]}],
                            },
                            {"token": "y", "logprob": -0.25, "bytes": [121], "top_logprobs": []},
                        ],
                        "refusal": None,
                    },
                    "finish_reason": None,
                    "token_ids": [5, 7],
                }
            ]
        }
    )
    body = json.loads(chat_body([events], IDENTITY, flags))
    assert body["choices"][0] == snapshot(
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hey", "refusal": None},
            "logprobs": {
                "content": [
                    {
                        "token": "He",
                        "logprob": -0.5,
                        "bytes": [72, 101],
                        "top_logprobs": [{"token": "He", "logprob": -0.5, "bytes": [72, 101]}],
                    },
                    {"token": "y", "logprob": -0.25, "bytes": [121], "top_logprobs": []},
                ],
                "refusal": None,
            },
            "finish_reason": "stop",
            "token_ids": [5, 7],
        }
    )


def test_named_tool_choice_finishes_with_stop() -> None:
    chunk = json.loads(frames(recorded.FULL, ChatFlags(named_tool=True))[-2])
    assert chunk["choices"][0]["finish_reason"] == "stop"


def test_reasoning_under_one_name_or_none() -> None:
    one = ChatIdentity(id="chatcmpl-1", model="m", created=7, reasoning_content=False)
    assert "reasoning_content" not in "".join(frames(recorded.FULL, identity=one))
    assert '"reasoning":"think"' in "".join(frames(recorded.FULL, identity=one))
    hidden = ChatFlags(reasoning=False)
    assert "think" not in "".join(frames(recorded.FULL, hidden))
    assert "think" not in chat_body([recorded.FULL], IDENTITY, hidden).decode()


def test_the_servers_own_calls_are_not_the_clients() -> None:
    own = ChatIdentity(id="chatcmpl-1", model="m", created=7, hidden_tools=("now",))
    events = recorded.FULL[:-1] + recorded.finished("tool_calls")
    assert "call_2" not in "".join(frames(events, identity=own))
    calls = json.loads(chat_body([events], own))["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_1"]


def test_body() -> None:
    body = json.loads(chat_body([recorded.FULL], IDENTITY))
    ChatCompletion.model_validate(body, strict=True)
    assert body == snapshot(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 7,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "Let me look.",
                        "refusal": None,
                        "reasoning": "I think",
                        "reasoning_content": "I think",
                        "tool_calls": [
                            {
                                "id": "call_1",
                                "type": "function",
                                "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
                            },
                            {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
                        ],
                    },
                    "logprobs": None,
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": {
                "prompt_tokens": 20,
                "completion_tokens": 9,
                "total_tokens": 29,
                "prompt_tokens_details": {"cached_tokens": 16},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
            "extensions": {
                "reasoning_chunks": ["I ", "think"],
                "tool_call_chunks": [
                    {"type": "start", "tool_call_id": "call_1", "tool_name": "get_weather"},
                    {"type": "args", "tool_call_id": "call_1", "delta": '{"city":'},
                    {"type": "args", "tool_call_id": "call_1", "delta": ' "Oslo"}'},
                    {"type": "end", "tool_call_id": "call_1"},
                    {"type": "start", "tool_call_id": "call_2", "tool_name": "now"},
                    {"type": "args", "tool_call_id": "call_2", "delta": "{}"},
                    {"type": "end", "tool_call_id": "call_2"},
                ],
            },
        }
    )


def test_several_choices() -> None:
    stream = ChatStream(IDENTITY, ChatFlags(include_usage=True), n=2)
    data = b"".join(
        stream.encode(event, choice=choice)
        for pair in zip(recorded.PLAIN, recorded.CUT, strict=False)
        for choice, event in enumerate(pair)
    )
    data += stream.encode(recorded.PLAIN[-1]) + stream.finish()
    chunks = [json.loads(part[6:]) for part in data.decode().split("\n\n") if part not in ("", "data: [DONE]")]
    said = {0: "", 1: ""}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        said[choice["index"]] += choice["delta"].get("content") or ""
    assert said == {0: "Hello \u00e9\n", 1: "Once upon"}
    assert chunks[-1]["usage"]["prompt_tokens"] == 20
    assert chunks[-1]["usage"]["completion_tokens"] == 18
    body = json.loads(chat_body([recorded.PLAIN, recorded.CUT], IDENTITY))
    assert [choice["message"]["content"] for choice in body["choices"]] == ["Hello \u00e9\n", "Once upon"]
    assert body["usage"] == chunks[-1]["usage"]


def test_a_failed_run_is_an_http_error_with_its_kind() -> None:
    with pytest.raises(RequestError) as caught:
        chat_body([recorded.BROKEN], IDENTITY)
    assert caught.value.kind == "connection"
    with pytest.raises(RequestError) as caught:
        chat_body([[*recorded.started(), RunError(message="odd", code="never heard of")]], IDENTITY)
    assert caught.value.kind == "internal"


def test_a_lone_surrogate_does_not_break_the_stream() -> None:
    events = recorded.started() + recorded.text("a\ud800b") + recorded.finished()
    assert "a\ufffdb" in json.loads(frames(events)[0])["choices"][0]["delta"]["content"]
    assert json.loads(chat_body([events], IDENTITY))["choices"][0]["message"]["content"] == "a\ufffdb"
