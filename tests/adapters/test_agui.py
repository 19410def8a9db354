"""AG-UI's inbound side: what is taken, what is refused and how; and the outbound frames."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from ag_ui.core import RunAgentInput
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters import sse
from adapters.agui import PROTOBUF, SSE, SseEncoder, negotiate, parse
from adapters.body import Limits
from adapters.errors import RequestError, response
from events import vocabulary as v
from events.options import ResponseFormat, SamplingParams, ToolChoice

BODY: dict[str, Any] = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Hi"}]}
LIMITS = Limits(body=10_000, values=2_000, depth=16, messages=5, tools=3, parts=4, tool_calls=2, name=20, schema=200)


def read(body: Any, **limits: Any):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse(data, new_id=lambda kind: kind, **limits)


def refusal(body: Any, **limits: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body, **limits)
    return caught.value


def calls(work: Callable[[], RequestError]) -> tuple[int, RequestError]:
    """How many functions, Python's and those written in C, the work calls: its cost, whatever the machine does."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    gc.disable()  # finalizers of other tests' objects are calls as well
    sys.setprofile(counted)
    try:
        made = work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count, made


def with_props(**props: Any) -> dict[str, Any]:
    return BODY | {"forwardedProps": props}


def test_a_plain_body_becomes_the_sdks_input():
    inbound = read(
        BODY | {"protocolVersion": "1.0", "state": {"k": [1]}, "context": [{"description": "d", "value": "v"}]}
    )
    assert type(inbound.input) is RunAgentInput
    assert inbound.input == RunAgentInput.model_validate_json(
        json.dumps(
            BODY | {"protocolVersion": "1.0", "state": {"k": [1]}, "context": [{"description": "d", "value": "v"}]}
        )
    )
    assert inbound.stream and not inbound.extra.legacy


def test_a_body_without_a_version_is_an_older_clients():
    assert read(BODY).extra.legacy


