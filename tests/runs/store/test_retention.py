"""Threads and responses that are removed while the server runs: by age, by tenant and by key."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent_server.http.auth.keys_file import KeyEntry, add_key, digest, new_secret
from agent_server.observability.telemetry import note_ids
from agent_server.runs.store import RemovalScope, RemovedCounts, Store
from agent_server.runs.store import removal as removals
from agent_server.runs.store.connections import StoreUnavailable
from agent_server.runs.store.removal import DAY_MILLISECONDS, Retention
from agent_server.runs.store.rows import now_ms
from tests.agents.guests.talking import body
from tests.agents.guests.talking import user as said
from tests.runs.store.test_store import ended, finished, user
from tests.server import scripted, serving


async def begun(store: Store, tenant: str, thread: str, *, over: bool = True) -> None:
    await store.begin_run(tenant, thread, "r", messages=[user("u1", "hello")])
    if over:
        conclusion = ended(finished(), messages=[user("u1", "hello")])
        await store.end_run(_of(conclusion, tenant, thread))


def _of(conclusion: Any, tenant: str, thread: str) -> Any:
    import msgspec

    return msgspec.structs.replace(conclusion, tenant=tenant, thread_id=thread)


async def left(store: Store, *tenants: str) -> dict[str, set[str]]:
    return {tenant: {each.id for each in (await store.threads(tenant))[0]} for tenant in tenants}


def retention(store: Store, days: float, **tenants: float) -> Retention:
    return Retention(store, days, tenants, 3600, lambda removed: None)


async def later(monkeypatch: pytest.MonkeyPatch, days: float) -> None:
    now = now_ms()
    monkeypatch.setattr("agent_server.runs.store.removal.now_ms", lambda: now + round(days * DAY_MILLISECONDS))


async def test_each_tenant_keeps_for_its_own_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for tenant in ("acme", "trial", "legal"):
        await begun(store, tenant, "t")
        await store.save_response(tenant, "resp", {"x": 1})
    kept = retention(store, 30, trial=7, legal=0)
    assert not await kept.sweep()
    await later(monkeypatch, 8)
    assert (await kept.sweep()).by_tenant() == {"trial": (1, 1)}
    await later(monkeypatch, 31)
    assert (await kept.sweep()).by_tenant() == {"acme": (1, 1)}
    await later(monkeypatch, 9999)
    assert not await kept.sweep()
    assert await left(store, "acme", "trial", "legal") == {"acme": set(), "trial": set(), "legal": {"t"}}
    assert await store.response("trial", "resp") is None and await store.response("legal", "resp") is not None


async def test_a_conversation_is_as_old_as_its_last_change(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    long_ago = now_ms() - 9 * DAY_MILLISECONDS
    with monkeypatch.context() as then:
        then.setattr("agent_server.runs.store.responses.now_ms", lambda: long_ago)
        for name in ("changed", "kept anew", "left"):
            await store.save_response("", name, {"x": 1})
    await store.change_response("", "changed", lambda found: {"x": 2})
    await store.save_response("", "kept anew", {"x": 2})
    assert (await retention(store, 7).sweep()).by_tenant() == {"": (0, 1)}
    assert await store.response("", "left") is None
    assert await store.response("", "changed") == await store.response("", "kept anew") == {"x": 2}


async def test_what_runs_is_in_use_however_old(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    await begun(store, "", "running", over=False)
    await begun(store, "", "over")
    await later(monkeypatch, 2)
    await retention(store, 1).sweep()
    assert await left(store, "") == {"": {"running"}}


async def test_it_goes_in_slices_between_which_others_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "SLICE", 2)
    slices: list[int] = []
    going = asyncio.Event()

    async def report(removed: RemovedCounts) -> None:
        slices.append(removed.threads.total())
        going.set()

    for number in range(5):
        await begun(store, "a", f"t{number}")
    removing = asyncio.create_task(store.remove(RemovalScope(tenant="a"), report=report))
    await going.wait()
    await begun(store, "b", "new")
    assert not removing.done()
    assert (await removing).threads == {"a": 5} and slices == [2, 4, 5]
    assert await left(store, "a", "b") == {"a": set(), "b": {"new"}}


async def test_a_thread_of_many_rows_goes_in_slices(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removals, "LEAST_ROWS", 3)
    monkeypatch.setattr(removals, "MOST_ROWS", 3)
    many = [user(f"u{number}", "hello") for number in range(20)]
    await store.begin_run("a", "long", "r", messages=many)
    await begun(store, "a", "short")
    rows: list[int] = []

    async def report(removed: RemovedCounts) -> None:
        rows.append(removed.rows)

    assert (await store.remove(RemovalScope(tenant="a"), report=report)).threads == {"a": 2}
    # the rows of one transaction are at most three, and one for the thread itself
    assert len(rows) >= 7 and max(after - before for before, after in itertools.pairwise([0, *rows])) <= 4
    assert await left(store, "a") == {"a": set()} and await store.messages("a", "long") == []


async def test_what_a_removal_costs_does_not_grow_with_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps of SQLite's machine: 50 threads are removed where 60 are, and where 1,000 are."""
    steps = [0]
    connect = sqlite3.connect

    def counting(*given: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*given, **named)
        connection.set_progress_handler(lambda: steps.__setitem__(0, steps[0] + 1), 100)
        return connection

    async def cost(threads: int) -> int:
        place = tmp_path / f"{threads}.db"
        store = Store(f"sqlite:///{place}")
        await store.open()
        with contextlib.closing(connect(place)) as connection, connection:
            values = [(f"t{number}",) for number in range(threads)]
            row = "'a', ?, '', '', 0, '{}', 0, ?, ''"
            columns = "tenant, id, name, agent_id, archived, metadata, created_at, updated_at, key"
            rows = [(each, place) for place, (each,) in enumerate(values)]
            connection.executemany(f"INSERT INTO threads ({columns}) VALUES ({row})", rows)
            connection.executemany("INSERT INTO messages VALUES ('a', ?, 'm', 0, '', '{}')", values)
        steps[0] = 0
        assert (await store.remove(RemovalScope(tenant="a", before=50))).threads == {"a": 50}
        await store.close()
        return steps[0]

    monkeypatch.setattr("agent_server.runs.store.connections.sqlite3.connect", counting)
    few, many = await cost(60), await cost(1000)
    assert many < 2 * few


