"""Whatever a text is cut into, nothing that a guard forbids leaves, on any wire, and what stands before it does."""

import asyncio
import contextlib
import json
from typing import get_args

import msgspec
import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.agents.guardrails import GuardedStream, Guards, HookGuard, PatternGuard
from agent_server.agents.guardrails.guard import MAX_HELD, Forbidden, UncheckablePattern, prefix_regex
from agent_server.agents.guardrails.guarded_stream import DELTAS, WHOLE, JsonUnescaper
from events.chunks import KIND
from events.vocabulary import (
    Event,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunFinished,
    RunStarted,
    SubagentStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)
from tests.adapters import wires
from tests.garbage import left_in_cycles

PATTERNS = [r"sec(ret)+", r"\bab{1,3}c\b", r"(a|b)*cc$", r"x[yz]+x", r"(?m)^no", "a.b", r"\d{4}", r"(?:b|ca)??sec"]
PIECES = st.lists(st.sampled_from(["a", "b", "c", "x", "y", "sec", "ret", "\n", " ", "no", "1", "é"]), max_size=12)
CUTS = st.lists(st.integers(1, 5), min_size=1, max_size=40)


def cut(text: str, cuts: list[int]) -> list[str]:
    parts: list[str] = []
    for number in range(len(text)):
        size = cuts[number % len(cuts)]
        if not text:
            break
        parts.append(text[:size])
        text = text[size:]
    return parts


async def through(guards: Guards, events: list[Event]) -> list[Event]:
    """What leaves, with the ends of what was begun."""
    stream, sent = GuardedStream(guards), list[Event]()
    for event in events:
        sent += await stream.take(event)
        if stream.forbidden is not None:
            return sent + stream.closing()
    return sent


def deltas(events: list[Event]) -> str:
    return "".join(getattr(event, "delta", "") for event in events)


def message(parts: list[str]) -> list[Event]:
    middle = [TextMessageContent(message_id="m", delta=part) for part in parts]
    return [TextMessageStart(message_id="m", role="assistant"), *middle, TextMessageEnd(message_id="m")]


@given(st.sampled_from(PATTERNS), PIECES, CUTS)
def test_what_leaves_is_what_stands_before_the_first_match(pattern, pieces, cuts):
    text = "".join(pieces)
    found = re2.search(f"(?i){pattern}", text)
    guards = Guards([PatternGuard("g", patterns=[pattern])])
    assert deltas(asyncio.run(through(guards, message(cut(text, cuts))))) == (
        text if not found else text[: found.start()]
    )


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_beginnings_of_a_match_are_those_of_the_match(pattern):
    begun = re2.compile(f"(?:{prefix_regex(pattern)})")
    for text in ("secret", "secretret", "abbc", "acc", "bcc", "xyzx", "no", "axb", "1234", "sec", "bsec", "casec"):
        if re2.fullmatch(pattern, text):
            assert all(begun.fullmatch(text[:length]) for length in range(1, len(text) + 1))


@pytest.mark.parametrize("pattern", [r"a(?=b)", r"(a)\1", r"\p{Greek}", "", r"\b", "a*"])
def test_a_pattern_that_cannot_be_watched_for_is_refused(pattern):
    with pytest.raises(ValueError, match=r"cannot|matches|does not take|RE2"):
        PatternGuard("g", patterns=[pattern])


def test_refusals_of_patterns_are_of_one_kind():
    assert issubclass(UncheckablePattern, ValueError)


def run_of(reasoning: list[str], text: list[str], arguments: list[str]) -> list[Event]:
    thought = [ReasoningMessageContent(message_id="r", delta=part) for part in reasoning]
    called = [ToolCallArgs(tool_call_id="c", delta=part) for part in arguments]
    return [
        ReasoningStart(message_id="r"),
        ReasoningMessageStart(message_id="r", role="reasoning"),
        *thought,
        ReasoningMessageEnd(message_id="r"),
        ReasoningEnd(message_id="r"),
        *message(text),
        ToolCallStart(tool_call_id="c", tool_call_name="note", parent_message_id="m"),
        *called,
        ToolCallEnd(tool_call_id="c"),
    ]


SAID = st.lists(st.sampled_from(["Blue", "Heron", " ", "blue ", "the ", "he", "r", "on", "\n", "."]), max_size=10)
PHRASE = re2.compile(r"(?i)blue\s+heron")


@settings(max_examples=150)
@given(SAID, SAID, SAID, CUTS)
def test_no_forbidden_text_leaves_on_any_wire(reasoning, text, note, cuts):
    guards = Guards([PatternGuard("g", phrases=["blue heron"])])
    arguments = json.dumps({"note": "".join(note)})
    events = run_of(*(cut(each, cuts) for each in ("".join(reasoning), "".join(text), arguments)))
    sent = asyncio.run(through(guards, events))
    forbidden = len(deltas(sent)) < len(deltas(events))
    reason = "content_filter" if forbidden else "tool_calls"
    end = RunFinished(thread_id="t", run_id="r", metadata={"finishReason": reason})
    whole: list[Event] = [RunStarted(thread_id="t", run_id="r"), *sent, end]
    assert forbidden == any(PHRASE.search("".join(each)) for each in (reasoning, text, note))
    for hear in (wires.chat_streamed, wires.chat_whole, wires.responses_streamed, wires.responses_whole,
                 wires.anthropic_streamed, wires.anthropic_whole, wires.generate_streamed, wires.generate_whole):  # fmt: skip
        heard = hear(whole)
        for said in (heard.text, heard.reasoning, *(call[2] for call in heard.calls)):
            assert not PHRASE.search(said.replace("\\n", "\n"))