def test_pythons_names_of_fields_are_those_of_the_wire():
    """Agent Framework's client sends them, as the SDK's models accept them."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = {
        "thread_id": "t", "run_id": "r", "parent_run_id": "p", "forwarded_props": {"temperature": 0},
        "messages": [
            {"id": "1", "role": "user", "content": "Hi"}, {"id": "2", "role": "assistant", "tool_calls": [call]},
            {"id": "3", "role": "tool", "tool_call_id": "c", "content": "x"},
        ],
        "resume": [{"interrupt_id": "i", "status": "cancelled"}],
    }  # fmt: skip
    inbound = read(body)
    assert (inbound.input.thread_id, inbound.input.run_id, inbound.input.parent_run_id) == ("t", "r", "p")
    assert inbound.input.messages[1].tool_calls[0].id == inbound.input.messages[2].tool_call_id == "c"
    assert inbound.options.sampling.temperature == 0 and inbound.input.resume[0].interrupt_id == "i"
    with pytest.raises(RequestError) as error:
        read({**body, "thread_id": ""})
    assert error.value.param == "threadId"


def test_every_option_is_read_under_openais_name():
    inbound = read(
        with_props(
            temperature=0, top_p=0.9, top_k=-1, min_p=0.1, seed=7, max_tokens=10, max_completion_tokens=20, stop=["a", ""],
            presence_penalty=1, frequency_penalty=-1, repetition_penalty=1.1, logit_bias={"5": -100}, logprobs=True,
            top_logprobs=2, tool_choice={"type": "function", "function": {"name": "f"}}, parallel_tool_calls=False,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
            enable_thinking=False, reasoning_effort="low", chat_template_kwargs={"style": "brief"}, delivery="adaptive",
            boundaries="strict", user=None, langgraph={"node": 1},
        )
    )  # fmt: skip
    options = inbound.options
    assert options.sampling == SamplingParams(
        temperature=0.0, top_p=0.9, top_k=0, min_p=0.1, seed=7, max_tokens=20, stop=("a",), presence_penalty=1.0,
        frequency_penalty=-1.0, repetition_penalty=1.1, logit_bias={5: -100.0}, logprobs=2,
    )  # fmt: skip
    assert options.tool_choice == ToolChoice(mode="named", names=("f",))
    assert options.response_format == ResponseFormat(
        kind="json_schema", value={"type": "object"}, name="n", strict=True
    )
    assert (options.thinking, options.reasoning_effort, options.parallel_tool_calls) == (False, "low", False)
    assert (options.template_kwargs, options.delivery, options.boundaries) == ({"style": "brief"}, "adaptive", "strict")
    assert options.token_details
    assert inbound.extra.forwarded == {"langgraph": {"node": 1}}
    assert inbound.input.forwarded_props["temperature"] == 0


@pytest.mark.parametrize(
    ("value", "choice"),
    [
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("named", ("f",))),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}, ToolChoice("required", ("f",))),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}, ToolChoice("auto", ("f",))),
    ],
)  # fmt: skip
def test_tool_choices_in_both_of_openais_forms(value, choice):
    assert read(with_props(tool_choice=value)).options.tool_choice == choice


@pytest.mark.parametrize(
    ("props", "param"),
    [
        ({"temperature": "hot"}, "temperature"), ({"temperature": -1}, "temperature"), ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"), ({"top_k": 1.5}, "top_k"), ({"top_k": -2}, "top_k"),
        ({"seed": 10**30}, "seed"), ({"max_tokens": 0}, "max_tokens"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"stop": [1]}, "stop.0"), ({"stop": {}}, "stop"), ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"1": 200}}, "logit_bias"),
        ({"tool_choice": "maybe"}, "tool_choice"), ({"tool_choice": {"type": "function"}}, "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"), ({"response_format": []}, "response_format"),
        ({"enable_thinking": 1}, "enable_thinking"), ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"chat_template": "{{"}}, "chat_template_kwargs"), ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"), ({"n": 2}, "n"),
        ({"delivery": "slow"}, "delivery"), ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"metadata": "x"}, "metadata"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(props, param):
    error = refusal(with_props(**props))
    assert (error.kind, error.param) == ("invalid_request", f"forwardedProps.{param}")


def test_forwarded_props_of_another_shape_are_left_alone():
    assert read(BODY | {"forwardedProps": [1]}).input.forwarded_props == [1]


MALFORMED: dict[str, Any] = {
    "empty": b"",
    "no JSON": b"hello",
    "an array": b"[]",
    "null": b"null",
    "bad UTF-8": b'{"threadId":"\xff"}',
    "an encoded surrogate": b'{"threadId":"\xed\xa0\x80"}',
    "a lone surrogate": b'{"threadId":"\\ud800"}',
    "NaN": json.dumps(BODY)[:-1].encode() + b',"state":NaN}',
    "a huge number": json.dumps(BODY)[:-1].encode() + b',"state":' + b"9" * 5000 + b"}",
    "a huge exponent": json.dumps(BODY)[:-1].encode() + b',"state":1e999}',
    "a depth bomb": b"[" * 1900,
    "a depth bomb inside": json.dumps(BODY)[:-1].encode() + b',"state":' + b"[" * 1900 + b"]" * 1900 + b"}",
    "too deep": BODY | {"state": json.loads("[" * 20 + "]" * 20)},
    "trailing bytes": json.dumps(BODY).encode() + b"{}",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
    "no thread": {key: value for key, value in BODY.items() if key != "threadId"},
    "an empty thread id": BODY | {"threadId": ""},
    "a long run id": BODY | {"runId": "r" * 21},
    "messages of another type": BODY | {"messages": "Hi"},
    "empty messages": BODY | {"messages": [{}]},
    "an unknown role": BODY | {"messages": [{"id": "u", "role": "wizard", "content": ""}]},
    "content of another type": BODY | {"messages": [{"id": "u", "role": "user", "content": 5}]},
    "a part without text": BODY | {"messages": [{"id": "u", "role": "user", "content": [{"type": "text"}]}]},
    "a part whose source has no form": BODY | {"messages": [{"id": "u", "role": "user", "content": [{"type": "image", "source": 5}]}]},
    "a tool message without its call": BODY | {"messages": [{"id": "u", "role": "tool", "content": ""}]},
    "ids that repeat": BODY | {"messages": BODY["messages"] * 2},
    "tools that repeat": BODY | {"tools": [{"name": "f", "description": ""}] * 2},
    "a tool without a name": BODY | {"tools": [{"description": ""}]},
    "answers that repeat": BODY | {"resume": [{"interruptId": "i", "status": "resolved"}] * 2},
    "an answer of an unknown kind": BODY | {"resume": [{"interruptId": "i", "status": "maybe"}]},
    "too many messages": BODY | {"messages": [{"id": str(i), "role": "user", "content": ""} for i in range(6)]},
    "too many tools": BODY | {"tools": [{"name": str(i), "description": ""} for i in range(4)]},
    "too many parts": BODY | {"messages": [{"id": "u", "role": "user", "content": [{"type": "text", "text": ""}] * 5}]},
    "too many calls": BODY | {"messages": [{"id": "a", "role": "assistant", "toolCalls": [{"id": str(i), "type": "function", "function": {"name": "f", "arguments": ""}} for i in range(3)]}]},
    "a schema too large": BODY | {"tools": [{"name": "f", "description": "", "parameters": {"x": "y" * 300}}]},
    "a body too large": BODY | {"state": "x" * 10_000},
    "too many values": BODY | {"state": [[]] * 1_500},
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bodies_get_a_clean_refusal(name):
    error = refusal(MALFORMED[name], limits=LIMITS)
    assert error.kind == ("payload_too_large" if name in ("a body too large", "too many values") else "invalid_request")
    answer = response("agui", error)
    assert answer.status in (400, 413)
    assert len(answer.body) < 1000
    assert json.loads(answer.body)["error"]["message"].endswith((".", ")"))


@settings(max_examples=150, deadline=None)
@given(
    st.binary(max_size=80)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["messages", "threadId", "runId", "id", "role", "content", "type", "tools", "toolCalls", "source", "forwardedProps", "stop"]), inner, max_size=5),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode())
)  # fmt: skip
def test_any_bytes_are_taken_or_refused_and_nothing_else(data):
    try:
        read(data, limits=LIMITS)
    except RequestError as error:
        assert len(response("agui", error).body) < 1000


PATCHES = st.dictionaries(
    st.sampled_from(["messages", "tools", "state", "context", "forwardedProps", "resume", "protocolVersion"]),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["id", "role", "content", "type", "toolCalls", "source", "name", "parameters", "temperature", "n", "stop", "tool_choice", "logprobs", "chat_template_kwargs", "response_format"]), inner, max_size=5),
        max_leaves=10,
    ),
    max_size=3,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(PATCHES)
def test_a_good_body_with_any_fields_wrong_is_taken_or_refused(patch):
    try:
        read(BODY | patch, limits=LIMITS)
    except RequestError as error:
        assert error.kind in ("invalid_request", "payload_too_large")


def test_a_refusal_quotes_nothing_of_the_body():
    secret = "CANARY-7f3a"
    bodies = [
        BODY | {"messages": [{"id": "u", "role": secret, "content": ""}]},
        BODY | {"messages": [{"id": secret, "role": "user", "content": ""}] * 2},
        BODY | {"threadId": [secret]},
        BODY | {"tools": [{"name": secret, "description": 5}]},
        with_props(temperature=secret),
        with_props(tool_choice={"type": secret}),
        with_props(chat_template_kwargs={secret: 1}),
        with_props(logit_bias={secret: 1}),
        with_props(response_format={"type": secret}),
        f'{{"threadId": "{secret}'.encode(),
    ]
    for body in bodies:
        assert secret not in response("agui", refusal(body)).body.decode()


@pytest.mark.parametrize("item", ["{}", '{"id":"u"}', '{"id":"u","role":"user"}', "[]", "0"])
def test_a_list_bomb_costs_no_more_than_its_first_item(item):
    head = '{"threadId":"t","runId":"r","messages":['
    body = (head + ",".join([item] * (600_000 // (len(item) + 1))) + "]}").encode()
    assert len(body) > 590_000
    first, _ = calls(lambda: refusal((head + item + "]}").encode()))
    every, error = calls(lambda: refusal(body))
    assert every <= 2 * first
    assert len(response("agui", error).body) < 1000


def test_parts_that_nobody_knows_are_dropped_with_a_warning_and_old_ones_are_mended():
    content = [
        {"type": "hologram", "x": 1},
        {"type": ["text"]},
        {"type": "image", "source": {"type": {}}},
        {"type": "image", "source": {"type": "quantum"}},
        {"type": "text", "text": "See"},
        {"type": "binary", "mimeType": "image/png", "data": "aGk=", "filename": "a.png"},
        {"type": "binary", "mimeType": "application/pdf", "url": "https://example.org/a.pdf"},
    ]
    inbound = read(BODY | {"messages": [{"id": "u", "role": "user", "content": content}]})
    parts = [part.model_dump(by_alias=True) for part in inbound.input.messages[0].content]
    assert parts == [
        {"type": "text", "text": "See"},
        {
            "type": "image",
            "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"},
            "metadata": {"filename": "a.png"},
        },
        {
            "type": "document",
            "source": {"type": "url", "value": "https://example.org/a.pdf", "mimeType": "application/pdf"},
        },
    ]
    assert inbound.extra.warnings == ("messages.0: 4 content part(s) of an unknown kind left out.",)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, SSE), ("", SSE), ("*/*", SSE), ("text/*", SSE), (SSE, SSE), ("application/json", SSE), (PROTOBUF, PROTOBUF),
        (f"{PROTOBUF}, {SSE}", PROTOBUF), (f"{PROTOBUF};q=0.5, {SSE}", SSE), (f"{PROTOBUF};q=0, */*", SSE),
        (f"{SSE};q=0.2, {PROTOBUF};q=0.9", PROTOBUF), (f"{PROTOBUF};q=x, {SSE}", SSE),
    ],
)  # fmt: skip
def test_negotiation(accept, kind):
    assert negotiate(accept) == kind


def test_what_we_cannot_answer_with_is_refused():
    with pytest.raises(RequestError):
        negotiate("image/png")


def test_frames_hold_the_sequence_number_and_end_in_bare_line_feeds():
    encoder = SseEncoder()
    frame = encoder.encode(v.TextMessageContent(message_id="m", delta="a\r\nb"), sequence=12)
    assert frame == b'id: 12\ndata: {"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"a\\r\\nb"}\n\n'
    assert encoder.finish() == b""
    assert encoder.encode(v.Custom(name="n", value=1), choice=1) == b""
    assert b"\r" not in frame + encoder.keep_alive()
    (parsed,) = sse.parse([encoder.keep_alive(), frame[:9], frame[9:], b"data: cut"])
    assert parsed["id"] == "12"


def test_sse_frames_and_comments():
    assert sse.frame(b"1", id="a", event="e") == b"event: e\nid: a\ndata: 1\n\n"
    assert sse.comment("two\r\nlines") == b": two lines\n\n"
    assert list(sse.parse([b"data: a\ndata:b\nevent: e\n\n: comment\n\n"])) == [{"data": "a\nb", "event": "e"}]
