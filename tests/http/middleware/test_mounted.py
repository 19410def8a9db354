"""Mounted in another application, or announced under a prefix, the server guards and answers as it does alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from agent_server.http.app import Application, create_app
from tests.server import scripted, settings

KEYS = {"api_keys": ("acme:user",), "operator_keys": ("op",)}
USER = {"authorization": "Bearer user"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}


def made(**changes: Any) -> Application:
    return create_app(settings(**{**KEYS, **changes}), engine=scripted("Hello."))


@contextlib.asynccontextmanager
async def asking(app: Any, root_path: str = "") -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while (await client.get("/ai/ready")).status_code != 200:
            await asyncio.sleep(0.01)


@pytest.fixture(params=["mounted", "mounted twice", "root_path"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    """One that reaches the server's routes below /ai."""
    inner = made()
    app: Any = inner
    if request.param == "mounted":
        app = Starlette(routes=[Mount("/ai", app=inner)])
    elif request.param == "mounted twice":
        app = Starlette(routes=[Mount("/a", app=Starlette(routes=[Mount("/i", app=inner)]))])
    prefix = "/a/i" if request.param == "mounted twice" else "/ai"
    try:
        async with asking(app, "/ai" if app is inner else "") as found:
            found.event_hooks["request"] = [_below(prefix)]
            yield found
    finally:
        await inner.state.server.close()


def _below(prefix: str) -> Any:
    async def rewrite(request: httpx.Request) -> None:
        request.url = request.url.copy_with(path=request.url.path.replace("/ai", prefix, 1))

    return rewrite


async def test_a_tenants_key_does_not_reach_the_operators_paths(client: httpx.AsyncClient):
    assert (await client.get("/ai/operator/replicas", headers=USER)).status_code == 403
    assert (await client.post("/ai/operator/replicas", headers=USER, json={})).status_code == 403
    assert (await client.get("/ai/operator/replicas", headers={"x-api-key": "op"})).status_code == 404


async def test_public_paths_are_public_and_others_are_not(client: httpx.AsyncClient):
    assert (await client.get("/ai/health")).status_code == 200
    assert (await client.get("/ai/metrics")).status_code == 401
    assert (await client.get("/ai/agui/threads")).status_code == 401
    assert (await client.get("/ai/agui/threads", headers=USER)).status_code == 200


async def test_errors_have_the_shape_of_the_wire(client: httpx.AsyncClient):
    openai = await client.post("/ai/v1/chat/completions", json=CHAT)
    anthropic = await client.post("/ai/v1/messages", json={}, headers=USER)
    unknown = await client.get("/ai/v1/nothing", headers=USER)
    assert openai.json()["error"]["code"] == "invalid_api_key"
    assert anthropic.json()["type"] == "error"
    assert anthropic.json()["request_id"] == anthropic.headers["x-request-id"]
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    assert "/v1/nothing" in unknown.json()["error"]["message"]


async def test_the_server_starts_with_its_first_requests(client: httpx.AsyncClient):
    answers = await asyncio.gather(*(client.get("/ai/agui/threads", headers=USER) for _ in range(5)))
    assert [answer.status_code for answer in answers] == [200] * 5
    await ready(client)
    answer = await client.post("/ai/v1/chat/completions", json=CHAT, headers=USER)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello."


async def test_the_application_around_it_may_start_and_end_it():
    inner = made()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with inner.running():
            yield

    outer = Starlette(routes=[Mount("/ai", app=inner)], lifespan=lifespan)
    async with outer.router.lifespan_context(outer), asking(outer) as client:
        await ready(client)
    assert inner.state.server.closing


async def test_a_store_that_cannot_be_opened_is_told_and_tried_again(tmp_path: Any):
    (tmp_path / "file").write_text("This is no folder.")
    inner = made(store_url=f"sqlite+aiosqlite:///{tmp_path}/file/threads.db")
    async with asking(Starlette(routes=[Mount("/ai", app=inner)])) as client:
        first = await client.get("/ai/health")
        assert first.status_code == 503 and "cannot be opened" in first.json()["error"]["message"]
        (tmp_path / "file").unlink()
        (tmp_path / "file").mkdir()
        assert (await client.get("/ai/health")).status_code == 200
    await inner.state.server.close()
