"""The Messages API: requests, whole frame sequences, and the body that says the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from inline_snapshot import snapshot
from pydantic import TypeAdapter

from adapters.answer import PromptNote
from adapters.anthropic_messages import (
    MessageFlags,
    MessageIdentity,
    MessageStream,
    digest,
    message_body,
    parse,
    parse_count,
)
from adapters.body import Inbound, Notes, noting
from adapters.client_history import Seal, unwrap
from adapters.errors import RequestError, response
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)
from tests.adapters import recorded

IDENTITY = MessageIdentity(id="msg_1", model="m", thread_id="t")
NO_FLAGS = MessageFlags()
STREAMED: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)
USER = {"role": "user", "content": "Hi"}
WEATHER = {"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}


def frames(events: list[Event], flags: MessageFlags = NO_FLAGS, identity: MessageIdentity = IDENTITY) -> list[Any]:
    stream = MessageStream(identity, flags)
    data = b"".join(stream.encode(event) for event in events) + stream.finish()
    found = []
    for part in data.decode().split("\n\n")[:-1]:
        name, body = part.split("\n")
        said = json.loads(body.removeprefix("data: "))
        assert name == f"event: {said['type']}"
        if said["type"] not in ("ping", "error"):
            STREAMED.validate_python(said)
        if said["type"] not in ("message_start", "ping"):
            found.append(said)
    return found


def body(events: list[Event], flags: MessageFlags = NO_FLAGS) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(message_body(events, IDENTITY, flags))
    Message.model_validate(made)
    return made


SHAPE = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}


def test_message_start_tells_the_prompts_length_in_front_of_the_answer() -> None:
    stream = MessageStream(IDENTITY, prompt=lambda: PromptNote(tokens=20))
    assert stream.encode(recorded.STARTED) == b""
    first = stream.encode(recorded.PLAIN[1]).decode()
    assert first.startswith("""\
event: message_start
data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":20,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}

event: ping
data: {"type":"ping"}

