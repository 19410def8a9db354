"""The AI SDK's UI message stream: state and activities as data parts that replace each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters import sse
from adapters.ui_messages import UiMessageStream
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Event,
    StateDelta,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)


def chunks(*events: Event, state: object = None) -> list[Any]:
    encoder = UiMessageStream("ui-1", state=state)
    data = b"".join(encoder.encode(event) for event in events)
    return [json.loads(frame["data"]) for frame in sse.parse([data])]


def test_a_delta_changes_the_state_that_the_page_sent() -> None:
    delta = StateDelta(delta=[{"op": "replace", "path": "/n", "value": 2}])
    assert chunks(delta, state={"n": 1}) == [{"type": "data-state", "id": "state", "data": {"n": 2}}]


def test_an_activity_is_one_part_that_changes() -> None:
    begun = ActivitySnapshot(message_id="a", activity_type="plan", content={"steps": 1})
    changed = ActivityDelta(
        message_id="a", activity_type="plan", patch=[{"op": "replace", "path": "/steps", "value": 2}]
    )
    first, last = chunks(begun, changed)
    assert (first["type"], first["id"], first["data"]) == (
        "data-activity", "a", {"activityType": "plan", "content": {"steps": 1}},
    )  # fmt: skip
    assert (last["id"], last["data"]["content"]) == ("a", {"steps": 2})


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 900 + "]" * 900])
def test_arguments_that_cannot_be_sent_as_json_are_sent_as_text(text: str) -> None:
    encoder = UiMessageStream("ui-1")
    encoder.encode(ToolCallStart(tool_call_id="c", tool_call_name="f"))
    encoder.encode(ToolCallArgs(tool_call_id="c", delta=text))
    (frame,) = sse.parse([encoder.encode(ToolCallEnd(tool_call_id="c"))])
    assert json.loads(frame["data"])["type"] == "tool-input-error"
