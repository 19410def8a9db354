"""What a user does on a surface becomes a call and its result."""

from __future__ import annotations

import json

import pytest

from adapters import agui, copilotkit
from adapters.errors import RequestError

ACTION = {
    "name": "book",
    "surfaceId": "s",
    "sourceComponentId": "send",
    "context": {"name": "Ada"},
    "timestamp": "2026-01-01T00:00:00Z",
}


def inbound(action):
    said = [{"id": "u", "role": "user", "content": "a form"}, {"id": "a", "role": "assistant", "content": "Here."}]
    body = {"threadId": "t", "runId": "r", "messages": said, "tools": [], "context": [], "state": {}}
    return agui.from_wire({**body, "forwardedProps": {"a2uiAction": action}})


def test_an_action_is_told_as_a_call_and_its_result_behind_the_conversation():
    *before, made, told = inbound({"userAction": ACTION}).input.messages
    assert [each.id for each in before] == ["u", "a"]
    (call,) = made.tool_calls
    assert (made.id, call.id, told.id, told.tool_call_id) == (
        "r-action", "r-action-call", "r-action-result", "r-action-call",
    )  # fmt: skip
    assert call.function.name == "log_a2ui_event" and json.loads(call.function.arguments) == ACTION
    assert told.content == ('User performed action "book" on surface "s" (component: send). Context: {"name":"Ada"}')


def test_a_short_action_is_told_too():
    told = inbound({"userAction": {"name": "go"}}).input.messages[-1]
    assert told.content == 'User performed action "go" on surface "unknown_surface". Context: {}'


@pytest.mark.parametrize("action", [{}, {"userAction": "book"}, {"userAction": {"surfaceId": "s"}}, "book"])
def test_an_action_without_a_name_is_refused(action):
    with pytest.raises(RequestError, match="userAction must be an object with a name"):
        inbound(action)


def test_a_run_without_an_action_is_left_alone():
    assert len(inbound(None).input.messages) == 2


def test_a_page_that_comes_back_is_shown_no_calls_of_actions():
    said = [each.model_dump(mode="json", by_alias=True) for each in inbound({"userAction": ACTION}).input.messages]
    call = {"id": "c", "type": "function", "function": {"name": "other", "arguments": "{}"}}
    others = [{"id": "b", "role": "assistant", "toolCalls": [call]}, {"id": "d", "role": "tool", "toolCallId": "c"}]
    head = copilotkit.replay_head(copilotkit.History(thread_id="t", messages=[*said, *others]))
    assert [each["id"] for each in head[1].messages] == ["u", "a", "b", "d"]
