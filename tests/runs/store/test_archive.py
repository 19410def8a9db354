"""Backups between databases, and removal for good."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import column, select, table
from typer.testing import CliRunner

from agent_server.cli.main import app
from agent_server.runs.store import RemovalScope, Store, StoreUnavailable, archive
from agent_server.runs.store.archive import ArchiveError, backup, remove, restore
from agent_server.runs.store.connections import Connections, with_driver
from agent_server.runs.store.migrate import downgrade, load
from tests.runs.store.conftest import fresh_database
from tests.runs.store.test_store import assistant, ended, finished, user

CANARY = "canary-1f2e3d"


async def filled(url: str) -> dict[str, Any]:
    """A database with something in every table; what it tells."""
    store = Store(url)
    await store.open()
    await store.begin_run("a", "t", "r", messages=[user("u1", CANARY)])
    conclusion = ended(finished(), messages=[user("u1", CANARY), assistant("a1", "Yes.")])
    await store.end_run(msgspec.structs.replace(conclusion, tenant="a"))
    await store.begin_run("a", "t", "r2", messages=[user("u1", CANARY), user("u2", "é\x00")])
    await store.delete_message("a", "t", "u2")
    await store.give_feedback("a", "t", "a1", 1.0, "good")
    await store.save_response("a", "resp", {"x": CANARY})
    await store.begin_run("b", "t", "r", messages=[user("u1", "b's")])
    await store.close()
    return await told(url)


async def told(url: str) -> dict[str, Any]:
    store = Store(url)
    await store.open()
    found = {
        tenant: [
            await store.messages(tenant, "t"),
            await store.removals(tenant, "t"),
            await store.runs(tenant, "t"),
            await store.feedback(tenant, "t"),
            await store.response(tenant, "resp"),
            [each.name for each in (await store.threads(tenant))[0]],
        ]
        for tenant in "ab"
    }
    await store.close()
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
async def other(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new/other.db"
    return await fresh_database(request.getfixturevalue("postgres_server"))


async def test_what_is_backed_up_is_restored_on_either_database(url: str, other: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archive, "PAGE", 1)
    before = await filled(url)
    rows = await backup(url, tmp_path / "b.gz")
    assert (tmp_path / "b.gz").stat().st_mode & 0o777 == 0o600
    assert await restore(other, tmp_path / "b.gz") == rows > 8
    assert await told(other) == before
    with pytest.raises(ArchiveError, match="already"):
        await restore(other, tmp_path / "b.gz")
    with pytest.raises(ArchiveError, match="cannot be created"):
        await backup(url, tmp_path / "b.gz")


async def test_a_backup_is_of_one_moment(url: str, tmp_path: Path, monkeypatch):
    """A thread that is stored between two tables is in neither."""
    await filled(url)
    store = Store(url)
    await store.open()
    rows = archive._rows

    def interrupted(connection: Any, source: Any) -> Any:
        yield from rows(connection, source)
        late = store.begin_run("c", f"late-{source.name}", f"r-{source.name}", messages=[user("u", "late")])
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, late).result()

    monkeypatch.setattr(archive, "_rows", interrupted)
    await backup(url, tmp_path / "b.gz")
    await store.close()
    assert "late" not in gzip.decompress((tmp_path / "b.gz").read_bytes()).decode()


@pytest.mark.parametrize("damage", ["cut", "line", "text", "newer"])
async def test_half_a_backup_restores_nothing(url: str, tmp_path: Path, damage: str):
    source = f"sqlite:///{tmp_path}/source.db"
    await filled(source)
    await backup(source, tmp_path / "b.gz")
    whole = (tmp_path / "b.gz").read_bytes()
    lines = gzip.decompress(whole).splitlines(keepends=True)
    broken = {
        "cut": whole[: len(whole) // 2],
        "line": gzip.compress(b"".join([*lines[:3], *lines[4:]])),
        "text": b"no backup",
        "newer": gzip.compress(lines[0].replace(b"00", b"99") + b"".join(lines[1:])),
    }[damage]
    (tmp_path / "broken.gz").write_bytes(broken)
    with pytest.raises(ArchiveError):
        await restore(url, tmp_path / "broken.gz")
    assert (await told(url))["a"][0] == []


async def test_a_backup_of_an_earlier_version_is_brought_to_the_newest(url: str, tmp_path: Path):
    source = f"sqlite:///{tmp_path}/source.db"
    before = await filled(source)
    connections = Connections(with_driver(source))
    scripts = await asyncio.to_thread(load)
    await connections.begin(lambda connection: downgrade(connection, scripts, "0001"))
    await connections.dispose()
    await backup(source, tmp_path / "b.gz")
    lines = gzip.decompress((tmp_path / "b.gz").read_bytes()).splitlines(keepends=True)
    head = lines[0].replace(str(load().get_current_head()).encode(), b"0001")
    rows = [line.replace(b',"key":""', b"") for line in lines[1:]]  # a column of a later version
    (tmp_path / "b.gz").write_bytes(gzip.compress(head + b"".join(rows)))
    await restore(url, tmp_path / "b.gz")
    assert (await told(url))["a"][0] == before["a"][0]


def content(folder: Path) -> bytes:
    """Every byte of the database's files."""
    return b"".join(each.read_bytes() for each in folder.glob("threads.db*"))


