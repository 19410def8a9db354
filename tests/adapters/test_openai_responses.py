"""Responses: requests, whole event sequences, resuming, and what is kept."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from adapters import sse
from adapters.body import Inbound, Notes, noting
from adapters.client_history import Seal, unwrap, wrap
from adapters.errors import RequestError
from adapters.openai_responses import (
    Continuation,
    ResponseFlags,
    ResponseIdentity,
    ResponseRecord,
    ResponseStream,
    item_list,
    parse,
    read_query,
    response_object,
    with_history,
)
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
)
from tests.adapters import recorded

IDENTITY = ResponseIdentity(id="resp_1", model="m", created=7, thread_id="t")
EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)
ECHO = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
PLAIN = ResponseFlags(echo=ECHO)


def frames(events: list[Event], flags: ResponseFlags = PLAIN, after: int = -1) -> list[dict[str, Any]]:
    stream = ResponseStream(IDENTITY, flags, after=after)
    data = b"".join(stream.encode(event) for event in events) + stream.finish()
    found = []
    for frame in sse.parse([data]):
        event = json.loads(frame["data"])
        assert frame["event"] == event["type"]
        EVENT.validate_python(event)
        found.append(event)
    return found


def brief(events: list[Event], flags: ResponseFlags = PLAIN) -> list[Any]:
    """Type and what is particular about each event, in order of their numbers."""
    found = frames(events, flags)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    shown = []
    for event in found:
        rest = {key: value for key, value in event.items() if key not in ("type", "sequence_number", "response")}
        if "response" in event:
            rest["status"] = event["response"]["status"]
        shown.append((event["type"].removeprefix("response."), rest))
    return shown


def test_reasoning_text_and_calls() -> None:
    assert brief(recorded.FULL) == snapshot(
        [
            ("created", {"status": "in_progress"}),
            ("in_progress", {"status": "in_progress"}),
            (
                "output_item.added",
                {
                    "output_index": 0,
                    "item": {
                        "id": "rs_1_0",
                        "type": "reasoning",
                        "status": "in_progress",
                        "summary": [],
                        "content": [],
                    },
                },
            ),
            (
                "content_part.added",
                {
                    "item_id": "rs_1_0",
                    "output_index": 0,
                    "content_index": 0,
                    "part": {"type": "reasoning_text", "text": ""},
                },
            ),
            ("reasoning_text.delta", {"item_id": "rs_1_0", "output_index": 0, "content_index": 0, "delta": "I "}),
            ("reasoning_text.delta", {"item_id": "rs_1_0", "output_index": 0, "content_index": 0, "delta": "think"}),
            ("reasoning_text.done", {"item_id": "rs_1_0", "output_index": 0, "content_index": 0, "text": "I think"}),
            (
                "content_part.done",
                {
                    "item_id": "rs_1_0",
                    "output_index": 0,
                    "content_index": 0,
                    "part": {"type": "reasoning_text", "text": "I think"},
                },
            ),
            (
                "output_item.done",
                {
                    "output_index": 0,
                    "item": {
                        "id": "rs_1_0",
                        "type": "reasoning",
                        "status": "completed",
                        "summary": [],
                        "content": [{"type": "reasoning_text", "text": "I think"}],
                    },
                },
            ),
            (
                "output_item.added",
                {
                    "output_index": 1,
                    "item": {
                        "id": "msg_1_1",
                        "type": "message",
                        "role": "assistant",
                        "status": "in_progress",
                        "content": [],
                    },
                },
            ),
            (
                "content_part.added",
                {
                    "item_id": "msg_1_1",
                    "output_index": 1,
                    "content_index": 0,
                    "part": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
                },
            ),
            (
                "output_text.delta",
                {"item_id": "msg_1_1", "output_index": 1, "content_index": 0, "delta": "Let me ", "logprobs": []},
            ),
            (
                "output_text.delta",
                {"item_id": "msg_1_1", "output_index": 1, "content_index": 0, "delta": "look.", "logprobs": []},
            ),
            (
                "output_text.done",
                {"item_id": "msg_1_1", "output_index": 1, "content_index": 0, "text": "Let me look.", "logprobs": []},
            ),
            (
                "content_part.done",
                {
                    "item_id": "msg_1_1",
                    "output_index": 1,
                    "content_index": 0,
                    "part": {"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []},
                },
            ),
            (
                "output_item.done",
                {
                    "output_index": 1,
                    "item": {
                        "id": "msg_1_1",
                        "type": "message",
                        "role": "assistant",
                        "status": "completed",
                        "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
                    },
                },
            ),
            (
                "output_item.added",
                {
                    "output_index": 2,
                    "item": {
                        "id": "fc_1_2",
                        "type": "function_call",
                        "call_id": "call_1",
                        "name": "get_weather",
                        "arguments": "",
                        "status": "in_progress",
                    },
                },
            ),
            ("function_call_arguments.delta", {"item_id": "fc_1_2", "output_index": 2, "delta": '{"city":'}),
            ("function_call_arguments.delta", {"item_id": "fc_1_2", "output_index": 2, "delta": ' "Oslo"}'}),
            (
                "function_call_arguments.done",
                {"item_id": "fc_1_2", "output_index": 2, "arguments": '{"city": "Oslo"}', "name": "get_weather"},
            ),
            (
                "output_item.done",
                {
                    "output_index": 2,
                    "item": {
                        "id": "fc_1_2",
                        "type": "function_call",
                        "call_id": "call_1",
                        "name": "get_weather",
                        "arguments": '{"city": "Oslo"}',
                        "status": "completed",
                    },
                },
            ),
            (
                "output_item.added",
                {
                    "output_index": 3,
                    "item": {
                        "id": "fc_1_3",
                        "type": "function_call",
                        "call_id": "call_2",
                        "name": "now",
                        "arguments": "",
                        "status": "in_progress",
                    },
                },
            ),
            ("function_call_arguments.delta", {"item_id": "fc_1_3", "output_index": 3, "delta": "{}"}),
            (
                "function_call_arguments.done",
                {"item_id": "fc_1_3", "output_index": 3, "arguments": "{}", "name": "now"},
            ),
            (
                "output_item.done",
                {
                    "output_index": 3,
                    "item": {
                        "id": "fc_1_3",
                        "type": "function_call",
                        "call_id": "call_2",
                        "name": "now",
                        "arguments": "{}",
                        "status": "completed",
                    },
                },
            ),
            ("completed", {"status": "completed"}),
        ]
    )


def test_reasoning_as_a_summary() -> None:
    events = recorded.started() + recorded.reasoning("I ", "think") + recorded.finished()
    assert brief(events, ResponseFlags(echo=ECHO, summary=True))[3:-1] == snapshot(
        [
            (
                "reasoning_summary_part.added",
                {
                    "item_id": "rs_1_0",
                    "output_index": 0,
                    "summary_index": 0,
                    "part": {"type": "summary_text", "text": ""},
                },
            ),
            (
                "reasoning_summary_text.delta",
                {"item_id": "rs_1_0", "output_index": 0, "summary_index": 0, "delta": "I "},
            ),
            (
                "reasoning_summary_text.delta",
                {"item_id": "rs_1_0", "output_index": 0, "summary_index": 0, "delta": "think"},
            ),
            (
                "reasoning_summary_text.done",
                {"item_id": "rs_1_0", "output_index": 0, "summary_index": 0, "text": "I think"},
            ),
            (
                "reasoning_summary_part.done",
                {
                    "item_id": "rs_1_0",
                    "output_index": 0,
                    "summary_index": 0,
                    "part": {"type": "summary_text", "text": "I think"},
                },
            ),
            (
                "output_item.done",
                {
                    "output_index": 0,
                    "item": {
                        "id": "rs_1_0",
                        "type": "reasoning",
                        "status": "completed",
                        "summary": [{"type": "summary_text", "text": "I think"}],
                        "content": [],
                    },
                },
            ),
        ]
    )


def test_the_object() -> None:
    made = response_object(recorded.FULL, IDENTITY, PLAIN)
    Response.model_validate(made)
    assert made == snapshot(
        {
            "id": "resp_1",
            "object": "response",
            "created_at": 7,
            "completed_at": 7,
            "model": "m",
            "error": None,
            "incomplete_details": None,
            "usage": {
                "input_tokens": 20,
                "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 0},
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 4},
                "total_tokens": 29,
            },
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "completed",
            "output": [
                {
                    "id": "rs_1_0",
                    "type": "reasoning",
                    "status": "completed",
                    "summary": [],
                    "content": [{"type": "reasoning_text", "text": "I think"}],
                },
                {
                    "id": "msg_1_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
                },
                {
                    "id": "fc_1_2",
                    "type": "function_call",
                    "call_id": "call_1",
                    "name": "get_weather",
                    "arguments": '{"city": "Oslo"}',
                    "status": "completed",
                },
                {
                    "id": "fc_1_3",
                    "type": "function_call",
                    "call_id": "call_2",
                    "name": "now",
                    "arguments": "{}",
                    "status": "completed",
                },
            ],
        }
    )
    assert frames(recorded.FULL)[-1]["response"] == made


def test_incomplete_failed_and_cancelled() -> None:
    cut, broken, cancelled = (
        response_object(events, IDENTITY, PLAIN) for events in (recorded.CUT, recorded.BROKEN, recorded.CANCELLED)
    )
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert cut["output"][0]["status"] == "incomplete"
    assert (broken["status"], broken["error"]) == (
        "failed",
        {"code": "server_error", "message": "The engine was lost."},
    )
    assert cancelled["status"] == "cancelled"
    assert [frames(events)[-1]["type"] for events in (recorded.CUT, recorded.BROKEN, recorded.CANCELLED)] == [
        "response.incomplete",
        "response.failed",
        "response.incomplete",
    ]


def test_background_is_queued_first() -> None:
    names = [name for name, _ in brief(recorded.PLAIN, ResponseFlags(echo=ECHO, background=True))[:3]]
    assert names == ["created", "queued", "in_progress"]


@pytest.mark.parametrize("events", [recorded.FULL, recorded.BROKEN, recorded.CUT, recorded.EMPTY])
def test_resuming_after_any_number_gives_the_rest(events: list[Event]) -> None:
    whole = frames(events)
    for after in range(-1, len(whole)):
        assert frames(events, after=after) == whole[after + 1 :]


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


def test_sealed_reasoning_goes_out_and_comes_back() -> None:
    asked = ResponseFlags(echo=ECHO, encrypted=True)
    item = response_object(SEALED, IDENTITY, asked)["output"][0]
    assert unwrap(item["encrypted_content"]) == Seal("t", "r", "sealed!")
    assert "encrypted_content" not in response_object(SEALED, IDENTITY, PLAIN)["output"][0]
    inbound = read([item, {"role": "user", "content": "x"}])
    assert inbound.input.thread_id == "t"
    assert plain(inbound)[0] == {"role": "reasoning", "content": "", "encrypted_value": "sealed!"}


@pytest.mark.parametrize("text", ["", "x", "sealed-1.", "sealed-1.!!", "sealed-1.e30=", "sealed-1.WzFd"])
def test_what_was_not_sealed_here_is_no_seal(text: str) -> None:
    assert unwrap(text) is None


def test_a_seal_survives_any_id() -> None:
    seal = Seal("a.b/c d", "\u00e9", "x" * 300)
    assert unwrap(wrap(seal)) == seal


# ---- requests -------------------------------------------------------------------------------------------------------


def read(input: Any, **fields: Any) -> Inbound:
    counter = itertools.count(1)
    body = json.dumps({"input": input, **fields}).encode()
    return parse(body, new_id=lambda prefix: f"{prefix}_{next(counter)}")


def plain(inbound: Inbound) -> list[dict[str, Any]]:
    return [message.model_dump(exclude={"id"}) for message in inbound.input.messages]


def test_input_items_of_all_kinds() -> None:
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "a", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "1"}]},
    ]
    assert plain(read(items, instructions="Be brief.")) == snapshot(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": "weather?"},
            {"role": "reasoning", "content": "hm"},
            {
                "role": "assistant",
                "content": "a",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
                    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "content": "1", "tool_call_id": "c1"},
            {"role": "tool", "content": "2", "tool_call_id": "c2"},
        ]
    )


def test_a_conversation_is_continued() -> None:
    waiting = read(
        [{"type": "function_call_output", "call_id": "c1", "output": "sunny"}],
        previous_response_id="resp_0",
        instructions="i",
    )
    assert isinstance(waiting.extra, Continuation)
    earlier = read(
        [{"role": "user", "content": "u"}, {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}]
    ).input.messages
    counter = itertools.count(100)
    whole = with_history(waiting, "thread", earlier, lambda prefix: f"{prefix}_{next(counter)}", ResponseFlags())
    assert whole.input.thread_id == "thread"
    assert [message.role for message in whole.input.messages] == ["system", "user", "assistant", "tool"]
    assert len({message.id for message in whole.input.messages}) == 4
    assert whole.extra.instructions


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([], "input"),
        ([5], "input.0"),
        ([{"role": "robot", "content": "x"}], "input.0.role"),
        ([{"type": "telepathy_call", "id": "x"}], "input"),
        ([{"content": "x"}], "input.0.type"),
        ([{"type": "item_reference", "id": "x"}], "input.0"),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": "no"}], "input.0.arguments"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input.0.call_id"),
        ([{"type": "function_call_output", "call_id": "c", "output": "x"}], "input.0.call_id"),
        ([{"type": "reasoning", "summary": "x"}], "input.0.summary"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "https://e.org/x.png"}]}],
         "input.0.content.0"),
    ],
)  # fmt: skip
def test_a_bad_item_is_named(input: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(input)
    assert (caught.value.kind, caught.value.param) == ("invalid_request", param)


def test_a_configuration_update_holds_until_the_next() -> None:
    low = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    high = {
        "type": "configuration_update",
        "reasoning": {"effort": "high"},
        "text": {"format": {"type": "json_object"}},
    }
    hello = {"role": "user", "content": "Hello"}
    options = read([low, hello, high, hello], reasoning={"effort": "medium"}).options
    assert options.reasoning_effort == "high" and options.response_format is not None
    flags = read([high, hello]).extra
    waiting = read([low, hello], previous_response_id="resp_1")
    continued = with_history(waiting, "t", [], lambda prefix: prefix, flags)
    assert continued.options.reasoning_effort == "low" and continued.options.response_format is not None
    assert continued.extra.updates == {"reasoning.effort": "low", "text.format": {"type": "json_object"}}


def test_items_and_tools_of_tomorrow_are_left_out_with_a_warning() -> None:
    tomorrow = [{"type": "telepathy_call", "id": "x"}, {"role": "user", "content": "Hello"}]
    with noting(Notes()) as notes:
        inbound = read(tomorrow, tools=[{"type": "telepathy"}])
    assert len(inbound.input.messages) == 1 and not inbound.input.tools
    assert notes.warnings == snapshot(
        [
            "tools.0 is left out: its type is not known here; declare a function instead.",
            "input.0 is left out: its type is not known here.",
        ]
    )


# ---- stored responses -----------------------------------------------------------------------------------------------


def test_pages_of_input_items() -> None:
    flags = ResponseFlags(items=[{"role": "user", "content": str(number)} for number in range(5)])
    record = ResponseRecord(id="resp_1", agent="default", run_id="r", thread_id="t", response={}, flags=flags)
    first = json.loads(item_list(record.items, {"limit": "2"}))
    assert [item["content"] for item in first["data"]] == ["4", "3"]
    assert first["has_more"]
    rest = json.loads(item_list(record.items, {"limit": "9", "after": first["last_id"]}))
    assert [item["content"] for item in rest["data"]] == ["2", "1", "0"]
    assert not rest["has_more"]
    oldest = json.loads(item_list(record.items, {"order": "asc", "limit": "1"}))
    assert oldest["data"][0]["content"] == "0"


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "x"}, {"order": "up"}, {"after": "nothing"}, {"limit": "9" * 30}],
)
def test_a_bad_page_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        item_list([{"id": "a"}], query)


@pytest.mark.parametrize(
    "query", [{"stream": "yes"}, {"starting_after": "5"}, {"stream": "true", "starting_after": "-1"}]
)
def test_a_bad_query_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(RequestError):
        read_query(query)
    assert read_query({"stream": "true", "starting_after": "5"}).after == 5
