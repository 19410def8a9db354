"""What keys and tenants may take, and how they are told."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from adapters.errors import RequestError
from agent_server.engines.scripted import Script
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest
from agent_server.http.auth.principal import Principal, Quota, asking
from agent_server.http.auth.quotas import LimitState, Quotas, headers_of, storage_url
from events.options import GenerationOptions
from tests.gateways.redis_server import RedisServer, installed
from tests.server import scripted, serving

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
PATH = "/v1/chat/completions"


@asynccontextmanager
async def asking_as(tmp_path: Path, engine: Any = None, *keys: KeyEntry, **changes: Any) -> AsyncIterator[Any]:
    """A server with these keys, each with its name as its secret; what asks it under a key's name."""
    for key in keys:
        add_key(tmp_path / "keys.toml", key)
    async with (
        serving(engine or scripted("Hello."), keys_file=tmp_path / "keys.toml", **changes) as running,
        httpx.AsyncClient(base_url=running.url, timeout=20) as client,
    ):

        async def ask(name: str, method: str = "POST", path: str = PATH, **body: Any) -> httpx.Response:
            sent = None if method == "GET" else {**CHAT, **body}
            return await client.request(method, path, json=sent, headers={"x-api-key": name})

        ask.url = running.url  # type: ignore[attr-defined]
        yield ask


def key(name: str, tenant: str = "acme", **limits: int) -> KeyEntry:
    return KeyEntry(name=name, hash=digest(name), tenant=tenant, **limits)


async def test_requests_of_a_key_are_counted_and_told(tmp_path: Path):
    async with asking_as(tmp_path, None, key("small", requests_per_minute=2), key("free")) as ask:
        first, second, third = [await ask("small") for _ in range(3)]
        read = await ask("small", "GET", "/agui/threads")
        other = await ask("free")
    assert [each.status_code for each in (first, second, third, read, other)] == [200, 200, 429, 200, 200]
    assert first.headers["ratelimit-policy"] == '"requests";q=2;w=60'
    assert [re.sub(r"t=\d+", "t", each.headers["ratelimit"]) for each in (first, second, third)] == [
        '"requests";r=1;t', '"requests";r=0;t', '"requests";r=0;t',
    ]  # fmt: skip
    assert 1 <= int(third.headers["retry-after"]) <= 60
    assert third.json()["error"]["code"] == "rate_limit_exceeded"
    assert "ratelimit" not in other.headers and "ratelimit" not in read.headers


async def test_a_tenants_keys_count_together(tmp_path: Path):
    keys = key("a1", "a"), key("a2", "a"), key("b", "b")
    async with asking_as(tmp_path, None, *keys, tenant_requests_per_minute=2) as ask:
        statuses = [(await ask(name)).status_code for name in ("a1", "a2", "a1", "b")]
    assert statuses == [200, 200, 429, 200]


async def test_tokens_are_counted_when_a_run_has_ended(tmp_path: Path):
    async with asking_as(tmp_path, None, key("small", tokens_per_minute=5)) as ask:
        first = await ask("small")
        assert first.json()["usage"]["total_tokens"] > 5
        second = await ask("small")
    assert first.status_code == 200 and first.headers["ratelimit"].startswith('"tokens";r=5;')
    assert second.status_code == 429 and "tokens per minute" in second.text


async def test_runs_at_once_and_the_length_of_an_answer(tmp_path: Path):
    engine = scripted([Script(text="x" * 400, delay=0.02)])
    async with asking_as(tmp_path, engine, key("small", runs=1, max_tokens=8), key("other")) as ask:
        for most in (9, None):
            assert (await ask("small", max_tokens=most)).json()["usage"]["completion_tokens"] == 8
        asked = await asyncio.gather(*(ask(name, max_tokens=8) for name in ("small", "small", "small", "other")))
        assert sorted(each.status_code for each in asked[:3]) == [200, 429, 429] and asked[3].status_code == 200
        assert (await ask("small", max_tokens=8)).status_code == 200


