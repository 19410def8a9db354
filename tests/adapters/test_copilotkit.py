"""CopilotKit's runtime protocol, as its client speaks it and expects it."""

from __future__ import annotations

import json

import msgspec
import pytest

from adapters import copilotkit, sse
from adapters.agui import SseEncoder
from adapters.copilotkit import Card, History, ThreadEntry
from adapters.errors import RequestError
from adapters.openai_chat import ChatIdentity, ChatStream
from events.lifecycle import Verifier
from events.vocabulary import InterruptOutcome, MessagesSnapshot, RunFinished, RunStarted, StateSnapshot
from events.vocabulary import TextMessageContent as Content
from events.vocabulary import TextMessageEnd as End
from events.vocabulary import TextMessageStart as Start

USER = {"id": "u1", "role": "user", "content": "Send an email"}
CALL = {
    "id": "a1",
    "role": "assistant",
    "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "send_email", "arguments": "{}"}}],
}


def new_id(prefix: str) -> str:
    return f"{prefix}_1"


def run_input(**fields) -> dict:
    empty = {"threadId": "t", "runId": "r", "tools": [], "context": [], "forwardedProps": {}, "state": {}}
    return {**empty, "messages": [USER], **fields}


def tool_message(content: str, call: str = "c1", id: str = "made-up") -> dict:
    return {"id": id, "role": "tool", "toolCallId": call, "content": content}


def parsed_roles(**fields) -> list[str]:
    inbound = copilotkit.parse(json.dumps(run_input(**fields)).encode(), new_id=new_id)
    return [message.role for message in inbound.input.messages]


def test_a_run_without_protocol_version_speaks_the_old_dialect():
    inbound = copilotkit.parse(json.dumps(run_input()).encode(), new_id=new_id)
    assert inbound.extra.legacy
    assert not copilotkit.parse(json.dumps(run_input(protocolVersion="1.0")).encode(), new_id=new_id).extra.legacy


def test_temperature_of_the_provider_properties_becomes_an_option():
    inbound = copilotkit.from_wire(run_input(forwardedProps={"temperature": 0.3, "mine": 1}))
    assert inbound.options.sampling.temperature == 0.3
    assert inbound.extra.forwarded == {"mine": 1}


@pytest.mark.parametrize(
    ("entry", "content"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, '{"approved":true}'),
        (
            {"status": "resolved", "payload": {"approved": True, "editedArgs": {"to": "é"}}},
            '{"approved":true,"editedArgs":{"to":"é"}}',
        ),
        ({"status": "resolved", "payload": "teal"}, '"teal"'),
        ({"status": "resolved"}, '{"status":"resolved"}'),
        ({"status": "cancelled"}, '{"status":"cancelled"}'),
    ],
)
def test_the_clients_own_tool_result_for_what_it_resumes_is_left_out(entry, content):
    resume = [{"interruptId": "i1", **entry}]
    assert parsed_roles(messages=[USER, CALL, tool_message(content)], resume=resume) == ["user", "assistant"]


def test_a_real_result_beside_the_made_up_one_stays():
    resume = [{"interruptId": "i1", "status": "resolved", "payload": {"approved": True}}]
    messages = [USER, CALL, tool_message('"sunny"', "c0", "real"), tool_message('{"approved":true}')]
    inbound = copilotkit.from_wire(run_input(messages=messages, resume=resume))
    assert [message.id for message in inbound.input.messages] == ["u1", "a1", "real"]


def test_each_answer_takes_out_one_message_only():
    resume = [{"interruptId": "i1", "status": "resolved", "payload": {"approved": True}}]
    messages = [USER, CALL, tool_message('{"approved":true}', "c0", "first"), tool_message('{"approved":true}')]
    assert parsed_roles(messages=messages, resume=resume) == ["user", "assistant", "tool"]


def test_an_earlier_result_with_the_same_content_stays():
    resume = [{"interruptId": "i1", "status": "resolved", "payload": {"approved": True}}]
    later = {"id": "u2", "role": "user", "content": "again"}
    assert parsed_roles(messages=[USER, CALL, tool_message('{"approved":true}'), later], resume=resume)[2] == "tool"


def test_without_resume_nothing_is_left_out():
    assert parsed_roles(messages=[USER, CALL, tool_message('{"approved":true}')]) == ["user", "assistant", "tool"]


@pytest.mark.parametrize("wire", [[], "text", None, 3])
def test_a_body_that_is_no_object_is_refused(wire):
    with pytest.raises(RequestError, match="object"):
        copilotkit.from_wire(wire)


def test_the_single_endpoint_names_method_agent_and_thread():
    call = copilotkit.parse_call(
        b'{"method":"agent/stop","params":{"agentId":"cook","threadId":"t1"},"body":{"runId":"r1"}}'
    )
    assert (call.method, call.agent, call.thread_id) == ("agent/stop", "cook", "t1")
    assert copilotkit.run_to_stop(call.body) == "r1"
    assert copilotkit.parse_call(b'{"method":"info"}').method == "info"


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b'{"method":"agent/dance"}',
        b'{"method":"agent/run"}',
        b'{"method":"agent/run","params":3}',
        b'{"method":{}}',
    ],
)
def test_the_single_endpoint_refuses_what_it_does_not_know(body):
    with pytest.raises(RequestError) as refusal:
        copilotkit.parse_call(body)
    assert refusal.value.kind == "invalid_request"


