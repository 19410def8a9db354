"""Reading another producer's events: what is dropped, what is refused."""

from __future__ import annotations

import pytest

from events import vocabulary as v
from events.encode import DecodeError, to_wire
from events.receive import receive
from tests.conformance.samples import examples

FINISHED = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}


def test_every_event_of_ours_is_read_back_without_a_warning():
    for event in examples(5, seed=9):
        read, warnings = receive(to_wire(event))
        assert warnings == []
        assert to_wire(read) == to_wire(event)


def test_an_unknown_type_is_dropped_with_a_warning():
    event, warnings = receive({"type": "HOLOGRAM_START", "messageId": "m"})
    assert event is None
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "wire",
    [
        FINISHED | {"outcome": {"type": "postponed"}},
        FINISHED | {"outcome": None},
        FINISHED | {"result": None},
        FINISHED | {"rawEvent": None},
    ],
)
def test_what_is_not_recognised_is_dropped_and_the_event_stays(wire):
    event, warnings = receive(wire)
    assert event == v.RunFinished(thread_id="t", run_id="r")
    assert len(warnings) == 1


def test_unknown_patch_operations_messages_and_parts_are_dropped():
    good = {"op": "add", "path": "/a", "value": None, "note": "kept"}
    event, warnings = receive({"type": "STATE_DELTA", "delta": [{"op": "increment", "path": "/a"}, good]})
    assert (event.delta, len(warnings)) == ([good], 1)
    event, warnings = receive({"type": "STATE_DELTA", "delta": [{"op": ["add"]}]})
    assert (event.delta, len(warnings)) == ([], 1)
    event, warnings = receive({"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "u", "role": "wizard"}]})
    assert (event.messages, len(warnings)) == ([], 1)
    parts = [{"type": "hologram"}, {"type": "text", "text": "x"}]
    event, warnings = receive(
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "u", "role": "user", "content": parts}]}
    )
    assert (event.messages[0]["content"], len(warnings)) == (parts[1:], 1)


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"type": ""},
        {"type": 5},
        {"type": "RUN_STARTED", "threadId": "t"},
        FINISHED | {"timestamp": None},
        FINISHED | {"timestamp": 1.5},
        FINISHED | {"metadata": None},
        FINISHED | {"outcome": []},
        FINISHED | {"outcome": {"type": "interrupt"}},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "wizard"},
        {"type": "REASONING_MESSAGE_START", "messageId": "m", "role": "assistant"},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "a", "value": 1}]},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a"}]},
        {"type": "STATE_DELTA", "delta": ["add"]},
        {"type": "STATE_DELTA", "delta": {}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a"}]},
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "u", "role": "user"}]},
        {"type": "MESSAGES_SNAPSHOT", "messages": [{"id": "u", "role": "assistant", "content": None}]},
        {"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c", "content": [5]},
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "input": {"threadId": "t"}},
        FINISHED | {"usage": [{"provider": None}]},
        FINISHED | {"outcome": {"type": "success", "pendingToolCallIds": None}},
    ],
)
def test_what_is_recognised_and_malformed_is_an_error(wire):
    with pytest.raises(DecodeError):
        receive(wire)