async def test_the_file_shrinks_after_an_erasure(tmp_path: Path) -> None:
    place = tmp_path / "threads.db"
    store = Store(f"sqlite:///{place}")
    await store.open()
    await begun(store, "b", "stays")
    empty = place.stat().st_size
    for number in range(40):
        await store.begin_run("a", f"t{number}", "r", messages=[user("u1", "words " * 5000)])
    await store.remove(RemovalScope(before=0))  # writes the log into the file
    await store.remove(RemovalScope(tenant="a"))
    assert place.stat().st_size < empty + 300_000
    assert await left(store, "a", "b") == {"a": set(), "b": {"stays"}}
    await store.close()


async def test_one_key_of_a_tenant_is_erased_and_the_others_stay(store: Store) -> None:
    for key in ("ann", "bob"):
        note_ids(key=key)
        await begun(store, "acme", f"{key}s")
        await store.save_response("acme", f"{key}s", {"x": 1})
    await begun(store, "acme", "anns")  # bob asks in a thread of ann's
    assert (await store.remove(RemovalScope(tenant="acme", key="ann"))).by_tenant() == {"acme": (1, 1)}
    assert await left(store, "acme") == {"acme": {"bobs"}}
    assert await store.response("acme", "anns") is None and await store.response("acme", "bobs") is not None
    with pytest.raises(ValueError, match="needs a tenant or a time"):
        RemovalScope()


async def test_a_store_that_cannot_be_used_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        async def remove(self, scope: RemovalScope) -> RemovedCounts:
            raise StoreUnavailable("the disk is full")

    told: list[RemovedCounts | None] = []
    enough = asyncio.Event()

    def observe(removed: RemovedCounts | None) -> None:
        told.append(removed)
        if len(told) == 2:
            enough.set()

    task = asyncio.create_task(Retention(Broken(), 1, {}, 0.001, observe).run())
    await enough.wait()
    task.cancel()
    assert told == [None, None]


# ---- in a server ----------------------------------------------------------------------------------------------------


def entries(place: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in place.read_text().splitlines()]
    for entry in found:
        del entry["time"]
    return found


async def test_a_server_sweeps_and_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    store = Store(url)
    await store.open()
    await begun(store, "trial", "t")
    await store.close()
    audit = tmp_path / "audit.jsonl"
    given = {"store_url": url, "audit_log": audit, "tenant_keep_days": "trial=0.00000001", "keep_sweep": 1}
    async with serving(scripted("Yes."), **given) as running:
        async with asyncio.timeout(20), httpx.AsyncClient(base_url=running.url) as client:
            while "retention_sweeps_total{" not in (scrape := (await client.get("/metrics")).text):
                await asyncio.sleep(0.01)
        assert await left(running.server.store, "trial") == {"trial": set()}
    samples = {
        (each.name, *each.labels.values()): each.value
        for family in text_string_to_metric_families(scrape)
        for each in family.samples
    }
    assert samples["agent_server:threads_removed_total", "retention"] == 1
    assert samples["agent_server:retention_sweeps_total", "done"] >= 1
    assert entries(audit) == [
        {"action": "threads.removed", "tenant": "trial", "threads": 1, "responses": 0, "reason": "retention"}
    ]


