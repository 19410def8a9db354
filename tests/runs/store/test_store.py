"""Threads, kept: the same on every database."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, create_engine, event

from adapters.errors import RequestError
from agent_server.runs.store import Conclusion, Store, migrate, owners
from agent_server.runs.store.connections import Connections, with_driver
from agent_server.runs.store.schema import metadata
from events.vocabulary import (
    CancelledOutcome,
    Interrupt,
    InterruptOutcome,
    RunError,
    RunFinished,
    TokenUsage,
)
from tests.runs.store.conftest import fresh_database


def user(id: str, text: str) -> dict:
    return {"id": id, "role": "user", "content": text}


def assistant(id: str, text: str) -> dict:
    return {"id": id, "role": "assistant", "content": text}


def ended(terminal, thread: str = "t", run: str = "r", messages=(), state=None, interrupts=()) -> Conclusion:
    return Conclusion(
        tenant="",
        thread_id=thread,
        run_id=run,
        terminal=terminal,
        messages=messages,
        state=state,
        interrupts=interrupts,
    )


def finished(thread: str = "t", run: str = "r", **more) -> RunFinished:
    return RunFinished(thread_id=thread, run_id=run, **more)


async def test_a_run_leaves_its_messages_state_and_record(store: Store):
    before = await store.begin_run("", "t", "r", agent="cook", messages=[user("u1", "Hello  there")])
    assert before.state is None and before.interrupts == ()
    assert (await store.runs("", "t"))[0].status == "running"
    assert await store.messages("", "t") == [user("u1", "Hello  there")]
    said = [user("u1", "Hello  there"), assistant("a1", "Hi \u0000 \U0001f600")]
    usage = [TokenUsage(model="m", input_tokens=3, output_tokens=2)]
    await store.end_run(ended(finished(usage=usage), messages=said, state={"step": 1}))
    assert await store.messages("", "t") == said
    assert await store.state("", "t") == {"step": 1}
    (run,) = await store.runs("", "t")
    assert (run.status, run.agent, run.usage) == (
        "finished",
        "cook",
        [{"model": "m", "inputTokens": 3, "outputTokens": 2}],
    )
    assert run.ended_at is not None and run.ended_at >= run.created_at > 1_600_000_000_000
    thread = await store.thread("", "t")
    assert (thread.name, thread.agent_id, thread.archived) == ("Hello there", "cook", False)
    again = await store.begin_run("", "t", "r2")
    assert again.state == {"step": 1}


@pytest.mark.parametrize(
    ("terminal", "status", "error"),
    [
        (finished(outcome=CancelledOutcome()), "cancelled", None),
        (RunError(message="no", code="timeout"), "failed", "timeout"),
        (finished(outcome=InterruptOutcome(interrupts=[Interrupt(id="i", reason="tool_call")])), "interrupted", None),
    ],
)
async def test_a_run_s_status_is_its_terminal_event(store: Store, terminal, status, error):
    await store.begin_run("", "t", "r")
    await store.end_run(ended(terminal))
    (run,) = await store.runs("", "t")
    assert (run.status, run.error) == (status, error)


async def test_tenants_do_not_see_each_other(store: Store):
    await store.begin_run("a", "t", "r", messages=[user("u1", "mine")])
    await store.begin_run("b", "t", "r", messages=[user("u1", "theirs")])
    assert await store.messages("a", "t") == [user("u1", "mine")]
    assert [each.id for each in (await store.threads("c"))[0]] == []
    with pytest.raises(RequestError) as foreign:
        await store.thread("c", "t")
    assert foreign.value.kind == "not_found"
    await store.delete_thread("a", "t")
    assert await store.messages("b", "t") == [user("u1", "theirs")]


async def test_threads_are_listed_renamed_archived_and_deleted(store: Store):
    for index in range(7):
        await store.begin_run("", f"t{index}", "r", agent="x" if index % 2 else "y", messages=[user("u", f"n{index}")])
        await asyncio.sleep(0.002)
    page, cursor = await store.threads("", limit=3)
    assert [each.id for each in page] == ["t6", "t5", "t4"] and cursor
    rest, end = await store.threads("", limit=10, cursor=cursor)
    assert [each.id for each in rest] == ["t3", "t2", "t1", "t0"] and end is None
    assert {each.id for each in (await store.threads("", agent_id="x"))[0]} == {"t1", "t3", "t5"}
    renamed = await store.change_thread("", "t3", name="A name")
    assert renamed.name == "A name"
    assert (await store.change_thread("", "t3", archived=True)).archived
    assert "t3" not in {each.id for each in (await store.threads(""))[0]}
    assert "t3" in {each.id for each in (await store.threads("", archived=True))[0]}
    await store.delete_thread("", "t3")
    assert await store.messages("", "t3") == [] and await store.runs("", "t3") == []
    for call in (store.delete_thread("", "t3"), store.change_thread("", "t3", name="x"), store.thread("", "t3")):
        with pytest.raises(RequestError, match="no such thread"):
            await call
    with pytest.raises(RequestError, match="cursor"):
        await store.threads("", cursor="nonsense")


async def test_feedback_is_kept_for_messages_that_exist(store: Store):
    await store.begin_run("", "t", "r", messages=[assistant("a1", "x")])
    await store.give_feedback("", "t", "a1", 1)
    await store.give_feedback("", "t", "a1", -1, "not\u0000 true")
    (given,) = await store.feedback("", "t")
    assert (given.message_id, given.score, given.comment) == ("a1", -1, "not true")
    with pytest.raises(RequestError) as unknown:
        await store.give_feedback("", "t", "nothing", 1)
    assert unknown.value.kind == "not_found"


async def test_an_interrupt_is_claimed_once_and_keeps_its_result(store: Store):
    asked = [
        {
            "interrupt": Interrupt(id=f"i{n}", reason="tool_call", tool_call_id=f"c{n}"),
            "call": {"id": f"c{n}", "name": "f", "arguments": {}},
        }
        for n in (1, 2)
    ]
    await store.begin_run("", "t", "r")
    outcome = InterruptOutcome(interrupts=[each["interrupt"] for each in asked])
    await store.end_run(ended(finished(outcome=outcome), interrupts=asked))
    waiting = (await store.begin_run("", "t", "r2", messages=[user("u9", "not yet")])).interrupts
    assert [(each.id, each.status, each.call["id"]) for each in waiting] == [("i1", "open", "c1"), ("i2", "open", "c2")]
    assert waiting[0].interrupt == {"id": "i1", "reason": "tool_call", "toolCallId": "c1"}
    assert await store.messages("", "t") == []
    answers = {
        "i1": {"status": "resolved", "payload": {"approved": True}},
        "i2": {"status": "cancelled", "payload": None},
    }
    results = await asyncio.gather(*(store.claim("", "t", answers, f"r{n}") for n in range(3)))
    assert sorted(results) == [False, False, True]
    await store.record_result("", "t", "i1", "42", "m1")
    first, second = await store.interrupts("", "t")
    assert (first.status, first.result, first.result_message_id, first.answer) == (
        "answered",
        "42",
        "m1",
        answers["i1"],
    )
    assert second.status == "claimed"


async def test_an_id_with_nul_is_refused(store: Store):
    with pytest.raises(RequestError, match="NUL"):
        await store.begin_run("", "t\x00", "r")


async def test_one_bad_write_does_not_spoil_the_others_of_its_batch(store: Store):
    good = [store.begin_run("", f"t{n}", "r", messages=[user("u", "x")]) for n in range(5)]
    bad = store.begin_run("", "bad", "r", agent=None)  # type: ignore[arg-type]
    results = await asyncio.gather(*good, bad, return_exceptions=True)
    assert isinstance(results[-1], Exception)
    assert not any(isinstance(each, Exception) for each in results[:-1])
    assert len((await store.threads(""))[0]) == 5


async def test_hundreds_of_runs_at_once_are_all_recorded(store: Store):
    async def one(n: int) -> None:
        await store.begin_run("", f"t{n}", "r", messages=[user("u", str(n))])
        await store.end_run(ended(finished(f"t{n}"), f"t{n}", messages=[user("u", str(n)), assistant("a", "ok")]))

    await asyncio.gather(*(one(n) for n in range(200)))
    counted = [len(await store.messages("", f"t{n}")) for n in range(200)]
    assert counted == [2] * 200


async def test_what_is_written_is_there_after_reopening(url: str):
    first = Store(url)
    await first.open()
    await first.begin_run("", "t", "r", messages=[user("u", "x")])
    await first.end_run(ended(finished(), messages=[user("u", "x")], state={"a": 1}))
    await first.close()
    await first.close()
    second = Store(url)
    await second.open()
    assert await second.messages("", "t") == [user("u", "x")]
    assert await second.state("", "t") == {"a": 1}
    await second.close()


async def test_a_neighbour_s_running_run_is_not_taken_for_broken(url: str):
    first, second = Store(url), Store(url)
    await first.open()
    await first.begin_run("", "t", "r")
    await second.open()
    assert (await second.runs("", "t"))[0].status == "running"
    await first.close()
    third = Store(url)
    await third.open()
    assert (await third.runs("", "t"))[0].status == "broken"
    await second.close()
    await third.close()


async def test_a_dead_server_s_lock_is_swept_up(tmp_path):
    left = tmp_path / "threads.db.abc.lock"
    left.touch()
    one, two = (Store(f"sqlite:///{tmp_path}/threads.db") for _ in range(2))
    await one.open()
    await two.open()
    assert not left.exists() and len(list(tmp_path.glob("*.lock"))) == 2
    await one.close()
    await two.close()
    assert list(tmp_path.glob("*.lock")) == []


async def test_two_servers_never_work_on_one_thread_at_the_same_time(url: str):
    first, second = Store(url), Store(url)
    await first.open()
    await second.open()
    await first.begin_run("", "t", "r1")
    await first.begin_run("", "t2", "r1")
    with pytest.raises(RequestError) as refused:
        await second.begin_run("", "t", "r2")
    assert refused.value.kind == "conflict"
    assert {run.id: run.status for run in await second.runs("", "t")} == {"r1": "running", "r2": "failed"}
    await first.end_run(ended(finished(run="r1"), run="r1"))
    await second.begin_run("", "t", "r3")
    await first.close()
    await second.begin_run("", "t2", "r4")
    assert {run.id: run.status for run in await second.runs("", "t2")} == {"r1": "broken", "r4": "running"}
    await second.close()


async def test_what_two_servers_change_in_a_response_at_once_is_all_kept(url: str):
    stores = [Store(url), Store(url)]
    for each in stores:
        await each.open()
    await stores[0].save_response("", "conv", {"items": []})

    def adding(number: int):
        return lambda found: {"items": [*found["items"], number]}

    await asyncio.gather(*(stores[n % 2].change_response("", "conv", adding(n)) for n in range(40)))
    assert sorted((await stores[1].response("", "conv"))["items"]) == list(range(40))
    assert await stores[0].change_response("", "none", adding(1)) is None
    with pytest.raises(ValueError, match="refused"):
        await stores[0].change_response("", "conv", refuse)
    assert len((await stores[0].response("", "conv"))["items"]) == 40
    for each in stores:
        await each.close()


def refuse(found: object) -> object:
    raise ValueError("refused")


@pytest.mark.parametrize("archived", [False, True])
@pytest.mark.parametrize("agent", [None, "nowhere"])
async def test_lists_of_threads_read_an_index_in_order(tmp_path: Path, agent: str | None, archived: bool):
    """A list by an agent that no thread has would read every thread of the tenant without its index."""
    asked: list[tuple[str, Any]] = []

    def note(connection, cursor, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT threads."):
            asked.append((statement, parameters))

    store = Store(f"sqlite:///{tmp_path}/a.db")
    await store.open()
    event.listen(Engine, "before_cursor_execute", note)
    try:
        assert await store.threads("", agent_id=agent, archived=archived) == ([], None)
        assert await store.threads("", agent_id=agent, archived=archived, cursor="5.t") == ([], None)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
        await store.close()
    line = sqlite3.connect(tmp_path / "a.db")
    plans = [line.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall() for statement, parameters in asked]
    line.close()
    wanted = "threads_by_time (tenant=?" if agent is None else "threads_by_agent (tenant=? AND agent_id=?"
    assert len(plans) == 2
    for plan in plans:
        steps = [step[-1] for step in plan]
        assert any(wanted in step for step in steps) and not any("TEMP B-TREE" in step for step in steps), steps


async def test_the_migrations_make_the_schema(tmp_path):
    made = Store(f"sqlite:///{tmp_path}/a.db")
    await made.open()
    await made.close()
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    with engine.connect() as connection:
        differences = compare_metadata(MigrationContext.configure(connection), metadata)
    engine.dispose()
    assert [each for each in differences if "alembic_version" not in str(each)] == []


async def test_the_migrations_go_up_and_down_over_what_is_stored(url: str):
    async def migrated(step, target: str) -> None:
        connections = Connections(with_driver(url))
        scripts = await asyncio.to_thread(migrate.load)
        await connections.begin(lambda connection: step(connection, scripts, target))
        await connections.dispose()

    async def reopened(check) -> None:
        store = Store(url)
        await store.open()
        await check(store)
        await store.close()

    async def talk(store: Store) -> None:
        await store.begin_run("", "t", "r", messages=[user("u1", "a"), assistant("a1", "b")])
        await store.begin_run("", "t", "r", messages=[user("u1", "a")])
        await store.end_run(ended(finished(), messages=[user("u1", "a"), assistant("a2", "c")]))
        await store.accept_run("", "t", "r2")

    async def kept(store: Store) -> None:
        assert await store.messages("", "t") == [user("u1", "a"), assistant("a2", "c")]
        assert [(run.id, run.status) for run in await store.runs("", "t")] == [("r", "finished"), ("r2", "broken")]
        assert await store.removals("", "t") == []

    await reopened(talk)
    await migrated(migrate.downgrade, "0001")
    await migrated(migrate.upgrade, "head")
    await reopened(kept)
    await migrated(migrate.downgrade, "base")
    await migrated(migrate.upgrade, "0001")
    await migrated(migrate.upgrade, "head")


async def test_a_server_whose_line_to_the_database_was_cut_is_not_taken_for_dead(postgres_server, monkeypatch):
    monkeypatch.setattr(owners, "WATCH_SECONDS", 0.05)
    url = await fresh_database(postgres_server)
    first, second = Store(url), Store(url)
    await first.open()
    await second.open()
    connection = await asyncpg.connect(url)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    assert await connection.fetchval(held) == 2
    await connection.execute(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = current_database() "
        "AND pid != pg_backend_pid()"
    )
    async with asyncio.timeout(10):
        while await connection.fetchval(held) < 2:
            await asyncio.sleep(0.02)
    await connection.close()
    await first.begin_run("", "t", "r")
    with pytest.raises(RequestError, match="another server"):
        await second.begin_run("", "t", "r2")
    await first.close()
    await second.close()


async def test_servers_that_open_a_new_database_at_once_all_get_it(tmp_path: Path):
    stores = [Store(f"sqlite:///{tmp_path}/new.db") for _ in range(4)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        assert [await store.threads("") for store in stores] == [([], None)] * 4
    finally:
        await asyncio.gather(*(store.close() for store in stores))
