"""A request leaves no reference cycles behind, whether it is answered or refused."""

from __future__ import annotations

import asyncio
import gc
import json
from functools import partial
from types import TracebackType
from typing import Any

import pytest
from opentelemetry import trace

from adapters.agui import AguiSession
from adapters.generate import GenerationSession
from agent_server.engines.scripted import Script
from agent_server.http.app import Application, create_app
from agent_server.models.prompting.quick_builds import QuickBuilds
from tests.garbage import left_in_cycles
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


async def answered(
    app: Application, path: str, body: Any, *, method: str = "POST", leaves: bool = False
) -> list[bytes]:
    """The bodies that the application sends for one request, each as it was sent. leaves: the client disconnects once
    its request was read."""
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    bodies: list[bytes] = []
    unread = [json.dumps(body).encode()]
    stays = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        if not leaves:
            await stays.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            bodies.append(message["body"])

    await app(scope, receive, send)
    return bodies


def chat(content: str = "Hello", **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 100, **more}


async def test_a_request_leaves_nothing_to_the_garbage_collector(app, script):
    """What holds itself stays until a collection finds it, and each of these stops every stream."""
    word = scripted("").vocabulary.encode("the ")[0]
    script.append(Script(tokens=(word,), reason="length"))
    for _ in range(3):
        await answered(app, "/v1/chat/completions", chat(stream=True))
    gc.collect()
    gc.disable()
    left = []
    try:
        for _ in range(5):
            await answered(app, "/v1/chat/completions", chat(stream=True))
            await asyncio.sleep(0)
            left.append(gc.collect())
        assert min(left) < LEFT  # what else goes on in the process leaves some, too, now and then
    finally:
        gc.enable()


LONG = "word " * 20_000
MESSAGES = [{"id": "1", "role": "user", "content": LONG}]
RUN = {"threadId": "t", "runId": "r", "messages": MESSAGES, "tools": [], "context": [], "state": {}}
REFUSED: dict[str, tuple[str, str, Any, bool, bytes]] = {
    "long chat": ("POST", "/v1/chat/completions", chat(LONG), False, b"context_length_exceeded"),
    "long stream": ("POST", "/v1/chat/completions", chat(LONG, stream=True), False, b"context_length_exceeded"),
    "long response": ("POST", "/v1/responses", {"input": LONG}, False, b"context_length_exceeded"),
    "long message": ("POST", "/v1/messages", chat(LONG, model="default"), False, b"prompt is too long"),
    "long run": ("POST", "/agui", {**RUN, "forwardedProps": {}}, False, b"RUN_ERROR"),
    "long text": ("POST", "/tokenize", {"prompt": LONG * 4}, False, b"the limit is"),
    "no such schema": (
        "POST", "/v1/chat/completions",
        chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}),
        False, b"schema",
    ),
    "nothing to delete": ("DELETE", "/agui/threads/t/messages/m", None, False, b"not_found"),
    "client left": ("POST", "/v1/chat/completions", chat(), True, b""),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_is_not_kept_by_its_own_error(app, script, name, caplog):
    """An error that is held by a frame of its own traceback keeps all frames, and with them the body of the request:
    forty clients whose chats were too long took 400 MB."""
    method, path, body, leaves, expected = REFUSED[name]
    script.append(Script(text="word " * 50))

    async def refuse() -> bytes:
        return b"".join(await answered(app, path, body, method=method, leaves=leaves))

    assert expected in await refuse()  # the first of its kind imports and compiles
    with left_in_cycles() as found:
        await refuse()
        await asyncio.sleep(0.05)  # a run of a client that left ends by itself
    assert not [each for each in found if isinstance(each, BaseException | TracebackType)]
    assert not [each for each in caplog.records if each.name == "asyncio"]  # an exception that nobody retrieved


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (AguiSession, "{"),
        (AguiSession, '{"type": "run", "input": {"threadId": 1}}'),
        (partial(GenerationSession, new_id=lambda prefix: f"{prefix}_1", clock=lambda: 0.0), "{"),
        (partial(GenerationSession, new_id=lambda prefix: f"{prefix}_1", clock=lambda: 0.0), '{"type": "config"}'),
    ],
)
def test_a_refused_message_is_not_kept_by_its_own_error(begin, message):
    session = begin()
    session.receive(message)
    with left_in_cycles() as found:
        assert "error" in str(session.receive(message)).lower()
    assert not [each for each in found if isinstance(each, BaseException)]
