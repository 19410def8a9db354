"""Metrics are what Prometheus reads, and say what happens; every answer has the id of its request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import pytest
import websockets
from prometheus_client.parser import text_string_to_metric_families

from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Script
from agent_server.observability.telemetry import ServerTelemetry, Telemetry
from agent_server.settings import ReplicaSettings
from tests.server import Running, scripted, serving

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


@asynccontextmanager
async def asking(
    engine: Any, headers: dict[str, str] | None = None, **changes: Any
) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(engine, **changes) as running:
        client = httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60)
        async with client:
            yield client


async def scraped(
    client: httpx.AsyncClient, headers: dict[str, str] | None = None
) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name without the prefix and its labels; each stands once, each family is declared once."""
    text = (await client.get("/metrics", headers=headers)).text
    return samples(text)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    declared = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert sorted(declared) == sorted(set(declared))
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type != "unknown" and family.documentation, family.name
        for sample in family.samples:
            key = sample.name.removeprefix("agent_server:"), tuple(sorted(sample.labels.items()))
            assert key not in found, key
            found[key] = sample.value
    return found


def labels(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def replicas() -> ReplicaSet:
    return ReplicaSet([scripted("Hello."), scripted("Hello.")], ReplicaSettings(), names=["a", "b"])


@pytest.mark.parametrize("engine", [lambda: None, lambda: scripted("Hello."), replicas], ids=["own", "scripted", "two"])
async def test_a_scrape_after_a_run_is_what_prometheus_reads(engine: Any):
    async with asking(engine()) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        usage = answer.json()["usage"]
        found = await scraped(client)
    assert found["prompt_tokens_total", ()] == usage["prompt_tokens"]
    assert found["generation_tokens_total", ()] == usage["completion_tokens"]
    assert found["time_to_first_token_seconds_count", ()] == 1
    assert found["http_requests_total", labels(route="/v1/chat/completions", status="200")] == 1
    assert found["runs_open", ()] == 0


async def test_runs_that_go_on_are_seen():
    async with asking(scripted([Script(text="x" * 50, delay=0.5)])) as client:
        asked = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(3)]
        async with asyncio.timeout(10):
            while (await scraped(client))["runs_open", ()] != 3:
                await asyncio.sleep(0.01)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        async with asyncio.timeout(10):
            while (await scraped(client))["runs_open", ()] != 0:
                await asyncio.sleep(0.01)


async def test_what_is_refused_is_counted_by_its_reason_and_route():
    async with asking(scripted("x"), {"x-api-key": "k"}, api_keys=("k",)) as client:
        await client.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})
        await client.post("/v1/chat/completions", json=CHAT, headers={"x-api-key": "wrong"})
        await client.post("/agui", json=CHAT, headers={"origin": "http://evil.example"})
        await client.get("/agui/threads/secret-name")
        await client.get("/secret-name")
        found = await scraped(client)
        text = (await client.get("/metrics")).text
    refused = {key[1][0][1]: value for key, value in found.items() if key[0] == "requests_refused_total"}
    assert refused == {"invalid_request": 1, "unauthorized": 1, "forbidden": 1, "not_found": 2}
    assert found["http_requests_total", labels(route="/agui/threads/{thread_id}", status="404")] == 1
    assert found["http_requests_total", labels(route="none", status="404")] == 1
    assert found["http_requests_total", labels(route="none", status="401")] == 1
    assert "secret" not in text


