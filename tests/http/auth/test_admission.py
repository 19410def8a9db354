"""Every route asks for a key, and for the scope that it needs: a walk over all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import websockets
from starlette.routing import Route, WebSocketRoute

from agent_server.http.app import build_app
from agent_server.http.auth.keys_file import KeyEntry, add_key, digest
from tests.server import Running, scripted, serving

PUBLIC = {"/", "/health", "/ready", "/favicon.ico", "/favicon.svg", "/oauth/callback"}
"""Whoever opens another path to everybody writes it here, too."""
KEYS = {"use": "u", "operate": "o", "metrics": "m"}


shared = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    file: Path = tmp_path_factory.mktemp("keys") / "keys.toml"
    for scope, secret in KEYS.items():
        add_key(file, KeyEntry(name=scope, hash=digest(secret), tenant="acme", scopes=(scope,)))  # type: ignore[arg-type]
    async with serving(scripted("Hi."), keys_file=file) as made:
        yield made


def needed(path: str) -> str | None:
    """Told here once more, so that a change of the rule must be meant."""
    if path in PUBLIC or path.startswith("/assets/"):
        return None
    return "operate" if path.startswith("/operator/") else "metrics" if path == "/metrics" else "use"


def walk(running: Running) -> list[tuple[str, str]]:
    app: Any = build_app(running.server)
    found = []
    for route in app.routes:
        if isinstance(route, Route):
            found += [(method, route.path) for method in sorted(route.methods or ())]
        elif isinstance(route, WebSocketRoute):
            found.append(("WEBSOCKET", route.path))
        else:
            found.append(("GET", f"{route.path}/x"))
    return [(method, path.replace("{", "").replace("}", "").replace(":path", "")) for method, path in found]


@shared
@pytest.mark.parametrize("held", [None, "wrong", *KEYS])
async def test_no_route_is_open_but_the_public_ones(running: Running, held: str | None):
    headers = {} if held is None else {"authorization": f"Bearer {KEYS.get(held, held)}"}
    routes = walk(running)
    assert len(routes) > 40
    async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=10) as client:
        for method, path in routes:
            if method in ("WEBSOCKET", "HEAD", "OPTIONS"):
                continue
            answer = await client.request(method, path, content=b"" if method == "GET" else b"{")
            wanted = needed(path)
            if path == "/demo/models":  # closed behind keys, whoever holds one, unless the operator opens it
                assert answer.status_code == (403 if held in KEYS else 401), (method, path)
            elif wanted is None or held == wanted:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
            elif held in KEYS:
                assert answer.status_code == 403 and f"scope '{wanted}'" in answer.text, (method, path)
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]


@shared
async def test_a_path_with_a_line_break_behind_it_is_another_path(running: Running):
    """A key is asked for what the path says, so no route may answer to a path that says something else."""
    async with httpx.AsyncClient(base_url=running.url, timeout=10) as client:
        for method, path in walk(running):
            if method in ("WEBSOCKET", "HEAD", "OPTIONS") or path.endswith(("/x", "id", "item", "agent", "name")):
                continue
            key = KEYS["operate" if path.startswith("/operator/") else "use"]
            answer = await client.request(method, f"{path}%0a", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code in (404, 405), (method, path, answer.text)


@shared
@pytest.mark.parametrize("held", [None, "wrong", "o", "m"])
async def test_no_websocket_is_open(running: Running, held: str | None):
    base = running.url.replace("http", "ws")
    for method, path in walk(running):
        if method != "WEBSOCKET":
            continue
        async with asyncio.timeout(10), websockets.connect(f"{base}{path}?api_key={held or ''}") as socket:
            assert "key" in json.dumps(json.loads(await socket.recv()))
            await socket.wait_closed()
        assert socket.close_code == 1008


async def test_keys_of_one_tenant_share_its_threads_and_others_do_not_see_them(tmp_path: Path):
    file = tmp_path / "keys.toml"
    for name, tenant in (("a1", "a"), ("a2", "a"), ("b", "b")):
        add_key(file, KeyEntry(name=name, hash=digest(name), tenant=tenant))
    sent = {"threadId": "t", "runId": "r", "protocolVersion": "1.0", "messages": []}
    sent["messages"] = [{"id": "m", "role": "user", "content": "Hi"}]  # type: ignore[assignment]
    async with serving(scripted("Hi."), keys_file=file) as made, httpx.AsyncClient(base_url=made.url) as client:
        await client.post("/agui", json=sent, headers={"x-api-key": "a1"})
        seen = [
            (await client.get("/agui/threads/t", headers={"x-api-key": key})).status_code for key in ("a1", "a2", "b")
        ]
    assert seen == [200, 200, 404]
