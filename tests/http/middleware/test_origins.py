"""Web pages do not use the server behind their visitor's back; clients that are no browsers notice nothing of it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import websockets
from starlette.routing import Mount, Route, WebSocketRoute

from agent_server.http.app import Application, browser_policy, build_app
from agent_server.http.assemble import build_server
from agent_server.http.middleware.origins import CONTAINER_MARKS
from tests.server import Running, scripted, serving, settings

RUN = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "Hi"}]}
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
EVIL = "https://evil.example"
FOREIGN: list[dict[str, str]] = [
    {"origin": EVIL},
    {"origin": "null"},
    {"origin": "http://["},
    {"origin": EVIL, "sec-fetch-site": "cross-site"},
    {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
]


shared = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Running]:
    async with serving(scripted("Hello.")) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url) as found:
        yield found


def walk(app: Application) -> Iterator[tuple[str, str]]:
    """(method, path) of every route of the application; a mount of files has none to change."""
    for route in app.routes:
        if isinstance(route, Route):
            yield from ((method, concrete(route.path)) for method in sorted(route.methods or ()))
        elif isinstance(route, WebSocketRoute):
            yield "WEBSOCKET", concrete(route.path)
        else:
            assert isinstance(route, Mount) and route.path in ("/assets", "/docs")


def concrete(path: str) -> str:
    return re.sub(r"{\w+(:\w+)?}", "x", path)


def routes_of_every_setting() -> list[tuple[str, str]]:
    return sorted(set(walk(build_app(build_server(settings(), engine=scripted("x"))))))


CHANGING = [(method, path) for method, path in routes_of_every_setting() if method not in ("GET", "HEAD", "WEBSOCKET")]
SOCKETS = [path for method, path in routes_of_every_setting() if method == "WEBSOCKET"]


def test_the_walk_finds_the_routes():
    assert len(CHANGING) > 20 and SOCKETS == ["/agui/ws", "/generate", "/v1/responses"]
    assert {"/agui", "/v1/chat/completions", "/copilotkit", "/operator/replicas"} <= {path for _, path in CHANGING}


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@shared
async def test_no_route_that_changes_anything_is_open_to_pages_elsewhere(client: httpx.AsyncClient, headers: Any):
    for method, path in CHANGING:
        answer = await client.request(method, path, content=b"{}", headers={"content-type": "text/plain", **headers})
        assert answer.status_code == 403, (method, path, answer.text)
        assert "--cors-origin" in answer.text


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
@shared
async def test_two_host_headers_are_refused_whatever_they_say(running: Running, path: str):
    """A proxy in front may have looked at the other one (RFC 9112, 3.2)."""
    host = running.url.removeprefix("http://")
    reader, writer = await asyncio.open_connection(*host.split(":"))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400") and b"more than one Host" in answer


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize("path", SOCKETS)
@shared
async def test_no_websocket_is_open_to_pages_elsewhere(running: Running, path: str, headers: Any):
    async with websockets.connect(running.url.replace("http", "ws") + path, additional_headers=headers) as socket:
        async with asyncio.timeout(10):
            assert "--cors-origin" in str(await socket.recv())
            await socket.wait_closed()
    assert socket.close_code == 1008


@shared
async def test_a_name_that_was_rebound_reaches_no_route(running: Running, client: httpx.AsyncClient):
    app = build_app(running.server)
    for method, path in walk(app):
        if method == "WEBSOCKET" or path in ("/health", "/ready"):
            continue
        answer = await client.request(method, path, content=b"{}", headers={"host": "rebound.example:8000"})
        assert answer.status_code == 403, (method, path)
        assert method == "HEAD" or "--allowed-host" in answer.text
    assert (await client.get("/health", headers={"host": "rebound.example"})).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "Text/Plain; charset=utf-8", "application/x-www-form-urlencoded"])
@shared
async def test_no_body_is_read_of_a_type_that_a_page_may_send_unasked(client: httpx.AsyncClient, kind: str):
    for method, path in CHANGING:
        answer = await client.request(method, path, content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415, (method, path)
        assert "application/json" in answer.text
    empty = await client.post("/agui/runs/none/cancel", content=b"", headers={"content-type": kind})
    assert empty.status_code == 404


OWN = [
    {},
    {"host": "localhost:8000"},
    {"host": "my.localhost"},
    {"host": "192.168.1.5:8000"},
    {"host": "[::1]:8000"},
    {"host": "localhost:8000", "origin": "http://localhost:8000"},
    {"host": "LOCALHOST:8000", "origin": "http://localhost:8000", "sec-fetch-site": "same-origin"},
    {"host": "127.0.0.1:9", "origin": "https://ai.example.com", "sec-fetch-site": "same-origin"},
    {"content-type": "application/json; charset=utf-8"},
    {"content-type": "application/octet-stream"},
]


@pytest.mark.parametrize("headers", OWN, ids=str)
@shared
async def test_clients_without_a_browser_and_our_own_page_may_ask(client: httpx.AsyncClient, headers: Any):
    answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("changes", "headers", "admitted"),
    [
        ({"cors_origins": (EVIL,)}, {"origin": EVIL, "sec-fetch-site": "cross-site"}, True),
        ({"cors_origins": (EVIL,)}, {"origin": EVIL + ":8443"}, False),
        ({"cors_origins": ("*",)}, {"origin": "null"}, True),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "ai.example.com"}, True),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "AI.example.com:8443"}, True),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "evil.ai.example.com"}, False),
        ({"allowed_hosts": ("*.example.com",)}, {"host": "a.b.example.com."}, True),
        ({"allowed_hosts": ("*.example.com",)}, {"host": "example.com"}, False),
        ({"allowed_hosts": ("*",)}, {"host": "anything"}, True),
        ({"allowed_hosts": ("*",)}, {"host": "anything", "origin": EVIL}, False),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "inner:80", "origin": "https://ai.example.com"}, False),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "10.0.0.3", "origin": "https://ai.example.com"}, True),
        ({"allowed_hosts": ("ai.example.com",)}, {"host": "10.0.0.3", "origin": "https://ai.example.com:444"}, False),
        ({"api_keys": ("k",)}, {"host": "ai.example.com"}, True),
        ({"api_keys": ("k",)}, {"host": "ai.example.com", "origin": "https://ai.example.com"}, True),
        ({"api_keys": ("k",)}, {"host": "ai.example.com", "origin": EVIL}, False),
        ({"api_keys": ("k",), "allowed_hosts": ("ai.example.com",)}, {"host": "other.example.com"}, False),
        ({"container_names": True}, {"host": "host.docker.internal:8000"}, True),
        ({"container_names": True}, {"host": "host.containers.internal"}, True),
        ({"container_names": True}, {"host": "Agent_Server:8000"}, True),
        ({"container_names": True}, {"host": "agent.default.svc.cluster.local"}, True),
        ({"container_names": True}, {"host": "agent:8000", "origin": "http://agent:8000"}, True),
        ({"container_names": True}, {"host": "agent:8000", "origin": EVIL}, False),
        ({"container_names": True}, {"host": "rebound.example"}, False),
        ({"container_names": True}, {"host": "host.docker.internal.rebound.example"}, False),
        ({"container_names": True}, {"host": "evildocker.internal"}, False),
        ({"container_names": True}, {"host": ":8000"}, False),
        ({"container_names": False}, {"host": "host.docker.internal:8000"}, False),
        ({"container_names": False}, {"host": "agent:8000"}, False),
        (
            {"container_names": False, "allowed_hosts": ("host.docker.internal",)},
            {"host": "host.docker.internal"},
            True,
        ),
        ({"host": "box.lan"}, {"host": "box.lan:8000"}, True),
        ({"host": "0.0.0.0"}, {"host": "elsewhere.example"}, False),
    ],
)
def test_what_the_settings_allow(changes: dict[str, Any], headers: dict[str, str], admitted: bool):
    policy = browser_policy(settings(**changes))
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/agui", "headers": raw}
    assert (policy.refusal(scope) is None) == admitted


@pytest.mark.parametrize("mark", [None, *CONTAINER_MARKS])
def test_names_of_containers_are_served_where_the_system_says_that_it_is_one(
    mark: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(Path, "exists", lambda path: str(path) == mark)
    policy = browser_policy(settings(container_names=None))
    scope = {"type": "http", "method": "POST", "path": "/agui", "headers": [(b"host", b"host.docker.internal:8000")]}
    assert (policy.refusal(scope) is None) == (mark is not None)


@shared
async def test_reading_is_not_asked_about_its_origin(client: httpx.AsyncClient):
    for method in ("GET", "HEAD"):
        assert (await client.request(method, "/health", headers={"origin": EVIL})).status_code == 200
