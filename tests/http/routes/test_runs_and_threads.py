"""Runs and threads over HTTP: control, reading again, lists, changes, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from adapters import sse
from agent_server.engines.scripted import Script
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest
from agent_server.http.server import READS
from agent_server.runs.store import thread_messages
from tests.server import scripted, serving


def body(text: str = "Hi", **changes: Any) -> dict[str, Any]:
    messages = [{"id": "u1", "role": "user", "content": text}]
    return {"threadId": "t1", "runId": "r1", "protocolVersion": "1.0", "messages": messages, **changes}


async def begun(client: httpx.AsyncClient, **changes: Any) -> asyncio.Task[httpx.Response]:
    """A run under way; the task reads its stream."""
    task = asyncio.create_task(client.post("/agui", json=body(**changes)))
    async with asyncio.timeout(5):
        while (await client.get("/agui/runs/r1")).json().get("lastEvent", 0) < 4:
            await asyncio.sleep(0.01)
    return task


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(frame["data"]) for frame in sse.parse([response.content])]


async def test_a_run_is_cancelled_and_its_stream_says_so():
    slow = scripted([Script(text="word " * 1000, delay=0.01)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        reading = await begun(client)
        assert (await client.post("/agui/runs/r1/cancel")).status_code == 202
        events = events_of(await reading)
        assert [event["type"] for event in events[-2:]] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
        assert events[-1]["outcome"] == {"type": "cancelled"}
        again = await client.post("/agui/runs/r1/cancel")
        assert again.status_code == 409
        runs = (await client.get("/agui/threads/t1/runs")).json()["runs"]
        assert [(run["id"], run["status"]) for run in runs] == [("r1", "cancelled")]


async def test_a_run_is_paused_modified_and_resumed():
    slow = scripted([Script(text="word " * 400, delay=0.005)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        reading = await begun(client)
        paused = await client.post("/agui/runs/r1/pause")
        assert paused.status_code == 202 and paused.json()["paused"] is True
        await asyncio.sleep(0.05)
        held = (await client.get("/agui/runs/r1")).json()["lastEvent"]
        await asyncio.sleep(0.1)
        assert (await client.get("/agui/runs/r1")).json()["lastEvent"] == held
        bad = await client.post("/agui/runs/r1/modify", json={"no_such": 1})
        assert bad.status_code == 400 and "sampling parameter" in bad.text
        assert (await client.post("/agui/runs/r1/modify", content=b"[]")).status_code == 400
        assert (await client.post("/agui/runs/r1/modify", json={"max_tokens": 30})).status_code == 202
        assert (await client.post("/agui/runs/r1/resume")).status_code == 202
        events = events_of(await reading)
    assert events[-1]["metadata"]["finishReason"] == "length"
    assert events[-1]["usage"][0]["outputTokens"] <= max(30, held)


@pytest.mark.parametrize("query", ["?after=999", "?after=-1", "?after=x", "?after=" + "9" * 40])
async def test_a_position_that_makes_no_sense_is_refused(query):
    async with serving(scripted("ok")) as running, httpx.AsyncClient(base_url=running.url) as client:
        await client.post("/agui", json=body())
        response = await client.get("/agui/runs/r1/events" + query)
        assert response.status_code == 400


async def test_another_tenant_finds_neither_run_nor_thread():
    keys = ("mine:k1", "theirs:k2")
    async with serving(scripted("ok"), api_keys=keys) as running, httpx.AsyncClient(base_url=running.url) as client:
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        assert (await client.post("/agui", json=body(), headers=mine)).status_code == 200
        for path in (
            "/agui/runs/r1",
            "/agui/runs/r1/events",
            "/agui/threads/t1",
            "/agui/threads/t1/messages",
            "/agui/threads/t1/runs",
        ):
            assert (await client.get(path, headers=mine)).status_code == 200
            assert (await client.get(path, headers=theirs)).status_code == 404
            assert (await client.get(path)).status_code == 401
        assert (await client.delete("/agui/threads/t1", headers=theirs)).status_code == 404
        assert (await client.get("/agui/threads", headers=theirs)).json() == {"threads": [], "nextCursor": None}


async def test_threads_are_listed_read_renamed_archived_judged_and_deleted():
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for number in range(3):
            await client.post(
                "/agui", json=body(f"Question {number}", threadId=f"t{number}", runId=f"r{number}", state={"n": number})
            )
        first = (await client.get("/agui/threads?limit=2")).json()
        assert [each["id"] for each in first["threads"]] == ["t2", "t1"]
        rest = (await client.get("/agui/threads", params={"cursor": first["nextCursor"]})).json()
        assert [each["name"] for each in rest["threads"]] == ["Question 0"]
        whole = (await client.get("/agui/threads/t1")).json()
        assert [message["role"] for message in whole["messages"]] == ["user", "assistant"]
        assert whole["state"] == {"n": 1} and whole["interrupts"] == [] and whole["running"] == []
        renamed = await client.patch("/agui/threads/t1", json={"name": "Mine", "archived": True, "metadata": {"a": 1}})
        assert renamed.json()["thread"]["name"] == "Mine" and renamed.json()["thread"]["metadata"] == {"a": 1}
        assert "t1" not in (await client.get("/agui/threads")).text
        assert "t1" in (await client.get("/agui/threads?archived=true")).text
        said = whole["messages"][1]["id"]
        judged = await client.post("/agui/threads/t1/feedback", json={"messageId": said, "score": 1, "comment": "yes"})
        assert judged.status_code == 201
        assert (await client.get("/agui/threads/t1/feedback")).json()["feedback"][0]["messageId"] == said
        assert (await client.delete("/agui/threads/t1")).status_code == 204
        assert (await client.get("/agui/threads/t1/messages")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "content"),
    [
        ("PATCH", "/agui/threads/t1", b'{"name": ""}'),
        ("PATCH", "/agui/threads/t1", b'{"nope": 1}'),
        ("PATCH", "/agui/threads/t1", b"\xff"),
        ("PATCH", "/agui/threads/t1", b"[" * 100_000),
        ("POST", "/agui/threads/t1/feedback", b'{"messageId": "x", "score": 7}'),
        ("GET", "/agui/threads?limit=0", b""),
        ("GET", "/agui/threads?limit=nine", b""),
        ("GET", f"/agui/threads?limit=000000001{'9' * 5000}", b""),
        ("PATCH", "/agui/threads/t1", b'{"metadata": {"a": ' + b"[" * 300 + b"]" * 300 + b"}}"),
        ("GET", "/agui/threads?cursor=nine", b""),
    ],
)
async def test_what_makes_no_sense_is_refused_with_four_hundred(method, path, content):
    async with serving(scripted("ok")) as running, httpx.AsyncClient(base_url=running.url) as client:
        await client.post("/agui", json=body())
        response = await client.request(method, path, content=content)
        assert response.status_code == 400 and len(response.content) < 2_000


async def test_no_run_begins_in_a_thread_that_is_too_large(monkeypatch):
    """It would hold up everyone else's: a run reads all messages. The thread can be made smaller."""
    monkeypatch.setattr(thread_messages, "MAX_BYTES", 5000)

    async def run(number: int) -> dict[str, Any]:
        message = {"id": f"u{number}", "role": "user", "content": f"{number} " + "word " * 600}
        return events_of(await client.post("/agui", json=body(runId=f"r{number}", messages=[message])))[-1]

    async with serving(scripted("ok")) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert [(await run(number))["type"] for number in (1, 2)] == ["RUN_FINISHED"] * 2
        refused = await run(3)
        assert (refused["type"], refused["code"]) == ("RUN_ERROR", "payload_too_large")
        assert "the limit is 5000" in refused["message"]
        stored = (await client.get("/agui/threads/t1/messages")).json()["messages"]
        assert [each["id"] for each in stored if each["role"] == "user"] == ["u1", "u2"]
        await client.delete("/agui/threads/t1/messages/u1")
        assert (await run(4))["type"] == "RUN_FINISHED"


