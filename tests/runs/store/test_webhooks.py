"""The end of a run that nobody waits for, told to an application: signed, again after failures and restarts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import httpx
import pytest
from aiohttp import web
from sqlalchemy import select

from adapters.errors import RequestError
from agent_server.runs.store import Store, callbacks, schema
from agent_server.runs.store.callbacks import Callback
from agent_server.runs.webhooks import Webhooks, key_of
from tests.agents.guests.talking import body, user
from tests.media.test_fetching import certificate as certificate
from tests.server import Running, scripted, serving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OLDER = "whsec_" + base64.b64encode(bytes(24)).decode()
ALONE = {"prefer": "respond-async"}


class Receiver:
    """An application's endpoint: answers with `statuses` in turn, the last one for ever."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.told: asyncio.Queue[tuple[dict[str, str], bytes]] = asyncio.Queue()

    async def answer(self, request: web.Request) -> web.Response:
        self.told.put_nowait((dict(request.headers), await request.read()))
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return web.Response(status=status, headers={"Location": "https://elsewhere.example/"})


@contextlib.asynccontextmanager
async def receiving(receiver: Receiver, certificate: Any, monkeypatch: Any, port: int = 0) -> AsyncIterator[int]:
    loop = asyncio.get_running_loop()
    before = len(loop._selector.get_map())
    app = web.Application()
    app.router.add_post("/hook", receiver.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=certificate[0])
    await site.start()
    real = loop.getaddrinfo

    async def lookup(host: str, wanted: Any, **named: Any) -> Any:
        return await real("127.0.0.1" if host == "media.test" else host, wanted, **named)

    monkeypatch.setattr(loop, "getaddrinfo", lookup, raising=False)
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()
        # A connection over TLS closes once both sides have said so. A loop that ends before that leaves it open.
        async with asyncio.timeout(30):
            while len(loop._selector.get_map()) > before:
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def gateway(url: str, port: int, certificate: Any, **changes: Any) -> AsyncIterator[Running]:
    hosts = (f"media.test:{port}",)
    options = {"store_url": url, "webhook_hosts": hosts, "webhook_secrets": (SECRET, OLDER), **changes}
    real = Webhooks.start

    def start(told: Webhooks) -> None:
        told._allowed, told._ssl = (lambda address: address == "127.0.0.1"), certificate[1]
        told._backoff, told._poll = (0.0,) * 10_000, 0.02  # a slow end of a server must not use the attempts up
        real(told)

    # Before it starts: what an earlier server has left is attempted at once.
    with mock.patch.object(Webhooks, "start", start):
        async with serving(scripted("Done."), **options) as running:
            yield running


async def begin(running: Running, port: int, run: str = "r1") -> httpx.Response:
    async with httpx.AsyncClient(base_url=running.url) as client:
        headers = {**ALONE, "webhook-url": f"https://media.test:{port}/hook"}
        return await client.post("/agui", json=body(user("go"), run=run, thread=f"t-{run}"), headers=headers)


async def test_the_end_is_told_signed_and_again_until_it_is_taken(url: str, certificate: Any, monkeypatch: Any) -> None:
    receiver = Receiver(500, 302, 204)
    async with receiving(receiver, certificate, monkeypatch) as port, gateway(url, port, certificate) as running:
        answer = await begin(running, port)
        assert answer.status_code == 202, answer.text
        attempts = [await receiver.told.get() for _ in range(3)]
        second = await begin(running, port, "r2")
        headers, content = await receiver.told.get()
    assert len({headers["webhook-id"] for headers, _ in attempts}) == len({content for _, content in attempts}) == 1
    told = json.loads(attempts[0][1])
    assert told["type"] == "run.finished" and told["data"]["id"] == "r1" and told["data"]["threadId"] == "t-r1"
    assert second.status_code == 202 and json.loads(content)["data"]["id"] == "r2" and receiver.told.empty()
    signatures = headers["webhook-signature"].split(" ")
    for secret, signature in zip((SECRET, OLDER), signatures, strict=True):
        over = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + content
        assert signature == "v1," + base64.b64encode(hmac.digest(key_of(secret), over, hashlib.sha256)).decode()


async def test_a_run_whose_webhook_cannot_be_kept_does_not_begin(url: str, certificate: Any, monkeypatch: Any) -> None:
    receiver, real = Receiver(204), callbacks.register

    def failing(connection: Any, callback: Callback) -> None:
        real(connection, callback)
        raise RequestError("unavailable", "The store is full.")

    async with receiving(receiver, certificate, monkeypatch) as port, gateway(url, port, certificate) as running:
        with monkeypatch.context() as patched:
            patched.setattr(callbacks, "register", failing)
            refused = await begin(running, port)
        assert (refused.status_code, running.server.runs.active) == (503, 0) and "store is full" in refused.text
        assert await running.server.store.runs("", "t-r1") == []
        again = await begin(running, port)
        _, content = await receiver.told.get()
    assert again.status_code == 202 and json.loads(content)["type"] == "run.finished" and receiver.told.empty()