def test_half_of_it_does_not_leave_and_what_only_begins_alike_does():
    guards = Guards([PatternGuard("g", phrases=["blue heron"])])
    sent = asyncio.run(through(guards, message(["The Blu", "e ", "H", "eron flies"])))
    assert deltas(sent) == "The "
    assert deltas(asyncio.run(through(guards, message(["The blu", "e H", "arrier", " flies, blue h"])))).endswith(
        "blue h"
    )


@pytest.mark.parametrize("space", ["\u00a0", "\x0b", "\u2009\u3000", "\x85 \n"])
def test_any_white_space_stands_for_the_space_of_a_phrase(space):
    guards = Guards([PatternGuard("g", phrases=["blue heron"])])
    assert deltas(asyncio.run(through(guards, message(["a blue", space, "her", "on"])))) == "a "


def test_a_text_that_two_messages_share_does_not_leave():
    guards = Guards([PatternGuard("g", phrases=["blue heron"])])
    assert not PHRASE.search(deltas(asyncio.run(through(guards, [*message(["a blue "]), *message(["heron"])]))))


@pytest.mark.parametrize(
    "written",
    [r'{"a": "blue\u0020heron"}', r'{"a": "bl\u0075e\nheron"}', '{"a": "blue', r'{"a": "\ud83dblue heron"}'],
)
def test_arguments_are_read_as_the_tool_gets_them(written):
    guards = Guards([PatternGuard("g", phrases=["blue heron"])])
    events = [ToolCallArgs(tool_call_id="c", delta=each) for each in written]
    sent = deltas(asyncio.run(through(guards, [*events, ToolCallEnd(tool_call_id="c")])))
    assert sent == (written if written.endswith("blue") else written[: written.index("bl")])


@given(st.text(max_size=20), CUTS)
def test_escapes_are_undone_as_json_undoes_them(text, cuts):
    read = JsonUnescaper()
    said = "".join(read.read(part) for part in cut(json.dumps(text)[1:-1], cuts))
    assert said == text


def test_what_stays_undecided_for_too_long_counts_as_found():
    guards = Guards([PatternGuard("g", patterns=[r"BEGIN[a-z]*END"])])
    sent = asyncio.run(through(guards, message(["so BEGIN", *["a" * 100] * (MAX_HELD // 100 + 1), "!"])))
    assert deltas(sent) == "so "


def test_a_hook_is_asked_by_sentences_and_what_it_was_not_asked_about_waits():
    asked: list[str] = []

    async def forbids(text: str) -> bool:
        asked.append(text)
        return "bad" in text

    sent = asyncio.run(
        through(Guards([HookGuard("h", forbids)]), message(["One. ", "Tw", "o. ", "A bad", " one", ". "]))
    )
    assert asked == ["One. ", "One. Two. ", "One. Two. A bad one. "]
    assert deltas(sent) == "One. Two. "


def test_a_guard_that_only_notes_lets_everything_through(caplog):
    guards = Guards([PatternGuard("g", phrases=["blue"], stops=False)])
    assert deltas(asyncio.run(through(guards, message(["a blu", "e one, blue"])))) == "a blue one, blue"
    assert [record.getMessage() for record in caplog.records] == ["the guard g found something in: text (let through)"]


NO_TEXT = {
    "timestamp", "raw_event", "metadata", "subagent_run_id", "thread_id", "run_id", "protocol_version",
    "parent_run_id", "message_id", "role", "name", "tool_call_id", "step_name", "parent_subagent_run_id",
    "parent_tool_call_id", "parent_message_id", "entity_id", "subtype",
}  # fmt: skip
"""Fields of ids, and of names that whoever wrote the agent gave."""
NOT_SAID = {"RUN_STARTED": {"input"}, "REASONING_ENCRYPTED_VALUE": {"encrypted_value"}}
"""What was read as a request, and what nobody can read."""


@pytest.mark.parametrize("field", ["name", "description"])
async def test_what_a_subagent_is_called_is_read_and_its_ids_are_not(field: str):
    guards = Guards([PatternGuard("g", patterns=["heron"])])
    begun = SubagentStarted(subagent_run_id="heron", name="inner", description="Looks.", parent_tool_call_id="heron")
    told = msgspec.structs.replace(begun, **{field: "Knows the heron."})
    assert await through(guards, [begun]) == [begun] and await through(guards, [told]) == []


@pytest.mark.parametrize(
    "event",
    [
        TextMessageContent(message_id="m", delta="the heron flies"),
        SubagentStarted(subagent_run_id="s", name="heron", parent_tool_call_id="c"),
    ],
    ids=["text", "name"],
)
async def test_what_was_stopped_is_not_kept_by_its_own_refusal(event: Event):
    """A refusal that the stream holds, and whose traceback holds the stream, keeps the whole run."""

    async def stop() -> None:
        stream = GuardedStream(Guards([PatternGuard("g", patterns=["heron"])]))
        with contextlib.suppress(Forbidden):
            await stream.take(event)
            stream.raise_forbidden()
            raise AssertionError("it was let through")

    with left_in_cycles() as found:
        await stop()
    assert not [each for each in found if isinstance(each, Forbidden | GuardedStream)]


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_that_guards_do_not_read_carries_no_text(kind: type[msgspec.Struct]):
    if kind in DELTAS or kind in WHOLE or kind in KIND:  # chunks are expanded before guards see them
        return
    named = {field.name for field in msgspec.structs.fields(kind)}
    assert named <= NO_TEXT | NOT_SAID.get(str(kind.__struct_config__.tag), set())
