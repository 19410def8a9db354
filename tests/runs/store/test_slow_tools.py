"""A run that waits in a slow tool outlives its server: it goes on at the next one, and does nothing dangerous twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from adapters.errors import RequestError
from agent_server.agents import Agent, tool
from agent_server.agents.checkpoints import RunCheckpoint, encode_checkpoint, read_checkpoint
from agent_server.agents.interrupts import UNKNOWN
from agent_server.agents.running import Activity, CallResult
from agent_server.runs.driver import RESUMES_LATER
from agent_server.runs.store import KeptRecord, Store, StoreUnavailable
from events.options import GenerationOptions, ResponseFormat, SamplingParams, ToolChoice
from events.vocabulary import (
    InterruptOutcome,
    RunError,
    RunFinished,
    RunStarted,
    StateSnapshot,
    TextMessageContent,
    TokenUsage,
    ToolCallResult,
)
from tests.agents.harness import House, names, of
from tests.agents.models import Model, call
from tests.runs.store.slow import Kind, agent, kept
from tests.server import scripted, serving

ROOT = Path(__file__).parents[3]
DONE = "It is done."


def killed(url: str, file: Path, kind: Kind) -> None:
    """A server that was killed with -9 while its run waited."""
    command = [sys.executable, "-m", "tests.runs.store.slow", url, str(file), kind]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "kept\n"
    process.kill()
    process.stdout.close()
    assert process.wait() == -9


async def test_a_call_that_may_be_made_twice_is_made_again_after_a_kill(url: str, tmp_path: Path):
    file, store = tmp_path / "reports", Store(url)
    killed(url, file, "idempotent")
    async with House(agent(file, "idempotent", ends=True), Model([DONE]), store, first_id=1000) as house:
        assert [each.status for each in await store.runs("", "t")] == ["running"]
        await house.manager.resume_orphans()
        run = house.manager.get("run_1")
        events = await house.follow(run)
        assert names(events) == [
            "RunStarted", "StateSnapshot", "StepStarted", "TextMessageStart", "TextMessageContent", "TextMessageEnd",
            "ToolCallStart", "ToolCallArgs", "ToolCallEnd", "ToolCallStart", "ToolCallArgs", "ToolCallEnd",
            "ToolCallResult", "StepFinished", "StepStarted", "TextMessageStart", "TextMessageContent", "TextMessageEnd",
            "StepFinished", "RunFinished",
        ]  # fmt: skip
        assert [each.content for each in of(events, ToolCallResult)] == ["3", "all of may"]
        assert of(events, StateSnapshot)[0].snapshot == {"n": 1}
        assert isinstance(events[-1], RunFinished) and events[-1].usage and events[-1].usage[0].output_tokens
        # whoever read the run before the kill reads on behind what it has seen
        again = [item async for item in run.events(after=9)]
        assert again == list(enumerate(events, 1))[9:]
        stored = await store.messages("", "t")
        assert [each["role"] for each in stored] == ["user", "assistant", "tool", "tool", "assistant"]
        assert [each.status for each in await store.runs("", "t")] == ["finished"]
        assert await kept(store) == []
        assert [message["role"] for message in house.model.told[0]["messages"]] == ["user", "assistant", "tool", "tool"]
    assert file.read_text() == "may\nmay\n" and file.with_name("added").read_text() == "added\n"


async def test_a_call_that_may_do_harm_twice_is_not_made_again(url: str, tmp_path: Path):
    file, store = tmp_path / "reports", Store(url)
    killed(url, file, "tell")
    async with House(agent(file, "tell", ends=True), Model([DONE]), store, first_id=1000) as house:
        await house.manager.resume_orphans()
        events = await house.follow(house.manager.get("run_1"))
        _, result = of(events, ToolCallResult)
        assert (result.content, result.metadata) == (UNKNOWN, {"isError": True})
        assert isinstance(events[-1], RunFinished) and of(events, TextMessageContent)
    assert file.read_text() == "may\n"


async def test_a_person_is_asked_whether_to_make_a_call_again(url: str, tmp_path: Path):
    file, store = tmp_path / "reports", Store(url)
    killed(url, file, "ask")
    async with House(agent(file, "ask", ends=True), Model([DONE]), store, first_id=1000) as house:
        await house.manager.resume_orphans()
        events = await house.follow(house.manager.get("run_1"))
        assert isinstance(events[-1], RunFinished) and isinstance(events[-1].outcome, InterruptOutcome)
        (asked,) = events[-1].outcome.interrupts
        assert asked.message == f"{UNKNOWN} Make it again?"
        assert file.read_text() == "may\n"
        answer = {"interruptId": asked.id, "status": "resolved", "payload": {"approved": True}}
        events = await house.resume(answer, runId="run_2")
        assert [each.content for each in of(events, ToolCallResult)] == ["all of may"]
    assert file.read_text() == "may\nmay\n"


async def test_a_message_that_comes_before_the_run_is_resumed_waits_for_it(url: str, tmp_path: Path):
    file, store = tmp_path / "reports", Store(url)
    killed(url, file, "idempotent")
    async with House(
        agent(file, "idempotent", ends=True), Model([DONE, "As you like."]), store, first_id=1000
    ) as house:
        house.messages = await store.messages("", "t")
        events = await house.ask("never mind", runId="run_2")
        assert isinstance(events[-1], RunFinished)
        assert [each.status for each in await store.runs("", "t")] == ["finished", "finished"]
        said = [each["content"] for each in await store.messages("", "t") if each["role"] == "assistant"]
        assert said[-2:] == [DONE, "As you like."]
    assert file.read_text() == "may\nmay\n"


async def test_a_client_that_asks_again_joins_the_run_that_goes_on(url: str, tmp_path: Path):
    """It is told the answer under its own run, nothing is done or stored twice, and it finds it at the next server."""
    file, store = tmp_path / "reports", Store(url)
    killed(url, file, "tell")
    async with House(agent(file, "tell", ends=True), Model([DONE]), store, first_id=1000) as house:
        events = await house.ask("report may", runId="run_2")
        assert events[0].run_id == events[-1].run_id == "run_2" and isinstance(events[-1], RunFinished)
        assert "".join(each.delta for each in of(events, TextMessageContent)).endswith(DONE)
        assert [(each.id, each.status) for each in await store.runs("", "t")] == [("run_1", "finished")]
        roles = [each["role"] for each in await store.messages("", "t")]
        assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert file.read_text() == "may\n"
    async with House(agent(file, "tell", ends=True), Model([]), Store(url)) as house:
        run = await house.manager.find("run_2")
        assert [event async for _, event in run.events()][1:-1] == events[1:-1]


async def test_what_a_superseded_server_writes_is_refused(url: str, tmp_path: Path):
    """A server that was cut off comes back while another goes on with its run."""
    file = tmp_path / "reports"
    async with House(
        agent(file, "tell", ends=False), Model(["I add first." + call("report", of="may")]), Store(url)
    ) as one:
        first = await one.start("report may")
        while not file.exists():
            await asyncio.sleep(0.01)
        store = Store(url)
        async with House(agent(file, "tell", ends=True), Model([DONE]), store, first_id=1000) as two:
            assert one.store is not None
            assert await two.manager.resumer.resume_dead("", "run_1", "t", one.store.owner)
            second = two.manager.get("run_1")
            events = await two.follow(second)
            await first.cancel()
            last = await first.wait()
            assert isinstance(last, RunError) and last.code == "connection" and last.metadata["nextEvent"]
            assert [each.status for each in await store.runs("", "t")] == ["finished"]
            assert (await store.messages("", "t"))[-1]["content"] == DONE
            assert isinstance(events[-1], RunFinished)
    assert file.read_text() == "may\n"


async def test_one_of_two_servers_takes_a_run_up(url: str, tmp_path: Path):
    killed(url, tmp_path / "reports", "idempotent")
    one, two = Store(url), Store(url)
    await one.open()
    await two.open()
    (record,) = await one.find_broken()
    taken = await asyncio.gather(one.claim_orphan(record), two.claim_orphan(record))
    assert sorted(each is None for each in taken) == [False, True]
    mine = next(each for each in taken if each is not None)
    assert (mine.attempts, mine.body) == (1, record.body)
    assert mine.thread.state is None and mine.owner in (one.owner, two.owner)
    await one.close()
    await two.close()


@pytest.fixture
def slow_twice() -> Agent:
    """An agent whose tool waits as often as it is called, until it is cancelled."""

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    return Agent(name="default", tools=[wait])


async def until_kept(store: Store, count: int = 1) -> None:
    """Wait until so many runs are saved as they wait for a call."""
    while sum('"calls":[' in body for body in await kept(store)) < count:
        await asyncio.sleep(0)


async def test_a_run_that_ended_three_servers_is_broken(tmp_path: Path, slow_twice: Agent):
    url = f"sqlite:///{tmp_path}/t.db"
    async with House(slow_twice, Model([call("wait")]), store := Store(url)) as house:
        await house.start("wait")
        await until_kept(store)
    async with House(slow_twice, Model([DONE]), store := Store(url), first_id=1000) as house:
        find = store.find_broken

        async def found() -> list[KeptRecord]:
            return [msgspec.structs.replace(each, attempts=3) for each in await find()]

        store.find_broken = found  # type: ignore[method-assign]
        await house.manager.resume_orphans()
        assert [each.status for each in await store.runs("", "t")] == ["broken"]
        assert await store.find_broken() == []
        # whoever has read some of it reads its end, and whoever asks again gets a run of its own
        ended = await house.manager.find("run_1")
        events = [event async for _, event in ended.events()]
        assert isinstance(events[0], RunStarted) and isinstance(events[-1], RunError)
        assert events[-1].metadata == {"retryable": True, "lost": True}
        again = await house.start("wait")
        assert isinstance((await house.follow(again))[-1], RunFinished)


async def test_a_run_that_waits_goes_on_after_an_orderly_restart(tmp_path: Path, slow_twice: Agent):
    url = f"sqlite:///{tmp_path}/t.db"
    async with House(slow_twice, Model([call("wait")]), store := Store(url)) as house:
        run = await house.start("wait")
        await until_kept(store)
        await house.manager.close(0)
        ended = await run.wait()
        assert isinstance(ended, RunError) and ended.message == RESUMES_LATER
    async with House(slow_twice, Model([DONE]), Store(url), first_id=1000) as house:
        await house.manager.resume_orphans()
        events = await house.follow(house.manager.get("run_1"))
        assert [each.content for each in of(events, ToolCallResult)] == [UNKNOWN]
        assert isinstance(events[-1], RunFinished)


async def test_a_run_that_is_taken_up_is_held_to_what_its_key_allowed(tmp_path: Path, slow_twice: Agent):
    url, allowed = f"sqlite:///{tmp_path}/t.db", GenerationOptions(most_tokens=8, most_context=4000)
    async with House(slow_twice, Model([call("wait")]), store := Store(url)) as house:
        await house.start("wait", options=allowed)
        await until_kept(store)
    async with House(slow_twice, Model([DONE]), Store(url), first_id=1000) as house:
        await house.manager.resume_orphans()
        run = house.manager.get("run_1")
        with pytest.raises(RequestError, match="at most 8 tokens"):
            await run.modify({"max_tokens": 9})
        await house.follow(run)
        assert [each.sampling.max_tokens is not None for each in house.model.engine.requests] == [True]


async def test_a_server_goes_on_with_a_run_and_a_client_that_returns_gets_the_rest(tmp_path: Path, slow_twice: Agent):
    url = f"sqlite:///{tmp_path}/t.db"
    async with House(slow_twice, Model([call("wait")]), store := Store(url)) as house:
        await house.start("wait")
        await until_kept(store)
    async with serving(scripted(DONE), agents=[slow_twice], store_url=url) as running, httpx.AsyncClient() as client:
        place = f"{running.url}/agui/runs/run_1"
        while (await client.get(place)).status_code == 404:
            await asyncio.sleep(0.01)
        lines = (await client.get(place + "/events", headers={"Last-Event-ID": "4"})).text.splitlines()
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        assert lines[0] == "id: 5" and events[-1]["type"] == "RUN_FINISHED"
        assert "".join(each.get("delta", "") for each in events) == DONE


async def test_a_run_that_is_stopped_is_not_taken_up(tmp_path: Path, slow_twice: Agent):
    url = f"sqlite:///{tmp_path}/t.db"
    async with House(slow_twice, Model([call("wait")]), store := Store(url)) as house:
        run = await house.start("wait")
        await until_kept(store)
        await run.cancel()
        await run.wait()
        assert await kept(store) == []
        assert [each.status for each in await store.runs("", "t")] == ["cancelled"]


@pytest.mark.parametrize("most_unsaved", [20_000, 2])
async def test_no_call_is_made_of_which_the_checkpoint_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_unsaved: int
):
    """A checkpoint that does not know of a call would let the next server make it again. most_unsaved: with the smaller
    number the run has been given up to be saved before the call."""
    monkeypatch.setattr("agent_server.agents.checkpoints.SAVE_SECONDS", 0.1)
    monkeypatch.setattr("agent_server.runs.journal.MOST_UNSAVED", most_unsaved)
    store, refuses, paid = Store(f"sqlite:///{tmp_path}/t.db"), False, []

    @tool
    async def look() -> str:
        """Look."""
        nonlocal refuses
        refuses = True
        return "looked"

    @tool
    def pay() -> str:
        """Pay."""
        paid.append(1)
        return "paid"

    save = store.save_events

    async def save_events(saved: Any, patience: float) -> list[bool]:
        if refuses:
            raise StoreUnavailable("another process holds its lock")
        return await save(saved, patience)

    store.save_events = save_events  # type: ignore[method-assign]
    model = Model([call("look"), call("pay"), DONE])
    async with House(Agent(name="default", tools=[look, pay]), model, store) as house:
        events = await house.ask("go")
        assert isinstance(events[-1], RunError) and events[-1].code == "unavailable"
    assert paid == []


def test_a_checkpoint_of_the_previous_version_is_read_with_the_names_that_it_was_stored_under():
    stored = """{"input": {}, "options": {}, "begun": true, "step": 1, "asked": "d1",
        "calls": [{"id": "c1", "name": "pay", "arguments": {}, "ended": true, "asked": true, "content": "done",
            "activities": [{"kind": "page", "content": {"a": 1}, "id": null, "told": false}]}]}"""
    run = read_checkpoint(stored)
    (call,) = run.calls
    assert (run.request_digest, call.has_question) == ("d1", True)
    assert call.result == CallResult(content="done", activities=(Activity(kind="page", content={"a": 1}),))
    again = msgspec.json.decode(encode_checkpoint(run))
    assert again["asked"] == "d1" and again["calls"][0]["asked"] is True and "request_digest" not in again


def test_all_options_of_a_run_are_kept():
    options = GenerationOptions(
        sampling=SamplingParams(temperature=0.3, stop=("end",), logit_bias={5: 1.0}, seed=7), stated=frozenset({"seed"}),
        tool_choice=ToolChoice("auto", ("wait",)), response_format=ResponseFormat(kind="json_schema", value={"a": 1}),
        template_kwargs={"x": [1]}, raw_prompt=(1, 2), continue_final_message="content", metadata={"k": "v"},
    )  # fmt: skip
    usage = [TokenUsage(model="m")]
    run = RunCheckpoint(input=msgspec.Raw(b"{}"), options=options, begun=True, step=1, usage=usage)
    assert (
        read_checkpoint(encode_checkpoint(run)).options == options
        and read_checkpoint(encode_checkpoint(run)).usage == usage
    )