@pytest.mark.parametrize("most", [9, 1000, None])
async def test_a_run_s_answer_is_not_lengthened_beyond_what_its_key_allows(tmp_path: Path, most: int | None):
    engine = scripted([Script(text="x" * 40, delay=0.05)])
    async with asking_as(tmp_path, engine, key("small", max_tokens=8), key("free")) as ask:
        message = {"id": "m", "role": "user", "content": "Hi"}
        body = {"threadId": "t", "protocolVersion": "1.0", "messages": [message], "tools": [], "context": []}
        going = [asyncio.create_task(ask(name, path="/agui", **body, runId=name)) for name in ("small", "free")]
        while len(engine.requests) != 2:
            await asyncio.sleep(0.01)
        answers = []
        for name in ("small", "free"):
            url = f"{ask.url}/agui/runs/{name}/modify"
            async with httpx.AsyncClient(headers={"x-api-key": "free"}) as client:
                answers.append(await client.post(url, json={"max_tokens": most}))
        ends = [await each for each in going]
    assert [each.status_code for each in answers] == [400, 202], [each.text for each in answers]
    assert "at most 8 tokens" in answers[0].text
    assert '"outputTokens":8' in ends[0].text


async def test_runs_on_a_websocket_are_requests(tmp_path: Path):
    async with asking_as(tmp_path, None, key("small", requests_per_minute=1)) as ask:
        address = ask.url.replace("http", "ws") + "/agui/ws?api_key=small"
        said: list[Any] = []
        async with asyncio.timeout(20), websockets.connect(address) as socket:
            for number in range(2):
                message = {"id": f"m{number}", "role": "user", "content": "Hi"}
                sent = {"threadId": "t", "runId": f"r{number}", "protocolVersion": "1.0", "messages": [message]}
                await socket.send(json.dumps({"type": "run", "input": sent}))
                while not said or said[-1]["type"] not in ("RUN_FINISHED", "RUN_ERROR"):
                    said.append(json.loads(await socket.recv()))
                last = said.pop()
    assert last["type"] == "RUN_ERROR" and last["code"] == "rate_limited"


async def test_a_run_without_limits_asks_no_counter():
    class Broken:
        async def hit(self, *_: Any, **__: Any) -> bool:
            raise AssertionError

    quotas = Quotas()
    quotas._limiter = Broken()  # type: ignore[assignment]
    admitted = await quotas.admit(GenerationOptions(), lambda _: 0, "")
    admitted.spent(100)
    assert admitted.options == GenerationOptions()


@pytest.mark.parametrize("tokens", [1, 70])
async def test_gateways_count_together_through_redis(tokens: int):
    if not installed():
        pytest.skip("no redis-server on this machine")
    redis = RedisServer().start()
    asking.set(Principal(tenant="a", name="k", quota=Quota(tokens_per_minute=70)))
    gateways = [Quotas(storage=storage_url(redis.url), prefix="p") for _ in range(2)]
    admitted = await gateways[0].admit(GenerationOptions(), lambda _: 0, "a")
    admitted.spent(tokens)
    await asyncio.gather(*gateways[0]._counting)
    if tokens == 70:
        with pytest.raises(RequestError) as refused:
            await gateways[1].admit(GenerationOptions(), lambda _: 0, "a")
        assert refused.value.kind == "rate_limited"
    assert await gateways[1].admit(GenerationOptions(), lambda _: 0, "a") if tokens == 1 else True
    redis.kill()
    assert await gateways[1].admit(GenerationOptions(), lambda _: 0, "a")  # what cannot be counted is not refused
    for gateway in gateways:
        await gateway.close()
    redis.close()


def test_the_tightest_limit_is_told():
    from agent_server.http.auth.quotas import Bound

    states = [
        LimitState(bound=Bound(what="requests", whose=whose, amount=amount), remaining=left, reset=9)
        for whose, amount, left in (("tenant:a", 100, 3), ("key:k", 10, 5))
    ]
    told = [(b"ratelimit-policy", b'"requests";q=100;w=60'), (b"ratelimit", b'"requests";r=3;t=9')]
    assert headers_of(states) == told


@pytest.mark.parametrize(
    ("url", "storage"),
    [
        ("", "async+memory://"),
        ("redis://h:1/2", "async+redis://h:1/2"),
        ("rediss://h", "async+rediss://h"),
        ("unix:///r.sock", "async+redis+unix:///r.sock"),
    ],
)
def test_where_counters_are_kept(url: str, storage: str):
    assert storage_url(url) == storage
