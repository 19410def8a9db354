"""Chat Completions requests: what is read, what is repaired, what is refused and by which name."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from adapters.body import Inbound, Limits, Notes, noting
from adapters.client_history import close_object, object_text
from adapters.errors import RequestError
from adapters.openai_chat import parse

USER = {"role": "user", "content": "Hi"}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


def read(
    messages: Any = (USER,), *, media: tuple[str, ...] = (), limits: Limits | None = None, **fields: Any
) -> Inbound:
    counter = itertools.count(1)
    body = json.dumps({"messages": list(messages), **fields}).encode()
    return parse(body, new_id=lambda prefix: f"{prefix}_{next(counter)}", media=media, limits=limits or Limits())


def refusal(messages: Any = (USER,), **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(messages, **fields)
    assert len(caught.value.message) < 500
    return caught.value


def plain(inbound: Inbound) -> list[dict[str, Any]]:
    return [message.model_dump(exclude={"id"}) for message in inbound.input.messages]


def assistant(*calls: tuple[str, str], **more: Any) -> dict[str, Any]:
    entries = [{"id": id, "type": "function", "function": {"name": name, "arguments": "{}"}} for id, name in calls]
    return {"role": "assistant", "content": None, "tool_calls": entries, **more}


def result(call: str, content: Any = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def test_options_are_read() -> None:
    inbound = read(
        model="m", temperature=0.5, top_p=0.9, top_k=5, min_p=0.1, seed=3, stop="END", max_tokens=5,
        max_completion_tokens=7, n=2, logprobs=True, top_logprobs=3, logit_bias={"5": -100}, user="u",
        presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1, metadata={"k": "v"}, stream=True,
        stream_options={"include_usage": True}, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
        reasoning_effort="low", return_token_ids=True,
    )  # fmt: skip
    sampling = inbound.options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.seed, sampling.stop, sampling.max_tokens) == (3, ("END",), 7)
    assert (sampling.logprobs, sampling.logit_bias) == (3, {5: -100})
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.1)
    options = inbound.options
    assert (options.model, options.n, options.user, options.metadata) == ("m", 2, "u", {"k": "v"})
    assert (options.tool_choice.mode, options.parallel_tool_calls, options.reasoning_effort) == (
        "required",
        False,
        "low",
    )
    assert options.token_details
    assert not options.store
    assert inbound.stream
    assert (inbound.extra.include_usage, inbound.extra.logprobs, inbound.extra.token_ids) == (True, 3, True)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": []}, "functions"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"logprobs": 5}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": [WEATHER]}, "tool_choice"),
        ({"tools": [{"type": "custom", "function": {"name": "x"}}]}, "tools.0.type"),
        ({"tools": [WEATHER, WEATHER]}, "tools.1.function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools.0.function.parameters"),
        ({"tools": {}}, "tools"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template": "x"}, "chat_template"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"thinking": "yes"}, "thinking"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"echo": True}, "echo"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = refusal(**fields)
    assert (error.kind, error.param) == ("invalid_request", param)
    assert error.param in error.message or "." in error.param


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"session_id": "s"}, "session_id"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "weird": 1}}]}, "tools.0.custom.weird"),
        ({"tools": [{"type": "function", "function": {"name": "a", "weird": 1}}]}, "tools.0.function.weird"),
        ({"tools": [{**WEATHER, "cache_control": {"type": "ephemeral"}}]}, "tools.0.cache_control"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"reasoning": {"budget": 1}}, "reasoning.budget"),
    ],
)
def test_unknown_fields_are_left_out_with_a_note(fields: dict[str, Any], name: str) -> None:
    with noting(Notes()) as notes:
        read(**fields)
    assert notes.warnings == [f"{name} is not a field of this request and was ignored."]
    with noting(Notes(strict=True)), pytest.raises(RequestError) as caught:
        read(**fields)
    assert caught.value.param == name


def test_null_and_neutral_values_pass() -> None:
    neutral = {"modalities": ["text"], "service_tier": "auto", "verbosity": "medium"}
    absent = {"audio": None, "functions": None, "tools": None, "stop": None}
    assert read(**neutral, **absent).options == read().options


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"enable_thinking": True}, True),
        ({"thinking": False}, False),
        ({"thinking": {"type": "enabled"}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_thinking_by_all_its_names(fields: dict[str, Any], thinking: bool | None) -> None:
    assert read(**fields).options.thinking is thinking


def test_reasoning_can_be_left_out() -> None:
    assert not read(include_reasoning=False).extra.reasoning
    assert not read(reasoning={"exclude": True}).extra.reasoning


def test_a_whole_conversation() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "developer", "content": "d"},
        {"role": "User", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
        assistant(("c1", "get_weather"), reasoning_content="hm", annotations=[], audio=None, refusal=None),
        result("c1", [{"type": "text", "text": "sunny"}]),
        {"role": "assistant", "content": None},
        {"role": "user", "content": None},
    ]
    assert plain(read(messages)) == [
        {"role": "system", "content": "a\nb"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "hi", "name": "ann"},
        {"role": "reasoning", "content": "hm"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]


def test_results_follow_their_calls_in_the_order_of_the_calls() -> None:
    messages = [
        USER,
        assistant(("a", "x"), ("b", "y")),
        result("b", "2"),
        {"role": "user", "content": "wait"},
        result("a", "1"),
    ]
    got = [(message["role"], message.get("content")) for message in plain(read(messages))]
    assert got == [("user", "Hi"), ("assistant", None), ("tool", "1"), ("tool", "2"), ("user", "wait")]


def test_a_result_before_its_call_is_moved_behind_it() -> None:
    got = [message["role"] for message in plain(read([USER, result("a"), assistant(("a", "x"))]))]
    assert got == ["user", "assistant", "tool"]


def test_ids_used_twice_become_unique() -> None:
    turn = [assistant(("c", "x")), result("c", "first")]
    again = [assistant(("c", "x")), result("c", "second")]
    messages = plain(read([USER, *turn, USER, *again]))
    first, second = (message["tool_calls"][0]["id"] for message in messages if message["role"] == "assistant")
    assert first == "c" != second
    results = {message["content"]: message["tool_call_id"] for message in messages if message["role"] == "tool"}
    assert results == {"first": first, "second": second}


def test_missing_ids_are_given() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": {"a": 1}}}]}
    messages = plain(read([USER, call, {"role": "tool", "content": "ok"}]))
    made = messages[1]["tool_calls"][0]
    assert made["function"]["arguments"] == '{"a":1}'
    assert messages[2]["tool_call_id"] == made["id"] != ""


def test_the_deprecated_function_role() -> None:
    call = {"role": "assistant", "content": None, "function_call": {"name": "x", "arguments": "{}"}}
    messages = plain(read([USER, call, {"role": "function", "name": "x", "content": "ok"}]))
    assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ('{"a": 1', '{"a": 1}'),
        ('{"a": "bc', '{"a": "bc"}'),
        ('{"a": [1, {"b": 2', '{"a": [1, {"b": 2}]}'),
        ('{"a": 1, "b": ', '{"a": 1}'),
        ('{"a": 1, "b": tr', '{"a": 1}'),
        ('{"a": "x\\', "{}"),
        ("{", "{}"),
        ("{'a': 1}", None),
        ('{"a": 1}}', None),
        ("[1, 2", None),
        ("hello", None),
        ("", None),
    ],
)
def test_cut_off_arguments_are_closed(text: str, closed: str | None) -> None:
    assert close_object(text) == closed


@pytest.mark.parametrize("arguments", ["[]", " [] ", "null", "", [], None])
def test_arguments_that_are_empty_are_an_object(arguments: Any) -> None:
    """PHP encodes an empty object as a list."""
    assert object_text(arguments, "arguments") == "{}"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"content": "x"}], "messages.0.role"),
        ([USER, {"role": "wizard", "content": "x"}], "messages.1.role"),
        ([USER, {"role": 5}], "messages.1.role"),
        ([USER, result("nope")], "messages.1.tool_call_id"),
        ([USER, assistant(("a", "x"), ("b", "y")), {"role": "tool", "content": "?"}], "messages.2.tool_call_id"),
        ([USER, {"role": "function", "name": "x", "content": "ok"}], "messages.1"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages.0.content.0.type"),
        ([{"role": "assistant", "audio": {"id": "x"}}], "messages.0.audio"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": "no json"}}]}],
         "messages.0.tool_calls.0.function.arguments"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}],
         "messages.0.tool_calls.0.function.name"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages.0.tool_calls"),
    ],
)  # fmt: skip
def test_a_bad_message_is_named(messages: Any, param: str) -> None:
    error = refusal(messages)
    assert (error.kind, error.param) == ("invalid_request", param)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}


def test_images_depend_on_the_model() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, IMAGE]}
    assert refusal([message]).param == "messages.0.content.1"
    content = plain(read([message], media=("image",)))[0]["content"]
    assert content[1] == {"type": "image", "source": {"type": "data", "value": "QUJD", "mime_type": "image/png"}}
    linked = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    content = plain(read([{"role": "user", "content": [linked]}], media=("image",)))[0]["content"]
    assert content[0]["source"] == {"type": "url", "value": "https://example.org/x.png"}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"{", b'"x"', b"\xff", b'{"messages": NaN}', b"[" * 100_000, b'{"messages":' + b"[" * 100_000,
        b'{"messages":[{"role":"user","content":"\\ud800"}]}', b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5000 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"metadata":' + b'{"a":' * 400 + b"1" + b"}" * 401,
    ],
)  # fmt: skip
def test_bodies_that_are_not_a_request(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse(body, new_id=lambda prefix: prefix)
    assert caught.value.kind == "invalid_request"


def test_limits() -> None:
    assert refusal([USER] * 3, limits=Limits(messages=2)).param == "messages"
    assert refusal(tools=[WEATHER], limits=Limits(tools=0)).param == "tools"
    with pytest.raises(RequestError) as caught:
        read(limits=Limits(body=10))
    assert caught.value.kind == "payload_too_large"
    deep: Any = {}
    for _ in range(80):
        deep = {"properties": deep}
    nested = {"type": "function", "function": {"name": "a", "parameters": deep}}
    assert "nests deeper" in refusal(tools=[nested]).message