async def test_the_end_of_a_run_that_never_began_is_told(url: str, certificate: Any, monkeypatch: Any) -> None:
    receiver = Receiver(204)

    async def refuse(run: Any) -> None:
        raise RequestError("content_filter", "This may not be asked.")

    async with receiving(receiver, certificate, monkeypatch) as port, gateway(url, port, certificate) as running:
        running.server.runs._screen = refuse
        answer = await begin(running, port)
        _, content = await receiver.told.get()
        (kept,) = await running.server.store.runs("", "t-r1")
        messages = await running.server.store.messages("", "t-r1")
    assert answer.status_code == 202 and json.loads(content)["type"] == "run.failed"
    assert (kept.status, kept.error, messages) == ("failed", "content_filter", [])


async def test_the_end_of_an_earlier_run_of_that_id_is_not_told(url: str, certificate: Any, monkeypatch: Any) -> None:
    receiver, held = Receiver(204), asyncio.Event()

    async def hold(run: Any) -> None:
        await held.wait()

    async with receiving(receiver, certificate, monkeypatch) as port, gateway(url, port, certificate) as running:
        await begin(running, port)
        first = json.loads((await receiver.told.get())[1])
        running.server.runs._screen = hold
        await begin(running, port)
        due = await running.server.store.read(lambda connection: callbacks.due(connection, 2**62, 9))
        held.set()
        second = json.loads((await receiver.told.get())[1])
    assert due == [] and first["data"]["createdAt"] <= second["data"]["createdAt"] and receiver.told.empty()


async def test_what_was_not_told_is_told_by_the_next_server(url: str, certificate: Any, monkeypatch: Any) -> None:
    receiver = Receiver(503)
    async with receiving(receiver, certificate, monkeypatch) as port, gateway(url, port, certificate) as running:
        await begin(running, port)
        headers, _ = await receiver.told.get()
    receiver.statuses = [200]
    while not receiver.told.empty():
        receiver.told.get_nowait()
    async with receiving(receiver, certificate, monkeypatch, port), gateway(url, port, certificate):
        again, _ = await receiver.told.get()
    assert again["webhook-id"] == headers["webhook-id"]


async def test_an_attempt_that_a_servers_end_breaks_off_is_due_at_once(
    url: str, certificate: Any, monkeypatch: Any
) -> None:
    receiver, held = Receiver(200), asyncio.Event()

    async def never(request: web.Request) -> web.Response:
        receiver.told.put_nowait((dict(request.headers), await request.read()))
        await held.wait()
        return web.Response()

    monkeypatch.setattr(receiver, "answer", never)
    async with receiving(receiver, certificate, monkeypatch) as port:
        async with gateway(url, port, certificate) as running:
            await begin(running, port)
            await receiver.told.get()
        held.set()
        async with serving(scripted("Done."), store_url=url) as without_hosts:
            store = without_hosts.server.store
            due = await store.read(lambda connection: callbacks.due(connection, int(time.time() * 1000), 9))
    assert [callback.run_id for callback in due] == ["r1"]


async def test_an_attempt_of_another_server_is_not_given_back(store: Store) -> None:
    callback = Callback(tenant="", thread_id="t", run_id="r", id="msg_1", url="https://x/")
    await store.write(lambda connection: callbacks.register(connection, callback))
    assert await store.write(lambda connection: callbacks.claim(connection, callback, 60_000))
    await store.write(lambda connection: callbacks.release(connection, callback, 50_000, 0))
    kept = await store.read(lambda connection: connection.scalars(select(schema.webhooks.c.due_at)).all())
    assert kept == [60_000]


async def test_one_of_several_servers_makes_an_attempt(store: Store) -> None:
    callback = Callback(tenant="", thread_id="t", run_id="r", id="msg_1", url="https://x/")
    await store.write(lambda connection: callbacks.register(connection, callback))
    claims = [await store.write(lambda connection: callbacks.claim(connection, callback, 60_000)) for _ in range(2)]
    assert claims == [True, False]
    assert not await store.read(lambda connection: callbacks.due(connection, 10**15, 9))  # there is no such run


@pytest.mark.parametrize(
    ("url", "headers", "says"),
    [
        ("https://elsewhere.example/hook", ALONE, "--webhook-host"),
        ("http://hooks.example/hook", ALONE, "over https only"),
        ("https://ann:key@hooks.example/", ALONE, "name or a password"),
        ("https://10.0.0.7/hook", ALONE, "not a public address"),
        ("https://hooks.example/hook", {}, "Prefer: respond-async"),
    ],
)
async def test_where_nothing_is_sent(url: str, headers: dict[str, str], says: str) -> None:
    options = {"webhook_hosts": ("hooks.example", "10.0.0.7"), "webhook_secrets": (SECRET,)}
    async with (
        serving(scripted("no"), **options) as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        answer = await client.post("/agui", json=body(user("go")), headers={**headers, "webhook-url": url})
        threads = (await client.get("/agui/threads")).json()["threads"]
    assert answer.status_code == 400 and says in answer.text and not threads


async def test_without_hosts_nothing_is_sent_and_a_secret_must_be_one() -> None:
    async with serving(scripted("no")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post(
            "/agui", json=body(user("go")), headers={**ALONE, "webhook-url": "https://hooks.example/"}
        )
    assert answer.status_code == 400 and "sends no webhooks" in answer.text
    for wrong in ("secret", "whsec_short", "whsec_" + base64.b64encode(bytes(9)).decode()):
        with pytest.raises(ValueError, match="24 to 64 bytes"):
            key_of(wrong)
