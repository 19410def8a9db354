"""A request leaves no reference cycles behind."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import pytest
from opentelemetry import trace

from agent_server.engines.scripted import Script
from agent_server.http.app import Application, create_app
from agent_server.models.prompting.quick_builds import QuickBuilds
from tests.server import scripted, settings

LEFT = 10
"""Objects; of a request that held itself 19 were left."""


@pytest.fixture(scope="module")
def script() -> list[Script]:
    """The one script of the server, replaced by each test: every token comes by itself."""
    return []


@pytest.fixture
async def app(script: list[Script], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)  # tests of traces set one for the whole process
    monkeypatch.setattr(QuickBuilds, "may_follow", False)  # prompts are built in threads, and so not in the figure
    application = create_app(settings(), engine=scripted(lambda request: script[-1]))
    async with application.running():
        while not application.state.server.model.ready:
            await asyncio.sleep(0.01)
        yield application


async def answered(app: Application, *, stream: bool) -> list[bytes]:
    """The bodies that the application sends for one chat request, each as it was sent."""
    asked = {"messages": [{"role": "user", "content": "Hello"}], "stream": stream, "max_tokens": 100}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": "/v1/chat/completions", "raw_path": b"/v1/chat/completions", "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    bodies: list[bytes] = []
    body = [json.dumps(asked).encode()]
    stays = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if not body:
            await stays.wait()
        return {"type": "http.request", "body": body.pop(), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])

    await app(scope, receive, send)
    return bodies


async def test_a_request_leaves_nothing_to_the_garbage_collector(app, script):
    """What holds itself stays until a collection finds it, and each of these stops every stream."""
    word = scripted("").vocabulary.encode("the ")[0]
    script.append(Script(tokens=(word,), reason="length"))
    for _ in range(3):
        await answered(app, stream=True)
    gc.collect()
    gc.disable()
    left = []
    try:
        for _ in range(5):
            await answered(app, stream=True)
            await asyncio.sleep(0)
            left.append(gc.collect())
        assert min(left) < LEFT  # what else goes on in the process leaves some, too, now and then
    finally:
        gc.enable()