async def test_a_tenants_data_is_erased_and_nobody_elses(url: str, tmp_path: Path):
    before = await filled(url)
    assert (await remove(url, RemovalScope(tenant="a"))).threads == {"a": 1}
    after = await told(url)
    assert after["a"] == [[], [], [], [], None, []] and after["b"] == before["b"]
    if url.startswith("sqlite"):
        assert CANARY.encode() not in content(tmp_path)


async def test_threads_are_removed_by_age(url: str, monkeypatch):
    before = await filled(url)
    store = Store(url)
    await store.open()
    used = {tenant: (await store.thread(tenant, "t")).updated_at for tenant in "ab"}
    await store.close()
    assert not await remove(url, RemovalScope(tenant="b", before=used["b"]))
    assert not await remove(url, RemovalScope(before=min(used.values())))
    assert await told(url) == before
    assert (await remove(url, RemovalScope(tenant="b", before=used["b"] + 1))).threads == {"b": 1}
    assert (await told(url))["a"] == before["a"] and (await told(url))["b"][0] == []


def test_the_command_says_in_the_audit_log_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    url = f"sqlite:///{tmp_path}/a.db"
    asyncio.run(filled(url))
    monkeypatch.setenv("AGENT_SERVER_AUDIT_LOG", str(tmp_path / "audit.jsonl"))

    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["threads", *arguments, "--store", url])

    assert run("backup", str(tmp_path / "b.gz")).exit_code == 0
    assert run("prune", "--older-than", "90d").stdout == "0 threads were removed.\n"
    assert run("prune", "--older-than", "soon").exit_code == 2
    assert run("erase", "--tenant", "a").exit_code == 1  # nobody said yes
    assert run("erase", "--tenant", "a", "--yes").stdout == "1 threads were removed.\n"
    refused = run("restore", str(tmp_path / "b.gz"))
    assert refused.exit_code == 1 and "already" in refused.stderr
    entries = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert all(entry.pop("time") and "command line" in entry.pop("by") for entry in entries)
    assert [entry.pop("action") for entry in entries] == ["threads.backed_up", "threads.removed", "threads.removed"]
    assert entries[1:] == [
        {"threads": 0, "responses": 0, "reason": "age"},
        {"tenant": "a", "threads": 1, "responses": 1, "reason": "erasure"},
    ]


async def test_a_database_of_a_newer_version_is_refused_with_what_to_do(url: str, tmp_path: Path):
    """As an older server finds it after a downgrade; and the newer one brings it back."""
    before = await filled(url)
    newest = str(load().get_current_head())
    connections = Connections(with_driver(url))

    async def revision(number: str) -> None:
        change = f"UPDATE alembic_version SET version_num = '{number}'"
        await connections.begin(lambda connection: connection.exec_driver_sql(change))

    await revision("0999")
    said = f"revision 0999 of a newer version.*up to {newest}.*agent-server threads downgrade {newest}.*backup"
    store = Store(url)
    with pytest.raises(StoreUnavailable, match=said):
        await store.open()
    await store.close()
    with pytest.raises(ArchiveError, match=said):
        await backup(url, tmp_path / "b.gz")
    await revision(newest)
    with pytest.raises(ArchiveError, match=r"Unknown revision 'x'\. Use one of 0001"):
        await archive.bring_back(url, "x")
    assert await archive.bring_back(url, "0006") == newest
    query = select(column("version_num")).select_from(table("alembic_version"))
    assert await connections.connect(lambda connection: connection.scalar(query)) == "0006"
    await connections.dispose()
    assert (await told(url))["a"][0] == before["a"][0]


async def test_a_file_of_an_earlier_version_shrinks_once_it_was_compacted(tmp_path: Path):
    place = tmp_path / "threads.db"
    with contextlib.closing(sqlite3.connect(place)) as earlier:
        earlier.execute("CREATE TABLE made_without_auto_vacuum (x)")
    url = f"sqlite:///{place}"
    store = Store(url)
    await store.open()
    for tenant in "ab":
        for number in range(20):
            await store.begin_run(tenant, f"t{number}", "r", messages=[user("u1", "words " * 5000)])
    await store.remove(RemovalScope(tenant="a"))
    await store.close()
    whole = place.stat().st_size
    before, after = await archive.compact(url)
    assert before == whole and after < 0.7 * whole
    await remove(url, RemovalScope(tenant="b"))
    assert place.stat().st_size < 0.3 * whole