@pytest.mark.parametrize("wire", [{}, {"threadId": 3}, {"threadId": ""}, {"threadId": "x" * 10_000}, [], None])
def test_a_connect_must_name_its_thread(wire):
    with pytest.raises(RequestError, match="threadId"):
        copilotkit.thread_of(wire)


@pytest.mark.parametrize("wire", [None, {}, [], {"runId": None}, {"runId": 3}, {"runId": ""}])
def test_a_stop_without_a_run_stops_the_thread(wire):
    assert copilotkit.run_to_stop(wire) is None


def test_runtime_info_has_what_the_client_needs():
    info = copilotkit.runtime_info([("default", Card(name="default", capabilities={"tools": {}}))], {"model": "m"})
    assert info["mode"] == "sse"
    assert info["agents"]["default"] == {
        "name": "default",
        "description": "",
        "className": "PythonAgent",
        "capabilities": {"tools": {}},
    }
    assert set(info["threadEndpoints"]) == {"list", "inspect", "mutations", "realtimeMetadata"}
    assert info["telemetryDisabled"] is True
    assert info["server"] == {"model": "m"}


def test_a_replay_is_a_whole_run_with_the_state_only_if_there_is_one():
    history = History(thread_id="t", run_id="r", messages=[USER], state={"a": 1})
    replay = [*copilotkit.replay_head(history), copilotkit.replay_end(history)]
    assert [type(event) for event in replay] == [RunStarted, MessagesSnapshot, StateSnapshot, RunFinished]
    assert replay[-1].outcome is None
    verifier = Verifier(strict=True)
    for event in replay:
        verifier.check(event)
    bare = copilotkit.replay_head(History(thread_id="t", run_id="r"))
    assert [type(event) for event in bare] == [RunStarted, MessagesSnapshot]


def test_a_replay_asks_open_interrupts_again():
    asked = {"id": "i1", "reason": "tool_call", "toolCallId": "c1", "responseSchema": {"type": "object"}}
    end = copilotkit.replay_end(History(thread_id="t", run_id="r", interrupts=[asked]))
    assert isinstance(end.outcome, InterruptOutcome)
    assert json.loads(msgspec.json.encode(end.outcome.interrupts[0])) == asked


def test_stop_answers_in_the_clients_words():
    assert copilotkit.stopped(True)["interrupt"] == {
        "type": "RUN_ERROR",
        "message": "Run stopped by user",
        "code": "STOPPED",
    }
    assert copilotkit.stopped(False)["stopped"] is False


def test_an_unknown_agent_is_named_but_not_at_any_length():
    status, body = copilotkit.unknown_agent("x" * 100_000)
    assert status == 404
    assert body["error"] == "Agent not found"
    assert len(body["message"]) < 300


def test_a_page_of_threads_is_in_the_clients_spelling():
    entry = ThreadEntry(id="t", name=None, agent_id="default", archived=False, created_at="c", updated_at="u")
    page = json.loads(msgspec.json.encode(copilotkit.threads_page([entry], "next")))
    assert page["nextCursor"] == "next"
    assert set(page["threads"][0]) == {
        "id", "name", "agentId", "organizationId", "createdById", "archived", "createdAt", "updatedAt",
    }  # fmt: skip


def test_side_by_side_each_frame_names_its_event_and_its_wire():
    identity = ChatIdentity(id="chatcmpl-1", model="m", created=1)
    both = sse.SideBySideEncoder({"agui": SseEncoder(), "openai": ChatStream(identity)})
    events = [
        RunStarted(thread_id="t", run_id="r"),
        Start(message_id="m", role="assistant"),
        Content(message_id="m", delta="line\nand \u2028 more"),
        End(message_id="m"),
        RunFinished(thread_id="t", run_id="r"),
    ]
    body = b"".join(both.encode(event, sequence=number) for number, event in enumerate(events, 1)) + both.finish()
    frames = list(sse.parse([body]))
    assert [frame["id"] for frame in frames if frame["event"] == "agui"] == ["1", "2", "3", "4", "5"]
    chunks = [frame for frame in frames if frame["event"] == "openai"]
    assert [frame["id"] for frame in chunks if frame["data"] == "[DONE]"] == ["5"]
    content = [json.loads(frame["data"]) for frame in chunks if frame["id"] == "3"]
    assert content[-1]["choices"][0]["delta"]["content"] == "line\nand \u2028 more"


def test_side_by_side_counts_by_itself_where_no_number_is_given():
    both = sse.SideBySideEncoder({"agui": SseEncoder()})
    frames = sse.parse([both.encode(RunStarted(thread_id="t", run_id="r")) + both.encode(Start(message_id="m"))])
    assert [frame["id"] for frame in frames] == ["1", "2"]
