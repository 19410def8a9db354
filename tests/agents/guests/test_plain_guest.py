"""Anything with `run(RunAgentInput)` behind all wires; what the server adds to it and mends of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from ag_ui.core import (
    BaseEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from anthropic import AsyncAnthropic
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIStatusError, AsyncOpenAI

from agent_server.agents import LoadError
from agent_server.agents.guests import load_named
from agent_server.agents.guests.event_normalizer import EventNormalizer
from agent_server.agents.guests.in_process import openai_client
from events.encode import to_wire
from events.lifecycle import Verifier
from events.receive import receive
from tests.agents.guests.talking import PAINT, body, events_of, told, user
from tests.dictated import ENGINE
from tests.server import scripted, serving


class Echo:
    """Says what it was told."""

    name = "echo"
    description = "Says it again."

    def __init__(self) -> None:
        self.inputs: list[RunAgentInput] = []

    async def run(self, input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        self.inputs.append(input)
        yield RunStartedEvent(thread_id="other", run_id="other")
        yield TextMessageStartEvent(message_id="m1")
        for word in str(input.messages[-1].content).split():
            yield TextMessageContentEvent(message_id="m1", delta=f"{word}.")
        yield TextMessageEndEvent(message_id="m1")
        yield RunFinishedEvent(thread_id="other", run_id="other", result={"words": 2})


class Sends:
    """Sends the events that it was made with, one list a run."""

    name = "sends"

    def __init__(self, *runs: list[dict[str, Any]]) -> None:
        self.runs = list(runs)
        self.inputs: list[RunAgentInput] = []

    async def run(self, input: RunAgentInput) -> AsyncIterator[Any]:
        self.inputs.append(input)
        for event in self.runs[min(len(self.inputs), len(self.runs)) - 1]:
            yield event


async def test_a_guest_answers_on_every_wire_and_its_ids_are_ours() -> None:
    async with serving(scripted("no"), agents=[Echo()]) as running:
        frames = await events_of(running.url, body(user("two words")))
        assert told(frames) == [("text", "two.words."), ("finished", "success")]
        assert frames[0]["threadId"] == frames[-1]["threadId"] == "t1" and frames[-1]["result"] == {"words": 2}
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            models = [model.id async for model in client.models.list()]
            said = await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "to you"}])
            streamed = [
                chunk.choices[0].delta.content or ""
                async for chunk in await client.chat.completions.create(
                    model="echo", messages=[{"role": "user", "content": "to all"}], stream=True
                )
                if chunk.choices
            ]
            answer = await client.responses.create(model="echo", input="and me")
        async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as claude:
            message = await claude.messages.create(
                model="echo", max_tokens=9, messages=[{"role": "user", "content": "or him"}]
            )
        async with httpx.AsyncClient(base_url=running.url) as plain:
            info = (await plain.get("/copilotkit/info")).json()
            found = (await plain.get("/agui/echo/capabilities")).json()
            refused = await plain.post("/v1/completions", json={"model": "echo", "prompt": "x"})
    assert "echo" in models and said.choices[0].message.content == "to.you."
    assert "".join(streamed) == "to.all." and answer.output_text == "and.me."
    assert message.content[0].type == "text" and message.content[0].text == "or.him."
    assert info["agents"]["echo"]["description"] == "Says it again." and found["identity"]["type"] == "ag-ui"
    assert refused.status_code == 400 and "messages" in refused.json()["error"]["message"]


async def test_message_ids_of_an_earlier_run_are_not_used_again_and_history_is_kept() -> None:
    guest = Echo()
    async with serving(scripted("no"), agents=[guest]) as running:
        first = await events_of(running.url, body(user("one")))
        second = await events_of(running.url, body(user("two", "u2"), run="r2"))
        async with httpx.AsyncClient(base_url=running.url) as client:
            held = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
    starts = [frame["messageId"] for frame in first + second if frame["type"] == "TEXT_MESSAGE_START"]
    assert len(set(starts)) == 2
    assert [each["content"] for each in held] == ["one", "one.", "two", "two."]
    assert [each.content for each in guest.inputs[1].messages] == ["one", "one.", "two"]


async def test_tenants_do_not_share_a_guests_threads() -> None:
    guest = Echo()
    async with serving(scripted("no"), agents=[guest], api_keys=("a:1", "b:2", "3")) as running:
        for key in ("1", "2", "3"):
            await events_of(running.url, body(user("hi")), authorization=f"Bearer {key}")
        await events_of(running.url, body(user("hi"), thread=":a:t1"), authorization="Bearer 3")
    assert len({each.thread_id for each in guest.inputs}) == 4


class Fails:
    name = "fails"

    async def run(self, input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield TextMessageStartEvent(message_id="m1")
        raise ValueError("the password is swordfish")


class Says:
    name = "says"

    async def run(self, input: RunAgentInput) -> AsyncIterator[BaseEvent]:
        yield RunErrorEvent(message="There are no seats left.")


async def test_a_failure_closes_what_is_open_and_keeps_the_exceptions_text() -> None:
    async with serving(scripted("no"), agents=[Fails(), Says()]) as running:
        failed = await events_of(running.url, body(user("hi")), "/agui/fails")
        told_so = await events_of(running.url, body(user("hi"), thread="t2"), "/agui/says")
    assert [frame["type"] for frame in failed] == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_ERROR"
    ]  # fmt: skip
    assert failed[-1]["message"] == "The agent fails failed. The server's log says why."
    assert told_so[-1]["message"] == "There are no seats left."


async def test_stop_ends_a_guest_that_works() -> None:
    ended = asyncio.Event()

    class Works:
        name = "works"

        async def run(self, input: RunAgentInput) -> AsyncIterator[BaseEvent]:
            try:
                yield TextMessageStartEvent(message_id="m1")
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with serving(scripted("no"), agents=[Works()]) as running:
        reading = asyncio.create_task(events_of(running.url, body(user("hi"))))
        while not (runs := running.server.runs.on_thread("t1")) or runs[0].log.last < 2:
            await asyncio.sleep(0.005)
        await runs[0].cancel()
        frames = await reading
        await ended.wait()
    assert frames[-1]["outcome"] == {"type": "cancelled"}


QUESTION = {"id": "q", "reason": "confirmation", "message": "Sure?"}
ASKS = [
    {"type": "RUN_FINISHED", "threadId": "x", "runId": "x", "outcome": {"type": "interrupt", "interrupts": [QUESTION]}}
]


async def test_the_rules_of_interrupts_are_kept_for_a_guest_that_keeps_none() -> None:
    guest = Sends(ASKS, ASKS, [])
    async with serving(scripted("no"), agents=[guest]) as running:

        async def run(number: int, *answers: tuple[str, Any]) -> list[dict[str, Any]]:
            resume = [{"interruptId": id, "status": "resolved", "payload": payload} for id, payload in answers]
            request = body(user("go"), run=f"r{number}", **({"resume": resume} if resume else {}))
            return await events_of(running.url, request)

        first = await run(1)
        without = await run(2)
        unknown = await run(3, ("other", True))
        second = await run(4, ("q", {"ok": 1}))
        again = second[-1]["outcome"]["interrupts"][0]["id"]
        repeated = await run(5, ("q", {"ok": 1}))
        last = await run(6, (again, {"ok": 2}))
    assert [frame["type"] for frame in first][-2:] == ["MESSAGES_SNAPSHOT", "RUN_FINISHED"]
    assert told(without)[-1][0] == told(unknown)[-1][0] == "error"
    assert again != "q" and repeated[-1]["outcome"]["interrupts"][0]["id"] == again
    assert told(last)[-1] == ("finished", "success")
    assert [[(each.interrupt_id, each.payload) for each in input.resume or ()] for input in guest.inputs] == [
        [], [("q", {"ok": 1})], [("q", {"ok": 2})]
    ]  # fmt: skip


async def test_an_interrupt_that_reads_as_success_is_told_as_one() -> None:
    old = [
        {"type": "CUSTOM", "name": "on_interrupt", "value": "Sure?"},
        {"type": "RUN_FINISHED", "threadId": "", "runId": ""},
    ]
    guest = Sends(old, [])
    async with serving(scripted("no"), agents=[guest]) as running:
        first = await events_of(running.url, body(user("go")))
        asked = first[-1]["outcome"]["interrupts"][0]
        resume = [{"interruptId": asked["id"], "status": "resolved", "payload": "yes"}]
        await events_of(running.url, body(user("go"), run="r2", resume=resume))
    assert asked["message"] == "Sure?" and "CUSTOM" not in [frame["type"] for frame in first]
    assert guest.inputs[1].forwarded_props["command"] == {"resume": "yes"}


async def test_a_question_where_nothing_is_kept_is_an_error_and_no_silent_end() -> None:
    async with (
        serving(scripted("no"), agents=[Sends(ASKS)]) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        request = {"model": "sends", "messages": [{"role": "user", "content": "go"}]}
        response = await http.post("/v1/chat/completions", json=request)
    assert response.status_code == 400 and "question" in response.json()["error"]["message"]


CALLS = [
    {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "paint"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": "{}"},
    {"type": "TOOL_CALL_END", "toolCallId": "c1"},
]


async def test_calls_of_the_clients_tools_are_pending_and_made_up_results_dropped() -> None:
    result = {"type": "TOOL_CALL_RESULT", "messageId": "m", "toolCallId": "c1", "content": "forwarded to the client"}
    async with serving(scripted("no"), agents=[Sends([*CALLS, result])]) as running:
        frames = await events_of(running.url, body(user("go"), tools=[PAINT]))
    assert frames[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c1"]}
    assert "TOOL_CALL_RESULT" not in [frame["type"] for frame in frames]


async def test_a_snapshot_that_would_move_a_result_tells_only_what_is_new() -> None:
    result = {"type": "TOOL_CALL_RESULT", "messageId": "c1", "toolCallId": "c1", "content": "done"}
    snapshot = {
        "type": "MESSAGES_SNAPSHOT",
        "messages": [
            {"id": "u1", "role": "user", "content": "go"},
            {"id": "a1", "role": "assistant", "toolCalls": [{"id": "c1", "type": "function", "function": {"name": "paint", "arguments": "{}"}}]},
            {"id": "another", "role": "tool", "toolCallId": "c1", "content": "done"},
            {"id": "a2", "role": "assistant", "content": "Painted."},
        ],
    }  # fmt: skip
    async with serving(scripted("no"), agents=[Sends([*CALLS, result, snapshot])]) as running:
        frames = await events_of(running.url, body(user("go")))
    assert told(frames) == [
        ("call", "paint"),
        ("args", "{}"),
        ("result", "done"),
        ("text", "Painted."),
        ("finished", "success"),
    ]
    assert "MESSAGES_SNAPSHOT" not in [frame["type"] for frame in frames]


EVENTS = [
    {"type": "TEXT_MESSAGE_START", "messageId": "m"}, {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"}, {"type": "TEXT_MESSAGE_CHUNK", "messageId": "k", "delta": "y"},
    {"type": "TEXT_MESSAGE_CHUNK", "delta": "z"}, *CALLS, {"type": "STEP_STARTED", "stepName": "s"},
    {"type": "STEP_FINISHED", "stepName": "s"}, {"type": "THINKING_START"}, {"type": "THINKING_END"},
    {"type": "THINKING_TEXT_MESSAGE_START"}, {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "t"},
    {"type": "THINKING_TEXT_MESSAGE_END"}, {"type": "RAW", "event": {"prompt": "secret"}}, {"type": "UNHEARD_OF"},
    {"type": "TOOL_CALL_RESULT", "messageId": "c1", "toolCallId": "c1", "content": "r"}, {"no": "type"},
    {"type": "STATE_DELTA", "delta": "no list"}, {"type": "RUN_STARTED", "threadId": "a", "runId": "b"}, 7,
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "n", "delta": "x", "rawEvent": {"prompt": "secret"}, "timestamp": None},
]  # fmt: skip


@given(st.lists(st.sampled_from(EVENTS), max_size=30))
@settings(max_examples=150, deadline=None)
def test_whatever_a_guest_sends_the_run_keeps_the_lifecycle(sent: list[Any]) -> None:
    verifier, emitted, count = Verifier(strict=True), [], iter(range(1000))
    start, _ = receive({"type": "RUN_STARTED", "threadId": "t", "runId": "r"})

    def emit(event: Any) -> None:
        verifier.check(event)
        emitted.append(to_wire(event))

    emit(start)
    mender = EventNormalizer(emit, lambda said: None, lambda prefix: f"{prefix}{next(count)}", messages=[])
    for event in sent:
        assert mender.take(event) is None
    checked = Verifier(strict=True)
    for event in verifier.close_open():
        emit(event)
    for wire in emitted:
        found, _ = receive(wire)
        checked.check(found)
    assert "secret" not in str(emitted)


def test_an_agent_whose_run_is_another_one_is_refused_before_it_is_served() -> None:
    crew = type("Crew", (), {"__module__": "crewai.crew", "run": lambda self, text: text})
    with pytest.raises(LoadError, match=r"Agents of crewai cannot run in this server. Serve it .* pass its URL"):
        load_named([], [crew()])


@pytest.mark.parametrize(
    ("imports", "extra"),
    [("llama_index.nothing", "llama-index"), ("agno.nothing", "agno"), ("langgraph.none", "langgraph")],
)
def test_a_framework_that_is_missing_is_named_with_its_extra(tmp_path: Path, imports: str, extra: str) -> None:
    file = tmp_path / "needs_more.py"
    file.write_text(f"import {imports}\n", "utf-8")
    with pytest.raises(LoadError, match=rf"pip install 'agent-server\[{extra}\]'"):
        load_named([f"{file}:agent"])


@pytest.mark.parametrize("wrong", [object(), 3, Echo])
def test_what_is_no_agent_is_refused(wrong: object) -> None:
    with pytest.raises(LoadError, match=r"is not an Agent, a LangGraph graph"):
        load_named([], [wrong])


unnamed = pytest.mark.skipif(bool(ENGINE), reason="an engine is named")


@unnamed
async def test_guests_alone_load_no_model() -> None:
    async with serving(agents=[Echo()], ready=False) as running:
        frames = await events_of(running.url, body(user("two words")))
        async with httpx.AsyncClient(base_url=running.url) as client:
            ready = await client.get("/ready")
        assert running.server.pool is not None
        states = [each.state for each in running.server.pool.describe()]
    assert told(frames) == [("text", "two.words."), ("finished", "success")]
    assert states == ["unloaded"] and ready.status_code == 200


@unnamed
async def test_a_guest_that_asks_for_a_model_where_none_can_be_computed_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Asks:
        name = "asks"

        async def run(self, input: RunAgentInput) -> AsyncIterator[BaseEvent]:
            client = openai_client()
            try:
                await client.chat.completions.create(model="default", messages=[{"role": "user", "content": "hi"}])
            except APIStatusError as error:
                yield RunErrorEvent(message=str(error))

    monkeypatch.setattr("agent_server.model_files.checkpoint_files.LOCAL_PACKAGES", ("a_package_that_is_missing",))
    async with serving(agents=[Asks()], ready=False) as running:
        frames = await events_of(running.url, body(user("hi")))
    assert frames[-1]["type"] == "RUN_ERROR"
    assert "This server has no model" in frames[-1]["message"] and "a_package_that_is_missing" in frames[-1]["message"]


@pytest.mark.parametrize("way", ["context_management", "compaction_trigger"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_guests_conversation_is_not_made_short_here(way: str, stream: bool):
    """A field that it cannot honour is refused by its name; the guest is not run."""
    guest = Echo()
    given: dict[str, Any] = {"model": "echo", "input": [{"role": "user", "content": "hello there"}], "stream": stream}
    if way == "context_management":
        given["context_management"] = [{"type": "compaction", "compact_threshold": 1000}]
    else:
        given["input"].append({"type": "compaction_trigger"})
    async with serving(scripted("no"), agents=[guest]) as running, httpx.AsyncClient(base_url=running.url) as plain:
        answer = await plain.post("/v1/responses", json=given)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "context_management"
    assert "The agent echo manages its conversation itself, so this server cannot compact it." in answer.text
    assert guest.inputs == []
