"""Files in messages are kept once, and come back as they were."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select, text

from adapters.errors import RequestError
from agent_server.runs.store import RemovalScope, Store, archive, contents, migrate, schema
from agent_server.runs.store.archive import backup, remove, restore
from agent_server.runs.store.connections import Connections, with_driver
from agent_server.runs.store.contents import LEAST, MARK, joined, marked, parted
from agent_server.runs.store.questions import BODIES
from agent_server.runs.store.rows import encoded
from agent_server.runs.store.sizes import stored_bytes
from events.vocabulary import Interrupt, InterruptOutcome, RunFinished
from tests.runs.store.conftest import fresh_database
from tests.runs.store.test_archive import content
from tests.runs.store.test_store import assistant, ended, user
from tests.server import scripted, serving

ROOT = Path(__file__).parents[3]


def picture(seed: int, size: int = 3000) -> bytes:
    return random.Random(seed).randbytes(size)


def shown(id: str, content: bytes, kind: str = "image/png") -> dict[str, Any]:
    """A user's message with a picture as AG-UI has it."""
    data = {"type": "data", "value": base64.b64encode(content).decode(), "mimeType": kind}
    return {"id": id, "role": "user", "content": [{"type": "text", "text": "See:"}, {"type": "image", "source": data}]}


async def held(store: Store, tenant: str | None = None) -> list[bytes]:
    """Contents in the table."""
    table = schema.contents
    query = select(table.c.content).order_by(table.c.digest)
    query = query if tenant is None else query.where(table.c.tenant == tenant)
    return list(await store.read(lambda connection: _all(connection, query)))


def _all(connection: Any, query: Any) -> Any:
    return connection.scalars(query).all()


async def turn(store: Store, number: int, messages: list[dict], *, tenant: str = "", thread: str = "t") -> list[dict]:
    """A run that begins from the messages and answers; what the client has then."""
    await store.begin_run(tenant, thread, f"r{number}", messages=messages)
    said = [*messages, assistant(f"a{number}", "Yes.")]
    conclusion = ended(RunFinished(thread_id=thread, run_id=f"r{number}"), thread, f"r{number}", messages=said)
    await store.end_run(msgspec.structs.replace(conclusion, tenant=tenant))
    return said


def whole(text: str) -> str:
    made = parted(text)
    return joined(made.text, {digest: base64.b64encode(each).decode() for digest, each in made.contents.items()})


PIECES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ['"', "\\", MARK, ";base64,", "data:image/png;base64,", "=", "==", "A" * 1367, "/" * 1368, "0" * 64]
    ),
    st.integers(48 * 2**12 - 2, 48 * 2**12 + 2).map(lambda size: base64.b64encode(bytes(size)).decode()),
    st.builds(
        lambda size, seed: base64.b64encode(picture(seed, size)).decode(), st.integers(0, 4000), st.integers(0, 3)
    ),
)
JSON = st.recursive(
    st.lists(PIECES, max_size=6).map("".join),
    lambda each: (
        st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=5), each, max_size=3) | each.map(json.dumps)
    ),
    max_leaves=6,
)


@given(JSON)
def test_what_is_taken_out_is_put_back(value: object):
    text = encoded(value) or ""
    made = parted(text)
    assert whole(text) == text
    assert all(hashlib.sha256(each).hexdigest() == digest for digest, each in made.contents.items())
    assert marked(made.text) == set(made.contents) and all(len(each) >= LEAST for each in made.contents.values())


@given(st.lists(PIECES, max_size=8).map("".join))
def test_any_text_comes_back_whether_it_is_json_or_not(text: str):
    assert whole(text) == text