async def test_a_handshake_that_is_refused_is_counted_and_has_an_id():
    async with serving(scripted("x"), api_keys=("k",)) as running, httpx.AsyncClient(base_url=running.url) as client:
        base = running.url.replace("http", "ws")
        given = {"x-request-id": "mine"}
        with pytest.raises(websockets.InvalidStatus) as unknown:
            await websockets.connect(f"{base}/nothing?api_key=k", additional_headers=given)
        async with websockets.connect(f"{base}/agui/ws", additional_headers=given) as keyless:
            await asyncio.wait_for(keyless.wait_closed(), 10)
        found = await scraped(client, {"x-api-key": "k"})
    response = unknown.value.response
    assert (response.status_code, response.headers["x-request-id"]) == (404, "mine")
    assert json.loads(response.body or b"")["error"]["code"] == "not_found"
    assert keyless.response is not None and keyless.response.headers["x-request-id"] == "mine"
    refused = {key[1][0][1]: value for key, value in found.items() if key[0] == "requests_refused_total"}
    assert refused == {"not_found": 1, "unauthorized": 1}
    assert found["http_requests_total", labels(route="none", status="404")] == 1


async def test_a_connection_that_was_refused_is_counted():
    async with asking(scripted("x"), max_header_bytes=1024) as client:
        assert (await client.get("/health", headers={"x-long": "x" * 2000})).status_code == 431
        found = await scraped(client)
    assert found["connections_refused_total", labels(reason="head_bytes")] == 1


def test_the_worker_tells_its_engines_own_numbers():
    telemetry = Telemetry()
    telemetry.watch_engine(lambda: {"prompt_tokens_total": 3.0, "wait_seconds_sum": 2.0, "wait_seconds_count": 4.0})
    found = samples(telemetry.exposition().decode())
    assert found["prompt_tokens_total", ()] == 3
    assert (found["wait_seconds_sum", ()], found["wait_seconds_count", ()]) == (2, 4)
    assert not any(name.startswith("runs") for name, _ in found)


def test_numbers_of_the_engine_that_are_counted_here_are_left_out():
    telemetry = ServerTelemetry()
    telemetry.watch_engine(lambda: {"prompt_tokens_total": 3.0, "num_requests_running": 1.0})
    found = samples(telemetry.exposition().decode())
    assert (found["prompt_tokens_total", ()], found["num_requests_running", ()]) == (0, 1)


@pytest.fixture
async def running() -> Any:
    async with serving(scripted("Hello."), cors_origins=("http://page.example",)) as found:
        yield found


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None),
        ("GET", "/nothing", None),
        ("PUT", "/agui", None),
        ("POST", "/agui", {}),
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
        ("POST", "/v1/messages", {}),
    ],
)
async def test_every_answer_has_an_id(running: Running, method: str, path: str, body: Any):
    async with httpx.AsyncClient(base_url=running.url) as client:
        own = await client.request(method, path, json=body, headers={"x-request-id": "my-1.2:3"})
        given = await client.request(method, path, json=body)
        unsound = await client.request(method, path, json=body, headers={"x-request-id": "a b\tc"})
    assert own.headers.get_list("x-request-id") == ["my-1.2:3"]
    assert given.headers["x-request-id"].startswith("req_") and unsound.headers["x-request-id"].startswith("req_")


async def test_anthropics_client_is_told_the_id_under_its_own_name(running: Running):
    asked: Any = {"model": "default", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="x", max_retries=0) as client:
        said = await client.messages.create(**asked, extra_headers={"x-request-id": "my-1"})
        listed = await client.models.with_raw_response.list()
        with pytest.raises(anthropic.NotFoundError) as refused:
            await client.messages.create(**{**asked, "model": "none"})
    assert said._request_id == "my-1" and listed.headers["request-id"].startswith("req_")
    assert refused.value.request_id is not None and refused.value.request_id.startswith("req_")


async def test_a_page_elsewhere_may_read_the_id(running: Running):
    async with httpx.AsyncClient(base_url=running.url, headers={"origin": "http://page.example"}) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
        preflight = await client.options("/agui", headers={"access-control-request-method": "POST"})
    assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
    assert preflight.headers["x-request-id"]


async def test_a_fault_of_ours_has_an_id_too(running: Running, monkeypatch: pytest.MonkeyPatch):
    def broken() -> bytes:
        raise ZeroDivisionError

    monkeypatch.setattr(running.server.telemetry, "exposition", broken)
    async with httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.get("/metrics", headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "mine")
