"""What older clients are sent, held against the schemas and the behaviour of the one in the field."""

from __future__ import annotations

import base64

import pytest

from adapters.agui import SseEncoder, downgrade
from adapters.agui_protobuf import ProtobufEncoder
from events import vocabulary as v
from events.encode import to_wire
from tests.conformance.samples import EVENT_TYPES, examples

START = v.RunStarted(thread_id="t", run_id="r", protocol_version="1.0")
RESULT = v.ToolCallResult(
    message_id="t1",
    tool_call_id="c",
    content=[
        {"type": "text", "text": "ok"},
        {"type": "image", "source": {"type": "url", "value": "https://example.org"}},
    ],
)
CALL = [v.ToolCallStart(tool_call_id="c", tool_call_name="f"), v.ToolCallEnd(tool_call_id="c")]


@pytest.fixture(scope="module")
def checked(node_clients):
    shown = [downgrade(event) for event in examples(20, seed=5)]
    wires = [to_wire(event) for event in shown if event is not None]
    return list(zip(wires, node_clients.run("schema.mjs", [{"event": wire} for wire in wires]), strict=True))


def test_every_event_type_passes_the_old_schemas(checked):
    assert {wire["type"] for wire, _ in checked} == {str(kind.__struct_config__.tag) for kind in EVENT_TYPES}
    wrong = [(wire, theirs["error"]) for wire, theirs in checked if not theirs["ok"]]
    assert not wrong, f"{len(wrong)} of {len(checked)}; the first: {min(wrong, key=lambda each: len(str(each)))}"


def test_what_the_old_client_rejects_is_left_out():
    success = v.SuccessOutcome(pending_tool_call_ids=["c"])
    assert downgrade(v.RunFinished(thread_id="t", run_id="r", outcome=success)).outcome is None
    assert downgrade(RESULT).content == "ok\n[image content that this client cannot show]"
    cancelled = v.RunFinished(
        thread_id="t", run_id="r", outcome=v.CancelledOutcome(), usage=[v.TokenUsage(input_tokens=1)]
    )
    assert downgrade(cancelled) == v.RunError(message="The run was cancelled.", code="cancelled", usage=cancelled.usage)
    snapshot = v.MessagesSnapshot(messages=[{"id": "t", "role": "tool", "toolCallId": "c", "content": RESULT.content}])
    assert isinstance(downgrade(snapshot).messages[0]["content"], str)


def test_what_it_knows_passes_untouched():
    interrupt = v.InterruptOutcome(interrupts=[v.Interrupt(id="i", reason="tool_call")])
    for event in (START, *CALL, v.RunFinished(thread_id="t", run_id="r", outcome=interrupt)):
        assert downgrade(event) is event


RUNS = {
    "success with pending calls": [START, *CALL, v.RunFinished(thread_id="t", run_id="r", outcome=v.SuccessOutcome(pending_tool_call_ids=["c"]))],
    "a result as parts": [START, *CALL, RESULT, v.RunFinished(thread_id="t", run_id="r")],
    "cancelled": [START, v.RunFinished(thread_id="t", run_id="r", outcome=v.CancelledOutcome())],
    "a subagent": [START, v.SubagentStarted(subagent_run_id="s", name="n"), v.SubagentFinished(subagent_run_id="s", outcome=v.SuspendedOutcome(interrupt_ids=["i"])), v.RunFinished(thread_id="t", run_id="r")],
}  # fmt: skip


@pytest.mark.parametrize(("client", "legacy", "binary"), [("1.0.0", False, False), ("0.0.59", True, False), ("1.0.0", False, True)])  # fmt: skip
def test_both_clients_take_whole_runs_without_a_word(node_clients, client, legacy, binary):
    encoder = ProtobufEncoder() if binary else SseEncoder(legacy=legacy)
    entries = []
    for name, events in RUNS.items():
        body = b"".join(encoder.encode(event, sequence=i) for i, event in enumerate(events, 1)) + encoder.finish()
        entries.append(
            {"id": name, "client": client, "contentType": encoder.content_type, "body": base64.b64encode(body).decode()}
        )
    for answer in node_clients.run("replay.mjs", entries):
        assert (answer["verdict"], answer["console"]) == ("accepts", []), answer
        assert len(answer["events"]) == len(RUNS[answer["id"]])


def test_the_downgrade_is_needed(node_clients):
    """Were it not, the old client would take the runs as they are, and this file could go."""
    entries = [
        {"id": name, "client": "0.0.59", "stream": [to_wire(event) for event in events]}
        for name, events in RUNS.items()
    ]
    verdicts = {answer["id"]: answer["verdict"] for answer in node_clients.run("replay.mjs", entries)}
    assert {name for name, verdict in verdicts.items() if verdict == "rejects"} >= {
        "success with pending calls",
        "a result as parts",
        "cancelled",
    }