@pytest.mark.parametrize("length", [LEAST - 1, LEAST, LEAST + 1, LEAST + 2, 5000])
@pytest.mark.parametrize("offset", [0, 1, 63, 1023, 1024, 1025, 1100])
def test_a_content_is_found_wherever_it_begins(length: int, offset: int):
    data = base64.b64encode(picture(1, length)).decode()
    for body in (
        json.dumps({"a": "x " * (offset // 2) + "y" * (offset % 2), "b": data}),
        json.dumps({"a": "-" * offset, "b": f"data:image/png;base64,{data}", "c": data}),
        json.dumps({"nested": json.dumps({"a": "-" * offset, "data": data})}),
        json.dumps(f"{'-' * offset}![a picture](data:image/png;base64,{data}) and more"),
    ):
        assert whole(body) == body
        assert [*parted(body).contents.values()] == [picture(1, length)] * (length >= LEAST), body[:40]


@pytest.mark.parametrize(
    "data",
    ["A" * 1365 + "B==", "A" * 1366, "A" * 1369, "-" * 2000, "a b" * 700, base64.b64encode(b"x" * 2000).decode()[:-1]],
)
def test_what_would_not_be_encoded_to_the_same_stays(data: str):
    text = json.dumps({"url": f"data:x;base64,{data}"})
    assert parted(text) == (text, {})


async def test_a_picture_that_comes_with_every_turn_is_kept_once(store: Store):
    said: list[dict] = []
    for number in range(20):
        said = await turn(store, number, [*said, shown(f"u{number}", picture(1), f"image/{number}")])
    assert await store.messages("", "t") == said
    assert await held(store) == [picture(1)]
    whole_size = sum(len(encoded(each) or "") for each in said)
    assert len(picture(1)) < await store.read(lambda connection: stored_bytes(connection, "")) < whole_size / 5
    branch = await store.branch_thread("", "t", "a19")
    assert await store.messages("", branch.id) == said and await held(store) == [picture(1)]
    await store.delete_thread("", "t")
    assert await store.messages("", branch.id) == said
    await store.delete_thread("", branch.id)
    assert await held(store) == [] and await store.read(lambda connection: stored_bytes(connection, "")) == 0


async def test_edits_keep_what_can_be_had_back(store: Store):
    said = await turn(store, 1, [shown("u1", picture(1))])
    said = await turn(store, 2, [*said, shown("u2", picture(2))])
    await store.delete_message("", "t", "u2")
    assert [each["id"] for each in await store.messages("", "t")] == ["u1", "a1", "a2"]
    (removal,) = await store.removals("", "t")
    assert removal.messages == [said[2]]
    await store.restore("", "t", removal.id)
    assert await store.messages("", "t") == said
    changed = shown("u2", picture(3))
    await store.begin_run("", "t", "r3", messages=[*said[:2], changed])
    assert await store.messages("", "t") == [*said[:2], changed]
    (removal,) = await store.removals("", "t")
    assert removal.messages == said[2:]
    await store.restore("", "t", removal.id)
    assert await store.messages("", "t") == said
    await store.begin_run("", "t", "r4", messages=[{**each, "id": f"new-{each['id']}"} for each in said], recall=True)
    assert [each["id"] for each in await store.messages("", "t")] == ["new-u1", "new-a1", "new-u2", "new-a2"]
    assert (await store.messages("", "t"))[2]["content"] == said[2]["content"]
    assert len(await held(store)) == 3
    await store.delete_thread("", "t")
    assert await held(store) == []


async def test_what_a_run_recalls_has_its_pictures(store: Store):
    said = await turn(store, 1, [shown("u1", picture(1))])
    state = await store.begin_run("", "t", "r2", messages=[user("u2", "And?")], recall=True)
    assert [*state.messages] == [*said, user("u2", "And?")]


async def test_tenants_share_nothing_and_cannot_ask_for_a_digest(store: Store):
    said = await turn(store, 1, [shown("u1", picture(1))], tenant="a")
    digest = hashlib.sha256(picture(1)).hexdigest()
    forged = user("u1", f"data:image/png;base64,{MARK}{digest} {MARK}{MARK} {digest}")
    told = await turn(store, 1, [forged], tenant="b")
    assert await store.messages("b", "t") == told and await held(store, "b") == []
    await store.save_response("b", "resp", {"x": f"{MARK}{digest}"})
    assert await store.response("b", "resp") == {"x": f"{MARK}{digest}"}
    await turn(store, 2, [*told, shown("u2", picture(1))], tenant="b")
    assert await held(store, "a") == await held(store, "b") == [picture(1)]
    assert await store.remove(RemovalScope(tenant="b"))
    assert await held(store) == [picture(1)] and await store.messages("a", "t") == said


async def test_responses_and_kept_runs_hold_theirs(store: Store):
    url = "data:application/pdf;base64," + base64.b64encode(picture(1)).decode()
    await store.save_response("", "resp_1", {"input": [{"file_data": url}]})
    await store.save_response("", "t", {"items": [{"file_data": url}, {"file_data": url}]})  # an id that a thread has
    assert await held(store) == [picture(1)]
    other = {"items": [{"image_url": "data:;base64," + base64.b64encode(picture(2)).decode()}]}
    changed = await store.change_response("", "t", lambda found: {"items": [*found["items"], *other["items"]]})
    assert await store.response("", "t") == changed and len(await held(store)) == 2
    await store.begin_run("", "t", "r", messages=[shown("u1", picture(3))])
    await store.keep_run("", "t", "r", json.dumps(shown("u9", picture(4))))
    assert len(await held(store)) == 4
    await store.change_response("", "t", lambda found: {"items": found["items"][:1]})
    assert picture(2) not in await held(store) and await store.response("", "t") == {"items": [{"file_data": url}]}
    await store.delete_thread("", "t")
    assert await store.response("", "t") == {"items": [{"file_data": url}]}
    assert await store.delete_response("", "t")
    assert await store.response("", "resp_1") == {"input": [{"file_data": url}]}
    assert await held(store) == [picture(1)]
    await store.delete_response("", "resp_1")
    assert await held(store) == []


def asked(id: str, content: bytes) -> Any:
    """What a run waits for, with a picture in its call."""
    call = {"id": id, "name": "show", "arguments": {"image": base64.b64encode(content).decode()}}
    return {
        "interrupt": Interrupt(id=id, reason="tool_call", message=DATA + base64.b64encode(content).decode()),
        "call": call,
    }


DATA = "data:image/png;base64,"


async def interrupted(store: Store, thread: str = "t") -> list[dict[str, Any]]:
    """A thread whose interrupt, call, answer, result and message have one picture; what is told of the interrupt."""
    await store.begin_run("", thread, "r", messages=[shown("u1", picture(1))])
    waiting = RunFinished(thread_id=thread, run_id="r", outcome=InterruptOutcome(interrupts=[]))
    await store.end_run(
        ended(waiting, thread, "r", messages=[shown("u1", picture(1))], interrupts=[asked("i1", picture(1))])
    )
    answer: Any = {"status": "resolved", "payload": {"image": base64.b64encode(picture(1)).decode()}}
    assert await store.claim("", thread, {"i1": answer}, "r2")
    assert not await store.claim("", thread, {"i1": answer}, "r3")
    await store.record_result("", thread, "i1", [shown("x", picture(1))["content"], "Here it is."], "m1")
    return [msgspec.to_builtins(each) for each in await store.interrupts("", thread)]


async def test_interrupts_hold_theirs(store: Store):
    (told,) = await interrupted(store)
    data = base64.b64encode(picture(1)).decode()
    assert told["interrupt"]["message"] == DATA + data and told["call"]["arguments"] == {"image": data}
    assert told["answer"]["payload"] == {"image": data}
    assert told["result"] == [shown("x", picture(1))["content"], "Here it is."]
    assert (told["status"], told["resumed_by"], told["result_message_id"]) == ("answered", "r2", "m1")
    assert await held(store) == [picture(1)]
    raw = await store.read(lambda connection: _all(connection, select(schema.interrupts.c.call)))
    assert data not in raw[0] and await stored_bytes_of(store) < 2 * len(data) + 8000
    found = await store.begin_run("", "t", "r4", messages=[user("u9", "Go on.")])
    assert [msgspec.to_builtins(each) for each in found.interrupts] == [told]
    await store.delete_thread("", "t")
    assert await held(store) == []


async def stored_bytes_of(store: Store) -> int:
    return await store.read(lambda connection: stored_bytes(connection, ""))


async def test_a_kept_run_of_a_server_that_ended_has_its_pictures(url: str):
    body = json.dumps(shown("u1", picture(1)))
    first = Store(url)
    await first.open()
    await first.begin_run("", "t", "r")
    await first.keep_run("", "t", "r", body)
    await first.close()
    second = Store(url)
    await second.open()
    try:
        assert [each.body for each in await second.find_broken()] == [body]
    finally:
        await second.close()


async def test_a_backup_holds_each_content_once_and_gives_it_back(url: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(archive, "FILES_PAGE", 1)
    store = Store(url)
    await store.open()
    said: list[dict] = []
    for number in range(4):
        said = await turn(store, number, [*said, shown(f"u{number}", picture(number // 2))])
    await store.save_response("b", "resp", {"url": shown("u", picture(1))})
    await store.close()
    rows = await backup(url, tmp_path / "b.gz")
    other = f"sqlite:///{tmp_path}/other.db"
    assert await restore(other, tmp_path / "b.gz") == rows
    for place in (url, other):
        store = Store(place)
        await store.open()
        assert await store.messages("", "t") == said
        assert await store.response("b", "resp") == {"url": shown("u", picture(1))}
        assert len(await held(store, "")) == 2 and len(await held(store, "b")) == 1
        await store.close()


async def test_what_is_erased_is_not_in_the_file(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/threads.db"
    canary = b"canary-77aa" * 300
    store = Store(url)
    await store.open()
    await turn(store, 1, [shown("u1", canary)], tenant="a")
    await store.save_response("a", "resp", shown("u1", canary + b"!"))
    await turn(store, 1, [shown("u1", picture(1))], tenant="b")
    await store.close()
    assert b"canary-77aa" in content(tmp_path)
    await remove(url, RemovalScope(tenant="a"))
    assert b"canary-77aa" not in content(tmp_path)
    store = Store(url)
    await store.open()
    assert await held(store) == [picture(1)]
    await store.close()


async def migrated(url: str, step: Any, target: str) -> None:
    connections = Connections(with_driver(url))
    scripts = await asyncio.to_thread(migrate.load)
    await connections.begin(lambda connection: step(connection, scripts, target))
    await connections.dispose()


async def test_the_migration_takes_out_what_is_stored_and_puts_it_back(url: str):
    store = Store(url)
    await store.open()
    said: list[dict] = []
    for number in range(12):
        said = await turn(store, number, [*said, shown(f"u{number}", picture(number % 2))])
    await store.delete_message("", "t", "a3")
    await store.delete_message("", "t", "u4")
    await store.save_response("b", "resp", shown("u", picture(5)))
    await store.begin_run("", "t2", "r")
    await store.keep_run("", "t2", "r", json.dumps(shown("u9", picture(4))))
    await interrupted(store, "t3")
    told = await store.messages("", "t"), await store.removals("", "t"), await store.interrupts("", "t3")
    await store.close()
    await migrated(url, migrate.downgrade, "0005")
    connections = Connections(with_driver(url))
    for table in (schema.messages, schema.removed_messages, schema.responses, schema.kept_runs):
        bodies = await connections.connect(partial(_all, query=select(table.c.body)))
        assert bodies and not any(MARK in each for each in bodies)
        assert any(len(each) > 4000 for each in bodies), table.name
    for column in (schema.interrupts.c[name] for name in BODIES):
        (said,) = await connections.connect(partial(_all, query=select(column)))
        assert MARK not in said and len(said) > 4000, column.name
    await connections.dispose()
    await migrated(url, migrate.upgrade, "head")
    store = Store(url)
    await store.open()
    assert (await store.messages("", "t"), await store.removals("", "t"), await store.interrupts("", "t3")) == told
    assert await store.response("b", "resp") == shown("u", picture(5))
    assert [each.body for each in await store.find_broken()] == [json.dumps(shown("u9", picture(4)))]
    assert len(await held(store, "")) == 3 and await held(store, "b") == [picture(5)]
    for thread in ("t", "t2", "t3"):
        await store.delete_thread("", thread)
    await store.delete_response("b", "resp")
    assert await held(store) == []
    await store.close()


async def test_servers_that_delete_and_keep_one_picture_at_once_lose_nothing(url: str):
    stores = [Store(url) for _ in range(3)]
    for each in stores:
        await each.open()
    shown_now = [shown("u1", picture(1)), shown("u2", picture(2))]

    async def one(store: Store, name: str) -> None:
        for number in range(12):
            thread = f"{name}-{number}"
            await store.begin_run("", thread, "r", messages=shown_now if number % 2 else shown_now[::-1])
            await store.save_response("", thread, shown_now)
            assert len(await store.messages("", thread)) == 2
            if number % 3:
                await store.delete_thread("", thread)
                await store.delete_response("", thread)

    await asyncio.gather(*(one(each, f"s{place}{task}") for place, each in enumerate(stores) for task in range(2)))
    threads, _ = await stores[0].threads("")
    assert len(threads) == 24
    for thread in threads:
        assert [each["content"] for each in await stores[1].messages("", thread.id)] in (
            [each["content"] for each in shown_now],
            [each["content"] for each in shown_now[::-1]],
        )
        assert await stores[2].response("", thread.id) == shown_now
        await stores[2].delete_thread("", thread.id)
        await stores[2].delete_response("", thread.id)
    assert await held(stores[0]) == []
    for each in stores:
        await each.close()


@pytest.fixture
async def engine(postgres_server: str):
    url = await fresh_database(postgres_server)
    store = Store(url)
    await store.open()
    await store.save_response("", "first", shown("u", picture(1)))
    await store.close()
    connections = Connections(with_driver(url))
    assert connections.asyncpg is not None
    yield connections.asyncpg
    await connections.dispose()


TAKEN = {hashlib.sha256(picture(1)).hexdigest(): picture(1)}


def take_up(connection: Any) -> None:
    contents.keep(connection, schema.response_contents, "", "second", TAKEN)


def let_go(connection: Any) -> None:
    contents.keep_only(connection, schema.response_contents, "", "first", {})


@pytest.mark.parametrize(("one", "other"), [(take_up, let_go), (let_go, take_up)])
async def test_what_one_server_takes_up_another_does_not_remove(engine: Any, one: Any, other: Any):
    """Two transactions, each of which begins before the other ends."""

    async def late() -> None:
        async with engine.begin() as connection:
            await connection.run_sync(other)

    async with engine.begin() as connection:
        await connection.run_sync(one)
        task = asyncio.create_task(late())
        waiting = select(func.count()).select_from(text("pg_locks")).where(text("NOT granted"))
        async with engine.connect() as watch, asyncio.timeout(20):
            while not task.done() and not await watch.scalar(waiting):
                await watch.rollback()
    await task
    async with engine.connect() as connection:
        kept = parted(f'"{contents.encoded(picture(1))}"').text
        assert await connection.run_sync(lambda connection: contents.whole_one(connection, "", kept))


async def test_a_message_and_its_pictures_are_read_as_of_one_moment(url: str):
    stores = [Store(url) for _ in range(2)]
    for each in stores:
        await each.open()
    said = await turn(stores[0], 1, [shown("u1", picture(1))])

    loop = asyncio.get_running_loop()

    def slowly(connection: Any) -> list[str]:
        bodies = _all(connection, select(schema.messages.c.body).order_by(schema.messages.c.position))
        asyncio.run_coroutine_threadsafe(stores[1].delete_thread("", "t"), loop).result(20)
        return contents.whole(connection, "", bodies)

    assert await stores[0].read(slowly) == [encoded(each) for each in said]
    assert await stores[0].messages("", "t") == []
    for each in stores:
        await each.close()


async def test_a_content_that_went_between_two_reads_is_told(store: Store):
    await turn(store, 1, [shown("u1", picture(1))])

    def lose(connection: Any) -> None:
        connection.execute(schema.contents.delete())

    await store.write(lose)
    with pytest.raises(RequestError) as told:
        await store.messages("", "t")
    assert told.value.kind == "conflict"


async def doomed(url: str) -> None:
    """Keeps pictures and deletes threads until it is killed; says which threads stand."""
    store = Store(url)
    await store.open()
    for number in range(10_000):
        await turn(store, number, [shown("u1", picture(number % 5))], thread=f"t{number}")
        print(f"kept {number}", flush=True)
        if number % 2:
            await store.delete_thread("", f"t{number}")
            print(f"deleted {number}", flush=True)


def test_a_killed_server_leaves_every_content_that_is_used_and_no_other(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/threads.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.store.test_contents", url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = [process.stdout.readline().split() for _ in range(31)]
    process.kill()
    said += [line.split() for line in process.stdout.read().splitlines() if line]
    process.wait()
    process.stdout.close()

    async def check() -> None:
        store = Store(url)
        await store.open()
        for word, number in said:
            gone = ["deleted", number] in said
            messages = await store.messages("", f"t{number}")
            if not gone and messages:
                assert messages[0] == shown("u1", picture(int(number) % 5))
            assert not (gone and messages) and (messages or int(number) % 2), (word, number)
        threads, _ = await store.threads("")
        used = {picture(int(each.id[1:]) % 5) for each in threads}
        for each in threads:
            await store.messages("", each.id)
        assert set(await held(store)) == used
        await store.close()

    asyncio.run(check())


async def test_a_document_that_a_client_sends_with_every_turn_over_http(tmp_path: Path):
    document = b"A line of the document.\n" * 100
    data = base64.b64encode(document).decode()
    asked = {"type": "document", "source": {"type": "data", "value": data, "mimeType": "text/plain"}}
    url = f"sqlite:///{tmp_path}/threads.db"
    async with (
        serving(scripted("Read."), store_url=url) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as client,
    ):
        messages: list[dict[str, Any]] = []
        for number in range(3):
            messages.append({"id": f"u{number}", "role": "user", "content": [{"type": "text", "text": "?"}, asked]})
            body = {"threadId": "t", "runId": f"r{number}", "messages": messages, "state": {}, "tools": [], "context": [],
                    "forwardedProps": {}}  # fmt: skip
            await client.post("/agui", json=body)
            messages = (await client.get("/agui/threads/t/messages")).json()["messages"]
            assert [each["content"][1] for each in messages if each["role"] == "user"] == [asked] * (number + 1)
        file = {"type": "input_file", "filename": "a.txt", "file_data": f"data:text/plain;base64,{data}"}
        first = await client.post("/v1/responses", json={
            "model": "default", "input": [{"role": "user", "content": [file]}]})  # fmt: skip
        again = {"model": "default", "input": "Again.", "previous_response_id": first.json()["id"]}
        assert (await client.post("/v1/responses", json=again)).status_code == 200
        items = (await client.get(f"/v1/responses/{first.json()['id']}/input_items")).json()["data"]
        assert items[0]["content"][0]["file_data"] == file["file_data"]
    store = Store(url)
    await store.open()
    assert await held(store) == [document]
    await store.close()


if __name__ == "__main__":
    asyncio.run(doomed(sys.argv[1]))
