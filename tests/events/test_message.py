"""Folding, by runs that mean something alone; test_real_client compares it with the client."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot

from events import message
from events import vocabulary as v
from events.message import Folder, fold, to_dicts, to_models
from events.patch import PatchError, apply_patch
from events.run_output import FinishedCall, RunOutput

START = v.RunStarted(thread_id="t", run_id="r")


def weather_run() -> list[v.Event]:
    return [
        START,
        v.ReasoningStart(message_id="r1"),
        v.ReasoningMessageStart(message_id="r1", role="reasoning"),
        v.ReasoningMessageContent(message_id="r1", delta="Look it "),
        v.ReasoningMessageContent(message_id="r1", delta="up."),
        v.ReasoningMessageEnd(message_id="r1"),
        v.ReasoningEncryptedValue(subtype="message", entity_id="r1", encrypted_value="sealed"),
        v.ReasoningEnd(message_id="r1"),
        v.TextMessageStart(message_id="m1", role="assistant"),
        v.TextMessageContent(message_id="m1", delta="One moment."),
        v.TextMessageEnd(message_id="m1"),
        v.ToolCallStart(tool_call_id="c1", tool_call_name="get_weather", parent_message_id="m1"),
        v.ToolCallArgs(tool_call_id="c1", delta='{"city":'),
        v.ToolCallArgs(tool_call_id="c1", delta='"Oslo"}'),
        v.ToolCallEnd(tool_call_id="c1"),
        v.ToolCallStart(tool_call_id="c2", tool_call_name="change_background", parent_message_id="m1"),
        v.ToolCallEnd(tool_call_id="c2"),
        v.ToolCallResult(message_id="t1", tool_call_id="c1", content="grey"),
        v.RunFinished(
            thread_id="t",
            run_id="r",
            usage=[v.TokenUsage(model="a", input_tokens=3, output_tokens=2), v.TokenUsage(model="b", input_tokens=4)],
            metadata={"finishReason": "tool_calls", "warnings": ["seed ignored"]},
        ),
    ]


def test_a_run_with_reasoning_text_and_tools():
    folder = fold(weather_run(), messages=[{"id": "u", "role": "user", "content": "Oslo?"}])
    assert folder.messages == snapshot(
        [
            {"id": "u", "role": "user", "content": "Oslo?"},
            {"id": "r1", "role": "reasoning", "content": "Look it up.", "encryptedValue": "sealed"},
            {
                "id": "m1",
                "role": "assistant",
                "content": "One moment.",
                "toolCalls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                    },
                    {"id": "c2", "type": "function", "function": {"name": "change_background", "arguments": ""}},
                ],
            },
            {"id": "t1", "toolCallId": "c1", "role": "tool", "content": "grey"},
        ]
    )
    assert to_dicts(to_models(folder.messages)) == [message | {} for message in folder.messages]


def test_the_answer_of_a_run():
    answer = fold(weather_run(), messages=[{"id": "u", "role": "assistant", "content": "before"}]).output()
    assert answer == RunOutput(
        text="One moment.",
        reasoning="Look it up.",
        tool_calls=(
            FinishedCall(id="c1", name="get_weather", arguments='{"city":"Oslo"}'),
            FinishedCall(id="c2", name="change_background", arguments=""),
        ),
    )


def test_a_failed_run_keeps_what_it_said():
    events = [*weather_run()[:4], v.RunError(message="The engine is gone.", code="connection")]
    answer = fold(events).output()
    assert answer.reasoning == "Look it "


def test_reading_in_mid_stream_changes_nothing():
    whole, watched = Folder(), Folder()
    for event in weather_run():
        whole.add(event)
        watched.add(event)
        assert watched.messages is watched.messages
        watched.output()
    assert watched.messages == whole.messages
    assert watched.output() == whole.output()


def test_the_messages_handed_in_are_not_changed():
    before = [{"id": "m1", "role": "assistant", "content": "Hi", "metadata": {"k": 1}}]
    folder = fold(
        [
            START,
            v.TextMessageStart(message_id="m1"),
            v.TextMessageContent(message_id="m1", delta="!", metadata={"k": 2}),
        ],
        before,
    )
    assert folder.messages == [{"id": "m1", "role": "assistant", "content": "Hi!", "metadata": {"k": 2}}]
    assert before == [{"id": "m1", "role": "assistant", "content": "Hi", "metadata": {"k": 1}}]


def test_a_snapshot_keeps_reasoning_that_it_does_not_know_of():
    events = [
        *weather_run()[:-1],
        v.MessagesSnapshot(messages=[{"id": "m1", "role": "assistant", "content": "Short."}]),
    ]
    assert [(message["id"], message["content"]) for message in fold(events).messages] == [
        ("r1", "Look it up."),
        ("m1", "Short."),
    ]


def test_state_is_patched_whole_or_not_at_all():
    folder = Folder(state={"steps": []})
    first = {"op": "add", "path": "/steps/-", "value": "one"}
    folder.add(START)
    folder.add(v.StateDelta(delta=[first]))
    folder.add(v.StateDelta(delta=[first, {"op": "replace", "path": "/nowhere", "value": 1}]))
    assert folder.state == {"steps": ["one"]}
    assert len(folder.issues) == 1


def test_an_interrupt_is_open_until_a_run_ends_without_it():
    ask = v.Interrupt(id="i", reason="tool_call")
    folder = fold([START, v.RunFinished(thread_id="t", run_id="r", outcome=v.InterruptOutcome(interrupts=[ask]))])
    assert folder.interrupts == [ask]
    folder.add(START)
    folder.add(v.RunFinished(thread_id="t", run_id="r"))
    assert folder.interrupts == []


@pytest.mark.parametrize(
    ("start", "delta", "held"),
    [
        (v.TextMessageStart(message_id="m"), v.TextMessageContent(message_id="m", delta="abcd"), "content"),
        (
            v.ToolCallStart(tool_call_id="m", tool_call_name="f"),
            v.ToolCallArgs(tool_call_id="m", delta="abcd"),
            "arguments",
        ),
    ],
)
def test_deltas_are_joined_once_when_they_are_read_and_not_one_by_one(start, delta, held, monkeypatch):
    joined = []
    settle = message._Text.settle
    monkeypatch.setattr(message._Text, "settle", lambda text: (joined.append(len(text.deltas)), settle(text)))
    folder = fold([START, start, *[delta] * 1000])
    assert joined == []
    (made,) = folder.messages
    assert (made["content"] if held == "content" else made["toolCalls"][0]["function"][held]) == "abcd" * 1000
    assert joined == [1001]


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        ({}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}, {"op": "add", "path": "/a/0", "value": 0}], {"a": [0, 1, 2]}),
        ({"a": {"b/~": 1}}, [{"op": "replace", "path": "/a/b~1~0", "value": 2}], {"a": {"b/~": 2}}),
        ({"a": [1, 2, 3]}, [{"op": "move", "from": "/a/0", "path": "/a/2"}], {"a": [2, 3, 1]}),
        ({"a": {"x": []}}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/x/-", "value": 1}], {"a": {"x": []}, "b": {"x": [1]}}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1.0}, {"op": "remove", "path": "/a"}], {}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": [1]}], [1]),
        ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
    ],
)  # fmt: skip
def test_patches_apply(document, patch, expected):
    kept = repr(document)
    assert apply_patch(document, patch) == expected
    assert repr(document) == kept


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/none"},
        {"op": "replace", "path": "/a/5", "value": 1},
        {"op": "add", "path": "/a/3", "value": 1},
        {"op": "add", "path": "/a/x", "value": 1},
        {"op": "add", "path": "/none/x", "value": 1},
        {"op": "test", "path": "/a/0", "value": True},
        {"op": "add", "path": "/b"},
        {"op": "add", "path": "b", "value": 1},
        {"op": "move", "from": "/a", "path": "/a/0"},
        {"op": "move", "from": "", "path": "/b"},
        {"op": "add", "path": "/__proto__/x", "value": 1},
        {"op": "increment", "path": "/a", "value": 1},
    ],
)
def test_patches_that_do_not_fit_are_refused(operation):
    with pytest.raises(PatchError):
        apply_patch({"a": [1]}, [operation])
