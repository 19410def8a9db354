"""The rules, each by a stream that means something alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from events import vocabulary as v
from events.encode import from_wire
from events.lifecycle import PHASES, RULES, TABLE, LifecycleError, Verifier
from events.lifecycle_page import table_markdown
from events.message import fold
from tests.conformance.generate import random_stream
from tests.conformance.samples import EVENT_TYPES

START = v.RunStarted(thread_id="t", run_id="r")
FINISH = v.RunFinished(thread_id="t", run_id="r")
ERROR = v.RunError(message="broke", code="internal")


def text(key: str = "m", tag: str | None = None) -> list[v.Event]:
    return [
        v.TextMessageStart(message_id=key, subagent_run_id=tag),
        v.TextMessageContent(message_id=key, delta="x", subagent_run_id=tag),
        v.TextMessageEnd(message_id=key, subagent_run_id=tag),
    ]


def call(key: str = "c", tag: str | None = None, parent: str | None = None) -> list[v.Event]:
    return [
        v.ToolCallStart(tool_call_id=key, tool_call_name="f", parent_message_id=parent, subagent_run_id=tag),
        v.ToolCallEnd(tool_call_id=key, subagent_run_id=tag),
    ]


def sub(key: str, parent: str | None = None) -> v.SubagentStarted:
    return v.SubagentStarted(subagent_run_id=key, name="helper", parent_subagent_run_id=parent)


def verify(events: list[v.Event], *, strict: bool = False) -> Verifier:
    verifier = Verifier(strict=strict)
    for event in events:
        verifier.check(event)
    return verifier


LEGAL = {
    "an empty run": [START, FINISH],
    "a run that fails before it starts": [ERROR],
    "two runs in one stream": [START, FINISH, START, FINISH],
    "a run after a failed one": [START, ERROR, START, FINISH],
    "a failure after the end": [START, FINISH, ERROR],
    "a failure leaves things open, the next run starts clean": [START, text()[0], ERROR, START, text()[0], text()[2], FINISH],
    "a closed message is reopened": [START, *text(), *text(), FINISH],
    "message, call and span share an id": [START, text("x")[0], call("x")[0], v.ReasoningStart(message_id="x"), v.ReasoningEnd(message_id="x"), call("x")[1], text("x")[2], FINISH],
    "parent and subagent have the same step": [START, sub("s"), v.StepStarted(step_name="a"), v.StepStarted(step_name="a", subagent_run_id="s"), v.StepFinished(step_name="a", subagent_run_id="s"), v.StepFinished(step_name="a"), v.SubagentFinished(subagent_run_id="s"), FINISH],
    "a tag without a subagent's lifecycle": [START, *text(tag="s"), FINISH],
    "a call without a tag inherits its message's owner": [START, *text("m", "s"), v.ToolCallStart(tool_call_id="c", tool_call_name="f", parent_message_id="m"), v.ToolCallEnd(tool_call_id="c", subagent_run_id="s"), FINISH],
    "a subagent's parent may have ended": [START, sub("a"), v.SubagentFinished(subagent_run_id="a"), sub("b", "a"), v.SubagentError(subagent_run_id="b", message="no"), FINISH],
    "chunks end with the run": [START, v.TextMessageChunk(message_id="m", delta="a"), v.TextMessageChunk(delta="b"), FINISH],
    "RAW does not end a stream of chunks": [START, v.TextMessageChunk(message_id="m"), v.Raw(event=1), v.TextMessageChunk(delta="b"), FINISH],
    "chunks of two producers interleave": [START, v.TextMessageChunk(message_id="m", delta="a"), v.TextMessageChunk(message_id="n", subagent_run_id="s"), v.TextMessageChunk(delta="b"), v.TextMessageChunk(delta="c", subagent_run_id="s"), FINISH],
    "a value for something unknown": [START, v.ReasoningEncryptedValue(subtype="message", entity_id="?", encrypted_value="e"), FINISH],
    "a snapshot hands a message over": [START, v.MessagesSnapshot(messages=[{"id": "m", "role": "user", "content": "", "subagentRunId": "s"}]), *text("m", "s"), FINISH],
}  # fmt: skip
ILLEGAL = {
    "first-event": [text()[0]],
    "run-active": [START, START],
    "run-finished": [START, FINISH, text()[0]],
    "run-failed": [START, ERROR, FINISH],
    "already-open": [START, text()[0], text()[0]],
    "not-open": [START, text()[1]],
    "left-open": [START, v.ReasoningStart(message_id="r"), FINISH],
    "owner": [START, text("m", "s")[0], v.TextMessageContent(message_id="m", delta="x", subagent_run_id="z")],
    "subagent-reused": [START, sub("s"), v.SubagentFinished(subagent_run_id="s"), sub("s")],
    "subagent-parent": [START, sub("s", "nobody")],
    "chunk-first": [START, v.ToolCallChunk(tool_call_id="c", delta="{")],
    "chunk-disagrees": [START, v.TextMessageChunk(message_id="m"), v.TextMessageChunk(role="user")],
    "chunk-ambiguous": [START, v.TextMessageChunk(message_id="m", subagent_run_id="a"), v.TextMessageChunk(message_id="n", subagent_run_id="b"), v.TextMessageChunk(delta="?")],
    "run-identity": [START, v.RunFinished(thread_id="t", run_id="another")],
    "interrupt-identity": [START, v.RunFinished(thread_id="t", run_id="r", outcome=v.InterruptOutcome(interrupts=[v.Interrupt(id="i", reason="tool_call")] * 2))],
}  # fmt: skip
MORE_ILLEGAL = [
    ("not-open", [START, v.StepFinished(step_name="a")]),
    ("not-open", [START, v.StepStarted(step_name="a"), v.StepFinished(step_name="a", subagent_run_id="s")]),
    ("not-open", [START, v.ReasoningMessageContent(message_id="r", delta="x")]),
    ("not-open", [START, v.SubagentFinished(subagent_run_id="s")]),
    ("not-open", [START, v.ReasoningStart(message_id="r"), v.ReasoningMessageEnd(message_id="r")]),
    ("left-open", [START, sub("s"), FINISH]),
    ("left-open", [START, v.StepStarted(step_name="a"), FINISH]),
    ("left-open", [START, call()[0], FINISH]),
    ("chunk-first", [START, v.TextMessageChunk(delta="x")]),
    ("chunk-first", [START, v.TextMessageChunk(message_id="m"), v.Custom(name="n", value=1), v.TextMessageChunk(delta="x")]),
    ("chunk-disagrees", [START, v.ToolCallChunk(tool_call_id="c", tool_call_name="f"), v.ToolCallChunk(tool_call_name="g")]),
    ("owner", [START, *text("m", "s"), v.ToolCallStart(tool_call_id="c", tool_call_name="f", parent_message_id="m", subagent_run_id="z")]),
    ("owner", [START, *text("m"), v.TextMessageStart(message_id="m", subagent_run_id="s")]),
    ("owner", [START, v.ActivitySnapshot(message_id="a", activity_type="x", content={}), v.ActivityDelta(message_id="a", activity_type="x", patch=[], subagent_run_id="s")]),
    ("owner", [START, *call(), v.ReasoningEncryptedValue(subtype="tool-call", entity_id="c", encrypted_value="e", subagent_run_id="s")]),
    ("run-active", [START, text()[0], START]),
]  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_streams_pass(name):
    verify(LEGAL[name], strict=True)


@pytest.mark.parametrize(("rule", "events"), [*ILLEGAL.items(), *MORE_ILLEGAL])
def test_each_rule_is_broken_by_its_last_event_alone(rule, events):
    verifier = verify(events[:-1], strict=True)
    with pytest.raises(LifecycleError) as caught:
        verifier.check(events[-1])
    assert caught.value.rule == rule


def test_every_rule_has_a_stream_that_breaks_it():
    assert ILLEGAL.keys() == RULES.keys()


def test_the_rules_of_the_coming_draft_are_asked_for_by_name():
    for rule in ("run-identity", "interrupt-identity"):
        verify(ILLEGAL[rule], strict=False)


def test_every_event_type_is_in_the_table():
    chunks = {v.TextMessageChunk, v.ToolCallChunk, v.ReasoningMessageChunk}
    assert set(TABLE) == set(EVENT_TYPES) - chunks
    assert PHASES["running"] == set(EVENT_TYPES) - {v.RunStarted}


def test_closing_what_is_open_goes_from_the_inside_out():
    verifier = verify(
        [
            START,
            v.StepStarted(step_name="answer"),
            sub("s"),
            v.ReasoningStart(message_id="r", subagent_run_id="s"),
            v.ReasoningMessageStart(message_id="r", role="reasoning", subagent_run_id="s"),
            call("c", "s")[0],
            text("m")[0],
        ]
    )
    assert verifier.close_open("Cancelled.") == [
        v.TextMessageEnd(message_id="m"),
        v.ToolCallEnd(tool_call_id="c", subagent_run_id="s", metadata={"incomplete": True}),
        v.ReasoningMessageEnd(message_id="r", subagent_run_id="s"),
        v.ReasoningEnd(message_id="r", subagent_run_id="s"),
        v.SubagentError(subagent_run_id="s", message="Cancelled."),
        v.StepFinished(step_name="answer"),
    ]


@pytest.mark.parametrize("seed", range(60))
def test_any_run_can_be_cut_anywhere_and_closed_legally(seed):
    rng = random.Random(seed)
    stream = [from_wire(wire) for wire in random_stream(rng, fault=0)]
    verifier = Verifier()
    for event in stream[: rng.randint(0, len(stream))]:
        verifier.check(event)
    if verifier.phase != "running":
        return
    for event in verifier.close_open():
        verifier.check(event)
    assert verifier.close_open() == []
    verifier.check(FINISH)


def test_checking_costs_the_same_at_the_end_of_a_long_message():
    """Nothing that the verifier or the folder keeps grows with the number of deltas of one message."""
    verifier = verify([START, text()[0]])
    sizes = []
    for _ in range(3):
        for _ in range(100):
            verifier.check(text()[1])
        sizes.append((len(verifier._open), sum(map(len, verifier._owners.values()))))
    assert len(set(sizes)) == 1
    assert fold([START, text()[0], *[text()[1]] * 300, text()[2], FINISH]).output().text == "x" * 300


def test_the_page_in_the_documentation_is_the_table():
    page = Path(__file__).parents[2] / "docs" / "lifecycle.md"
    assert page.read_text("utf-8") == table_markdown(), "run: python -m events.lifecycle_page > docs/lifecycle.md"
