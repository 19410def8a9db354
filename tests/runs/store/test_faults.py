"""A database that is locked, full, deleted, damaged or out of reach: told at once, by name, and come back from."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import stat
import threading

import httpx
import pytest

from agent_server.agents import Agent
from agent_server.runs import manager
from agent_server.runs.store import Store, database
from agent_server.runs.store import connections as store_file
from agent_server.runs.store.connections import DatabaseFile, StoreUnavailable
from agent_server.settings import LogLimits
from events.vocabulary import RunError, RunFinished, TextMessageContent
from tests.agents.harness import House, of
from tests.agents.models import Model
from tests.runs.store.test_store import assistant, ended, finished, user
from tests.server import scripted, serving


@pytest.fixture
async def file(tmp_path):
    return tmp_path / "private" / "threads.db"


@pytest.fixture
async def kept(file, monkeypatch):
    """A store in a file, with a thread in it."""
    monkeypatch.setattr(database, "WATCH_SECONDS", 0.02)
    made = Store(f"sqlite:///{file}")
    await made.open()
    await made.begin_run("", "t", "r", messages=[user("u1", "kept")])
    yield made
    await made.close()


async def until_fault(kept: Store, part: str | None) -> None:
    async with asyncio.timeout(10):
        while not (kept.fault is None if part is None else part in (kept.fault or "")):
            await asyncio.sleep(0.01)


async def full(kept: Store, pages: int) -> None:
    """Let the file grow to so many pages. A write that fails in the same transaction, such as another try to settle a
    run, takes this one with it."""
    pragma = f"PRAGMA max_page_count = {pages}"
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await kept._database.write(lambda connection: connection.exec_driver_sql(pragma))
                return


LARGE = [user("u2", "x" * 100_000)]


async def test_a_lock_that_passes_is_waited_out_while_reads_go_on(kept: Store, file):
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = asyncio.create_task(kept.begin_run("", "t2", "r", messages=[user("u1", "later")]))
    await until_fault(kept, "lock")
    assert await kept.messages("", "t") == [user("u1", "kept")] and not begun.done()
    other.execute("COMMIT")
    await begun
    other.close()
    assert await kept.messages("", "t2") == [user("u1", "later")]
    await until_fault(kept, None)


async def test_a_lock_that_stays_is_told_as_what_it_is_and_holds_up_no_ending(kept: Store, file, monkeypatch):
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.0)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    said = [user("u1", "kept"), assistant("a1", "said")]
    ending = asyncio.create_task(kept.end_run(ended(finished(), messages=said)))
    refused = await asyncio.gather(
        *(kept._database.write(database.probe, 0.0) for _ in range(20)), return_exceptions=True
    )
    assert {str(each) for each in refused} == {
        "The database of conversations cannot be used: another process holds its lock."
    }
    assert all(isinstance(each, StoreUnavailable) and each.retry_after for each in refused)
    other.execute("COMMIT")
    other.close()
    await ending
    assert await kept.messages("", "t") == said


async def test_a_full_disk_is_a_typed_error_once_in_the_log_and_gone_when_there_is_room(kept: Store, caplog):
    await full(kept, 1)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="disk is full"):
            await kept.begin_run("", "t", "r2", messages=LARGE)
    assert [each.message for each in caplog.records if each.levelno == logging.ERROR] == [
        "The database of conversations cannot be used: its disk is full."
    ]
    await full(kept, 1_000_000)
    await until_fault(kept, None)
    await kept.begin_run("", "t", "r2", messages=LARGE)
    assert await kept.messages("", "t") == [user("u1", "kept"), *LARGE]


async def test_a_run_on_a_full_disk_ends_with_an_error_that_may_be_tried_again(file):
    made = Store(f"sqlite:///{file}")
    async with House(Agent(name="default"), Model(["Fine.", "y" * 100_000, "Fine."]), made) as house:
        assert isinstance((await house.ask("one"))[-1], RunFinished)
        await full(made, 1)
        for text in ("short", "x" * 100_000):
            last = (await house.ask(text, threadId=text[:5]))[-1]
            assert isinstance(last, RunError)
            assert (last.code, last.metadata) == ("unavailable", {"retryable": True})
            assert "disk is full" in last.message


@pytest.mark.parametrize("stored", [False, True])
async def test_a_burst_of_more_events_than_a_log_keeps_overtakes_no_reader(file, stored):
    """stored: while the database is locked, so that what is said waits to be saved before anybody reads it."""
    text = "y" * 10_000
    made = Store(f"sqlite:///{file}") if stored else None
    limits = {"log": LogLimits(events=500)}
    async with House(Agent(name="default"), Model([text]), made, run_limits=limits) as house:
        other = sqlite3.connect(file if stored else ":memory:", isolation_level=None)
        run = await house.start("go on")
        while stored and not run.log.last:
            await asyncio.sleep(0.001)
        other.execute("BEGIN IMMEDIATE")
        asyncio.get_running_loop().call_later(0.3, other.close)
        events = await house.follow(run)
        assert isinstance(events[-1], RunFinished)
        assert "".join(each.delta for each in of(events, TextMessageContent)) == text


ANSWER = "A long answer. " * 1200


@pytest.mark.parametrize("followed", [False, True])
async def test_a_run_whose_end_could_not_be_stored_is_settled_when_there_is_room(file, monkeypatch, followed):
    """Without a restart. followed: another run has begun in the thread by then, behind which nothing is put."""
    monkeypatch.setattr(database, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(manager, "SETTLE_SECONDS", 0.05)
    made = Store(f"sqlite:///{file}")
    async with House(Agent(name="default"), Model([ANSWER, "Short."]), made) as house:
        run = await house.start("hello")
        while not run.log.last:
            await asyncio.sleep(0.001)
        await full(made, 1)
        events = await house.follow(run)
        assert isinstance(events[-1], RunError) and "disk is full" in events[-1].message
        assert "".join(each.delta for each in of(events, TextMessageContent)) == ANSWER  # readers lack nothing
        assert [each.status for each in await made.runs("", "t")] == ["running"]
        if followed:
            house.manager._settling.cancel()
        await full(made, 1_000_000)
        if followed:
            assert isinstance((await house.ask("and?"))[-1], RunFinished)
            house.manager._settle(house.manager._unsettled.popleft())
        async with asyncio.timeout(10):
            while (await made.runs("", "t"))[0].status == "running":
                await asyncio.sleep(0.01)
        (settled, *_) = await made.runs("", "t")
        assert (settled.status, settled.error) == ("failed", "unavailable")
        said = [each["content"] for each in await made.messages("", "t") if each["role"] == "assistant"]
        assert said[-1] == ("Short." if followed else ANSWER)


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_deleted_database_is_noticed_saved_and_not_written_to_any_more(kept: Store, file, replaced):
    for path in file.parent.glob("threads.db*"):
        if not path.name.endswith(".lock"):
            path.unlink()
    if replaced:
        sqlite3.connect(file).close()
        file.touch()
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await kept.begin_run("", "t", "r2", messages=[user("u2", "lost")])
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await kept.messages("", "t")
    await until_fault(kept, "is saved as")
    (saved,) = file.parent.glob("*.rescued-*")
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    await kept.close()
    again = Store(f"sqlite:///{saved}")
    await again.open()
    assert await again.messages("", "t") == [user("u1", "kept")]
    await again.close()


async def test_conversations_are_for_their_owner_s_eyes_alone(kept: Store, file):
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in file.parent.iterdir()} == {0o600}


async def test_a_database_that_everybody_could_read_is_closed_to_them(tmp_path):
    file = tmp_path / "threads.db"
    sqlite3.connect(file).close()
    file.touch()
    file.chmod(0o644)
    made = Store(f"sqlite:///{file}")
    await made.open()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    await made.close()


@pytest.mark.parametrize("damage", ["page", "header"])
async def test_a_damaged_database_is_found_at_the_start(file, damage):
    made = Store(f"sqlite:///{file}")
    await made.open()
    await made.begin_run("", "t", "r", messages=[user(f"u{n}", "x" * 3000) for n in range(50)])
    await made.close()
    content = bytearray(file.read_bytes())
    places = {"page": range(4096 * 20, 4096 * 30), "header": range(100)}[damage]
    content[places.start : places.stop] = b"\xa5" * len(places)
    file.write_bytes(content)
    again = Store(f"sqlite:///{file}")
    with pytest.raises(StoreUnavailable, match=r"damaged|no database"):
        await again.open()
    await again.close()


async def test_a_large_file_is_checked_while_the_server_runs(file, monkeypatch):
    """Large: reading it takes longer than the start waits."""
    made = Store(f"sqlite:///{file}")
    await made.open()
    await made.begin_run("", "t", "r", messages=[user(f"u{n}", "x " * 1500) for n in range(50)])
    await made.close()
    content = bytearray(file.read_bytes())
    content[-4096 * 12 : -4096 * 2] = b"\xa5" * 4096 * 10  # among the messages, which the start does not read
    file.write_bytes(content)
    may_read = threading.Event()
    check = DatabaseFile._quick_check
    monkeypatch.setattr(DatabaseFile, "_quick_check", lambda self: may_read.wait(30) and check(self))
    monkeypatch.setattr(store_file, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(database, "WATCH_SECONDS", 0.02)
    again = Store(f"sqlite:///{file}")
    await again.open()
    await again.begin_run("", "t2", "r")
    may_read.set()
    await until_fault(again, "damaged")
    with pytest.raises(StoreUnavailable, match="damaged"):
        await again.begin_run("", "t3", "r")
    await again.close()
    assert not list(file.parent.glob("*.rescued-*"))


async def test_a_check_that_goes_on_does_not_hold_up_the_end(file, monkeypatch):
    made = Store(f"sqlite:///{file}")
    begun, ended = threading.Event(), threading.Event()

    def endless(self: DatabaseFile) -> str:
        with contextlib.closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
            self._checking = connection
            begun.set()
            try:
                connection.execute("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT count(*) FROM n")
            finally:
                ended.set()
        return "ok"

    monkeypatch.setattr(DatabaseFile, "_quick_check", endless)
    monkeypatch.setattr(store_file, "CHECK_SECONDS", 0.0)
    await made.open()
    assert await asyncio.to_thread(begun.wait, 10)
    async with asyncio.timeout(10):
        await made.close()
    assert ended.is_set()


async def test_a_database_out_of_reach_is_told_in_a_sentence(monkeypatch):
    monkeypatch.setattr(database, "OPEN_SECONDS", 0.0)
    away = Store("postgresql://nobody@127.0.0.1:1/nothing")
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await away.open()
    await away.close()


async def test_a_server_whose_database_cannot_be_used_is_not_ready(file, monkeypatch):
    monkeypatch.setattr(database, "WATCH_SECONDS", 0.02)
    async with (
        serving(scripted("Fine."), store_url=f"sqlite:///{file}") as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        assert (await client.get("/ready")).status_code == 200
        await full(running.server.store, 1)
        sent = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": LARGE}
        failed = await client.post("/agui", json=sent)
        assert '"code":"unavailable"' in failed.text and '"retryable":true' in failed.text
        answer = await client.get("/ready")
        assert (answer.status_code, answer.json()["ready"]) == (503, False)
        assert "disk is full" in answer.json()["message"]
        await full(running.server.store, 1_000_000)
        await until_fault(running.server.store, None)
        assert (await client.get("/ready")).status_code == 200