@pytest.mark.parametrize("given", ["trial", "trial=soon", "trial=-1", "trial=nan"])
async def test_days_that_are_none_stop_the_start(given: str) -> None:
    with pytest.raises(ValueError, match="Write tenants with their days"):
        async with serving(scripted("Yes."), tenant_keep_days=given):
            pass


async def test_an_operator_erases_a_key_s_data_and_what_runs_is_stopped(tmp_path: Path) -> None:
    secrets = {name: new_secret() for name in ("ann", "bob", "ops")}
    for name, secret in secrets.items():
        scopes = ("operate",) if name == "ops" else ("use",)
        add_key(tmp_path / "keys.toml", KeyEntry(name=name, hash=digest(secret), tenant="acme", scopes=scopes))
    given = {"keys_file": tmp_path / "keys.toml", "audit_log": tmp_path / "audit.jsonl"}
    async with serving(scripted("A long answer. " * 400), **given) as running:

        def client(name: str) -> httpx.AsyncClient:
            return httpx.AsyncClient(base_url=running.url, headers={"x-api-key": secrets[name]}, timeout=60)

        async with client("ann") as ann, client("bob") as bob, client("ops") as ops:
            await ann.post("/agui", json=body(said("hello"), thread="anns"))
            await bob.post("/agui", json=body(said("hello"), thread="bobs", run="r2"))
            assert (await ann.delete("/operator/threads?tenant=acme")).status_code == 403
            assert (await ops.delete("/operator/threads")).status_code == 400
            assert (await ops.delete("/operator/threads?tenant=acme&user=x")).status_code == 400
            assert (await ann.get("/agui/runs/r1")).status_code == 200
            erased = await ops.delete("/operator/threads?tenant=acme&key=ann")
            assert (erased.json()["status"], erased.json()["threads"], erased.json()["responses"]) == ("finished", 1, 0)
            assert (await ann.get("/agui/threads/anns")).status_code == 404
            assert (await ann.get("/agui/runs/r1")).status_code == 404, "nor is it replayed"
            assert (await bob.get("/agui/threads/bobs")).status_code == 200
            async with bob.stream("POST", "/agui", json=body(said("go on", "u2"), thread="new", run="r3")) as stream:
                lines = stream.aiter_lines()
                while "RUN_STARTED" not in await anext(lines):
                    pass
                assert (await ops.delete("/operator/threads?tenant=acme")).json()["threads"] == 2
                assert "cancelled" in "".join([line async for line in lines])
            assert (await bob.get("/agui/threads/new")).status_code == 404
    told = [entry for entry in entries(tmp_path / "audit.jsonl") if entry["action"] == "threads.removed"]
    assert [(each["by"], each["tenant"], each.get("of_key"), each["threads"]) for each in told] == [
        ("ops", "acme", "ann", 1),
        ("ops", "acme", None, 2),
    ]


async def test_an_erasure_says_how_far_it_is_and_continues_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "SLICE", 1)
    monkeypatch.setattr("agent_server.http.routes.threads_routes.WAIT_SECONDS", 0.0)
    secret = new_secret()
    add_key(tmp_path / "keys.toml", KeyEntry(name="ops", hash=digest(secret), tenant="ops", scopes=("operate",)))
    place = f"sqlite:///{tmp_path}/threads.db"
    store = Store(place)
    await store.open()
    for number in range(40):
        await begun(store, "acme", f"t{number}")
    await store.close()
    given = {"store_url": place, "keys_file": tmp_path / "keys.toml", "audit_log": tmp_path / "audit.jsonl"}
    headers = {"x-api-key": secret}
    async with (
        serving(scripted("Yes."), **given) as running,
        httpx.AsyncClient(base_url=running.url, headers=headers) as ops,
    ):
        begun_ = await ops.delete("/operator/threads?tenant=acme")
        assert begun_.status_code == 202 and begun_.json()["total"] == 40
        again = await ops.delete("/operator/threads?tenant=acme")
        assert again.json()["id"] == begun_.json()["id"], "it is the same erasure"
        where = begun_.headers["location"]
        while not (told := (await ops.get(where)).json())["threads"] > 0:
            assert told["status"] == "running"
        assert told["threads"] < 40
    async with serving(scripted("Yes."), **given) as running:
        async with asyncio.timeout(30), httpx.AsyncClient(base_url=running.url, headers=headers) as ops:
            while (told := (await ops.get(where)).json())["status"] == "running":
                await asyncio.sleep(0.01)
            assert (told["threads"], told["total"]) == (40, 40) and told["ended_at"]
            assert (await ops.get("/operator/erasures")).json() == {"erasures": [told]}
            assert (await ops.get("/operator/erasures/none")).status_code == 404
        assert await left(running.server.store, "acme") == {"acme": set()}
    removed = [each for each in entries(tmp_path / "audit.jsonl") if each["action"] == "threads.removed"]
    assert [(each["by"], each["threads"]) for each in removed] == [("ops", 40)]