async def test_a_thread_with_a_run_going_on_is_not_deleted():
    slow = scripted([Script(text="word " * 1000, delay=0.01)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        reading = await begun(client)
        assert (await client.get("/agui/threads/t1")).json()["running"] == ["r1"]
        assert (await client.delete("/agui/threads/t1")).status_code == 409
        await client.post("/agui/runs/r1/cancel")
        await reading
        assert (await client.delete("/agui/threads/t1")).status_code == 204


async def test_the_history_keeps_what_a_client_leaves_out_and_gives_back_what_an_edit_took():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:

        async def told(*messages: tuple[str, str]) -> list[str]:
            sent = [{"id": id, "role": "user", "content": text} for id, text in messages]
            assert (await client.post("/agui", json=body(messages=sent))).status_code == 200
            return await stored()

        async def stored() -> list[str]:
            return [each["content"] for each in (await client.get("/agui/threads/t1/messages")).json()["messages"]]

        await told(("u1", "one"))
        assert await told(("u2", "two")) == ["one", "Hello.", "two", "Hello."]
        assert await told(("u1", "one")) == ["one", "Hello."]
        (removal,) = (await client.get("/agui/threads/t1/removed")).json()["removed"]
        assert removal["kind"] == "regenerated"
        assert [each["content"] for each in removal["messages"]] == ["Hello.", "two", "Hello."]
        restored = await client.post(f"/agui/threads/t1/removed/{removal['id']}/restore")
        assert restored.status_code == 200 and len(restored.json()["messages"]) == 4
        assert (await client.delete("/agui/threads/t1/messages/u2")).status_code == 204
        assert await stored() == ["one", "Hello.", "Hello."]
        for method, path in (("DELETE", "messages/u2"), ("POST", "removed/x/restore")):
            assert (await client.request(method, f"/agui/threads/t1/{path}")).status_code == 404


async def test_a_branch_goes_on_from_a_message_and_leaves_the_thread_as_it_was():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:

        async def told(thread: str, *texts: str) -> list[dict]:
            sent = [{"id": f"{text}-id", "role": "user", "content": text} for text in texts]
            assert (await client.post("/agui", json={**body(messages=sent), "threadId": thread})).status_code == 200
            return (await client.get(f"/agui/threads/{thread}/messages")).json()["messages"]

        await told("t1", "one")
        before = await told("t1", "two")
        made = await client.post("/agui/threads/t1/branch", json={"messageId": before[1]["id"]})
        assert made.status_code == 201 and made.json()["thread"]["name"] == "one (branch)"
        branch = made.json()["thread"]["id"]
        assert [each["content"] for each in await told(branch, "three")] == ["one", "Hello.", "three", "Hello."]
        assert (await client.get("/agui/threads/t1/messages")).json()["messages"] == before
        assert {each["id"] for each in (await client.get("/agui/threads")).json()["threads"]} == {"t1", branch}
        again = await client.post(f"/agui/threads/{branch}/branch", json={"messageId": "one-id"})
        assert again.json()["thread"]["name"] == "one (branch)"
        for path, given, status in (
            ("t1", {"messageId": "x"}, 404),
            ("t2", {"messageId": "x"}, 404),
            ("t1", {"messageId": 1}, 400),
            ("t1", {}, 400),
        ):
            assert (await client.post(f"/agui/threads/{path}/branch", json=given)).status_code == status


async def test_the_history_is_not_edited_under_a_run_that_is_going_on():
    slow = scripted([Script(text="word " * 1000, delay=0.01)])
    async with serving(slow) as running, httpx.AsyncClient(base_url=running.url) as client:
        reading = await begun(client)
        for method, path in (("DELETE", "messages/u1"), ("POST", "removed/x/restore")):
            assert (await client.request(method, f"/agui/threads/t1/{path}")).status_code == 409
        await client.post("/agui/runs/r1/cancel")
        await reading


ODD_IDS = [
    "a/b", "a/messages", "/", "//", "a//b/", "a/../b", "...", ".hidden", "%", "%2F", "a%2fb", "100%25", "?x=1", "#a",
    "a b", "a+b", "a;b=c", "a:b@c", "[x]", '"q"', "\\", "ünï", "日本語/スレッド", "🦉", "e\u0301", "x" * 512, "ü" * 512, "{a}b", "a*", "a:b:c", "'; DROP TABLE threads; --",
]  # fmt: skip


async def test_every_id_that_a_run_accepts_is_addressed_by_its_encoding():
    """As `encodeURIComponent` and the like write it: on each route of threads and runs, CopilotKit's too."""
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for id in ODD_IDS:
            await use_everywhere(client, client, id)


async def use_everywhere(client: httpx.AsyncClient, other: httpx.AsyncClient, id: str) -> None:
    """Start a run at one gateway, and ask another for it."""
    place = quote(id, safe="")
    thread, run, copied = f"/agui/threads/{place}", f"/agui/runs/{place}", f"/copilotkit/threads/{place}"
    asked: list[tuple[str, str, Any, int]] = [
        ("POST", "/agui", body(threadId=id, runId=id), 200),
        ("GET", thread, None, 200),
        *[("GET", f"{thread}/{part}", None, 200) for part in ("messages", "removed", "state", "runs", "feedback")],
        ("GET", run, None, 200),
        ("GET", f"{run}/events", None, 200),
        ("POST", f"{run}/cancel", None, 409),
        ("POST", f"{thread}/feedback", {"messageId": "u1", "score": 1}, 201),
        ("PATCH", thread, {"name": "Odd"}, 200),
        *[("GET", f"{copied}/{part}", None, 200) for part in ("messages", "events", "state")],
        ("POST", f"/copilotkit/agent/default/stop/{place}", None, 200),
        ("DELETE", thread, None, 204),
        ("GET", thread, None, 404),
    ]
    for method, path, content, status in asked:
        answer = await (client if path == "/agui" else other).request(method, path, json=content)
        assert answer.status_code == status, (method, path, answer.text)


@pytest.mark.parametrize("id", [".", ".."])
async def test_an_id_that_no_client_can_ask_for_again_is_refused(id: str):
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for name in ("threadId", "runId"):
            refused = await client.post("/agui", json=body(**{name: id}))
            assert refused.status_code == 400 and "path segment" in refused.text


async def test_long_answers_are_made_a_few_at_once_and_for_tenants_in_turn(tmp_path: Path, monkeypatch):
    """A hundred at once would be encoded one after the other before the event loop serves anybody else."""
    keys = tmp_path / "keys.toml"
    for tenant in ("a", "b"):
        add_key(keys, KeyEntry(name=tenant, tenant=tenant, hash=digest(f"key of {tenant}")))
    async with serving(scripted("Fine."), keys_file=str(keys)) as running, contextlib.AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=running.url, headers={"x-api-key": f"key of {tenant}"}, timeout=30)
            )
            for tenant in ("a", "b")
        ]
        for client in (a, b):
            assert (await client.post("/agui", json=body())).status_code == 200
        read, order, now, most, both = running.server.store.messages, [], 0, 0, asyncio.Event()

        async def messages(tenant: str, thread: str) -> list[dict[str, Any]]:
            nonlocal now, most
            now += 1
            most = max(now, most)
            order.append(tenant)
            await both.wait()
            await asyncio.sleep(0.01)
            now -= 1
            return await read(tenant, thread)

        monkeypatch.setattr(running.server.store, "messages", messages)
        asked = [asyncio.create_task(a.get("/agui/threads/t1/messages")) for _ in range(20)]
        while len(order) < READS:
            await asyncio.sleep(0.01)
        asked.append(asyncio.create_task(b.get("/agui/threads/t1/messages")))
        while "b" not in running.server.reads._waiting:
            await asyncio.sleep(0.01)
        both.set()
        assert [(await each).status_code for each in asked] == [200] * 21
        assert most == READS and order.index("b") <= READS + 1