""")
    assert b"message_start" not in b"".join(stream.encode(event) for event in recorded.PLAIN[2:])


def test_a_line_is_kept_open_with_what_may_come_first() -> None:
    notes: list[PromptNote] = []
    stream = MessageStream(IDENTITY, prompt=lambda: notes[0] if notes else None)
    assert stream.keep_alive() == b": keep-alive\n\n"
    notes.append(PromptNote(tokens=7))
    assert b'"input_tokens":7' in stream.keep_alive()
    assert stream.keep_alive() == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_a_thread_is_refused_with_the_word_by_which_its_client_falls_back() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hi"}],
        "thread": {"type": "create"},
    }
    with pytest.raises(RequestError) as caught:
        parse(json.dumps(body).encode(), new_id=lambda prefix: prefix)
    told = json.loads(response("anthropic", caught.value).body)["error"]
    assert told["type"] == "invalid_request_error"
    assert told["details"] == {"error_code": "thread_unsupported_request"}


def test_plain_text() -> None:
    assert frames(recorded.PLAIN) == snapshot(
        [
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo é\n"}},
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {
                    "input_tokens": 4,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 16,
                    "output_tokens": 9,
                },
            },
            {"type": "message_stop"},
        ]
    )


def test_thinking_text_and_calls() -> None:
    assert frames(recorded.FULL) == snapshot(
        [
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "thinking", "thinking": "", "signature": ""},
            },
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "I "}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "think"}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {
                    "type": "signature_delta",
                    "signature": "digest-1.MKJvdSM9794qiNgWOkCv9zjLgrxU2w6jjKix4SOoI9A=",
                },
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me "}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look."}},
            {"type": "content_block_stop", "index": 1},
            {
                "type": "content_block_start",
                "index": 2,
                "content_block": {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {}},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": '{"city":'},
            },
            {
                "type": "content_block_delta",
                "index": 2,
                "delta": {"type": "input_json_delta", "partial_json": ' "Oslo"}'},
            },
            {"type": "content_block_stop", "index": 2},
            {
                "type": "content_block_start",
                "index": 3,
                "content_block": {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            },
            {"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
            {"type": "content_block_stop", "index": 3},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {
                    "input_tokens": 4,
                    "cache_creation_input_tokens": 0,
                    "cache_read_input_tokens": 16,
                    "output_tokens": 9,
                },
            },
            {"type": "message_stop"},
        ]
    )


def test_body() -> None:
    assert body(recorded.FULL) == snapshot(
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {
                    "type": "thinking",
                    "thinking": "I think",
                    "signature": "digest-1.MKJvdSM9794qiNgWOkCv9zjLgrxU2w6jjKix4SOoI9A=",
                },
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 4,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 16,
                "output_tokens": 9,
            },
        }
    )


def test_a_failure_is_an_error_event() -> None:
    assert frames(recorded.BROKEN)[-1] == snapshot(
        {"type": "error", "error": {"type": "api_error", "message": "The engine was lost."}, "request_id": None}
    )
    with pytest.raises(RequestError):
        body(recorded.BROKEN)


@pytest.mark.parametrize(
    ("events", "reason", "sequence"),
    [
        (recorded.PLAIN, "end_turn", None),
        (recorded.CUT, "max_tokens", None),
        (recorded.FULL, "tool_use", None),
        (recorded.started() + recorded.finished("stop", stop="END"), "stop_sequence", "END"),
        (recorded.started() + recorded.finished("stop", stop=5), "end_turn", None),
    ],
)
def test_stop_reasons(events: list[Event], reason: str, sequence: str | None) -> None:
    assert (body(events)["stop_reason"], body(events)["stop_sequence"]) == (reason, sequence)
    delta = frames(events)[-2]["delta"]
    assert (delta["stop_reason"], delta["stop_sequence"]) == (reason, sequence)


SEALED: list[Event] = [
    *recorded.started(),
    ReasoningStart(message_id="r"),
    ReasoningMessageStart(message_id="r", role="reasoning"),
    ReasoningMessageEnd(message_id="r"),
    ReasoningEncryptedValue(subtype="message", entity_id="r", encrypted_value="sealed!"),
    ReasoningEnd(message_id="r"),
    *recorded.text("Hi"),
    *recorded.finished(),
]


def test_sealed_reasoning_is_redacted_thinking() -> None:
    block = body(SEALED)["content"][0]
    assert (block["type"], unwrap(block["data"])) == ("redacted_thinking", Seal("t", "r", "sealed!"))
    inbound = read([USER, {"role": "assistant", "content": [block]}, USER])
    assert inbound.input.thread_id == "t"
    assert plain(inbound)[1] == {"role": "reasoning", "content": "", "encrypted_value": "sealed!"}
    assert inbound.input.messages[1].id == "r"
    assert [frame["type"] for frame in frames(SEALED)][:2] == ["content_block_start", "content_block_stop"]


def test_hidden_thinking_is_an_empty_block() -> None:
    hidden = MessageFlags(hide_thinking=True)
    thinking = body(recorded.FULL, hidden)["content"][0]
    assert thinking == {"type": "thinking", "thinking": "", "signature": digest("")}
    assert "think" not in json.dumps([frame.get("delta") for frame in frames(recorded.FULL, hidden)]).replace(
        "thinking", ""
    )


def test_overlapping_items_become_blocks_one_after_the_other() -> None:
    events: list[Event] = [
        *recorded.started(),
        TextMessageStart(message_id="m", role="assistant"),
        TextMessageContent(message_id="m", delta="a"),
        ToolCallStart(tool_call_id="x", tool_call_name="f"),
        ToolCallStart(tool_call_id="y", tool_call_name="g"),
        ToolCallArgs(tool_call_id="y", delta='{"b"'),
        ToolCallArgs(tool_call_id="x", delta="{"),
        TextMessageContent(message_id="m", delta="b"),
        TextMessageEnd(message_id="m"),
        ToolCallArgs(tool_call_id="y", delta=":1}"),
        ToolCallEnd(tool_call_id="y"),
        ToolCallArgs(tool_call_id="x", delta="}"),
        ToolCallEnd(tool_call_id="x"),
        *recorded.finished("tool_calls"),
    ]
    assert body(events)["content"] == [
        {"type": "text", "text": "ab"},
        {"type": "tool_use", "id": "x", "name": "f", "input": {}},
        {"type": "tool_use", "id": "y", "name": "g", "input": {"b": 1}},
    ]
    opened = [frame["index"] for frame in frames(events) if frame["type"] == "content_block_start"]
    closed = [frame["index"] for frame in frames(events) if frame["type"] == "content_block_stop"]
    assert opened == closed == [0, 1, 2]


def test_the_servers_own_calls_are_not_the_clients() -> None:
    own = MessageIdentity(id="msg_1", model="m", hidden_tools=("now",))
    assert "call_2" not in json.dumps(frames(recorded.FULL, identity=own))


def test_arguments_that_are_no_object() -> None:
    events = recorded.started() + recorded.call("f", "[1,") + recorded.finished("tool_calls")
    assert body(events)["content"][0]["input"] == {"_raw": "[1,"}


# ---- requests -------------------------------------------------------------------------------------------------------


def read(messages: Any = (USER,), *, media: tuple[str, ...] = (), count: bool = False, **fields: Any) -> Inbound:
    counter = itertools.count(1)
    whole = {"messages": list(messages), "model": "m", **({} if count else {"max_tokens": 9}), **fields}
    read_one = parse_count if count else parse
    return read_one(json.dumps(whole).encode(), new_id=lambda prefix: f"{prefix}_{next(counter)}", media=media)


def refusal(messages: Any = (USER,), **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(messages, **fields)
    assert caught.value.kind == "invalid_request"
    return caught.value


def plain(inbound: Inbound) -> list[dict[str, Any]]:
    return [message.model_dump(exclude={"id"}) for message in inbound.input.messages]


def test_options_are_read() -> None:
    inbound = read(
        temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["END"], stream=True, system="Be brief.",
        metadata={"user_id": "u"}, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "enabled", "budget_tokens": 1024}, cache_control={"type": "ephemeral"},
        output_config={"effort": "high", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )  # fmt: skip
    options = inbound.options
    sampling = options.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.5, 0.9, 5, 9)
    assert (sampling.stop, options.user, options.thinking) == (("END",), "u", True)
    assert (options.tool_choice.mode, options.parallel_tool_calls) == ("required", False)
    assert options.response_format is not None
    assert (options.reasoning_effort, options.response_format.kind) == ("high", "json_schema")
    assert plain(inbound)[0] == {"role": "system", "content": "Be brief."}
    assert inbound.stream
    assert not options.store


@pytest.mark.parametrize(
    ("thinking", "wanted"),
    [(None, False), ({"type": "disabled"}, False), ({"type": "adaptive"}, None)],
)
def test_thinking_is_off_unless_asked_for(thinking: Any, wanted: bool | None) -> None:
    assert read(thinking=thinking).options.thinking is wanted


def test_a_whole_conversation() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": digest("hm")},
                {"type": "redacted_thinking", "data": "sealed"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "a", "name": "get_weather", "input": {"city": "Oslo"}},
                {"type": "tool_use", "id": "b", "name": "get_weather", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "b", "content": "no such place", "is_error": True},
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and?"},
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    inbound = read(messages)
    assert plain(inbound) == snapshot(
        [
            {"role": "user", "content": "weather?"},
            {"role": "reasoning", "content": "hm"},
            {"role": "reasoning", "content": ""},
            {
                "role": "assistant",
                "content": "Let me look.",
                "tool_calls": [
                    {
                        "id": "a",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                    },
                    {"id": "b", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "a"},
            {"role": "tool", "content": "no such place", "tool_call_id": "b", "error": "no such place"},
            {"role": "user", "content": "and?"},
            {"role": "assistant", "content": "It is"},
        ]
    )
    assert inbound.options.continue_final_message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages.0.content"),
        ([{"role": "robot", "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": [{"type": "image", "source": {}}]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}], "messages.0.content.tool_use_id"),
        ([{"role": "assistant", "content": [{"type": "image"}]}], "messages.0.content.0.type"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": ""}]}],
         "messages.0.content.0.name"),
        ([{"role": "assistant", "content": [{"type": "thinking", "thinking": "a", "signature": digest("b")}]}],
         "messages.0.content.0.signature"),
    ],
)  # fmt: skip
def test_a_bad_block_is_named(messages: Any, param: str) -> None:
    assert refusal(messages).param == param


def test_a_system_message_for_one_turn_is_gone_after_it() -> None:
    once = {"role": "system", "content": "Answer in French.", "clear_at": "next_user_message"}
    effort = {"role": "system", "output_config": {"effort": "low"}}
    asked = read([USER, once, effort], output_config={"effort": "high"})
    assert asked.input.messages[-2].content == "Answer in French." and asked.options.reasoning_effort == "low"
    later = read([USER, once, {"role": "assistant", "content": "Oui."}, USER])
    assert [message.role for message in later.input.messages] == ["user", "assistant", "user"]


def test_a_document_of_blocks_keeps_its_pictures() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    source = {"type": "content", "content": [{"type": "text", "text": "A cat:"}, image]}
    (message,) = read(
        [{"role": "user", "content": [{"type": "document", "source": source}]}], media=("image",)
    ).input.messages
    assert [part.type for part in message.content] == ["text", "image"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"inference_geo": "eu"}, "inference_geo"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"tools": [{"type": 5, "name": "telepathy"}]}, "tools.0.type"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"thinking": {"type": "very"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"system": 5}, "system"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_images_depend_on_the_model() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    content = plain(read([{"role": "user", "content": [image]}], media=("image",)))[0]["content"]
    assert content == [{"type": "image", "source": {"type": "data", "value": "QUJD", "mime_type": "image/png"}}]


def test_counting_takes_what_matters_to_a_prompt() -> None:
    assert read(count=True, tools=[WEATHER], system="x").input.tools
    with noting(Notes()) as notes:
        read(count=True, max_tokens=5, temperature=1)
    assert notes.unknown == ["max_tokens", "temperature"]


@pytest.mark.parametrize("field", [{"output_config": {"format": SHAPE}}, {"output_format": SHAPE}])
def test_a_form_has_its_name_in_the_beta_too(field: dict[str, Any]):
    assert (
        read([USER], **field).options.response_format
        == read([USER], output_config={"format": SHAPE}).options.response_format
    )
    assert read([USER], **field).options.response_format is not None
