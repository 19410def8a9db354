"""How much Python runs for a request and for each of its tokens, in function calls: unlike time, they do not depend on
the machine. A bound that is passed says that work was added to every request or token of every wire."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from opentelemetry import trace

from agent_server.app import Application, create_app
from agent_server.engines.scripts import Script
from agent_server.prompting.quick_builds import QuickBuilds
from tests.server import scripted, settings

LEFT_OUT = (str(Path(__file__).parents[1]), str(Path(asyncio.__file__).parents[1]) + "/asyncio")
"""The tests, and asyncio, of which a server that runs on uvloop has little in Python."""
REQUEST_CALLS = 1050
"""Of one chat request, with the first token; 909 to 959 were counted."""
TOKEN_CALLS = 52
"""Of one more token, the scripted engine's own included; 44 to 46 were counted."""
FEW, MANY = 1, 101
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
    asked = {"messages": [{"role": "user", "content": "Hello"}], "stream": stream, "max_tokens": MANY}
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
    script.append(tokens(FEW))
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


async def calls(app: Application, *, stream: bool) -> tuple[int, list[bytes]]:
    """Calls of Python functions in this thread during one request, and what was sent."""
    await answered(app, stream=stream)  # what is made once, for the first of its kind
    counted: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not frame.f_code.co_filename.startswith(LEFT_OUT):
            counted[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        bodies = await answered(app, stream=stream)
    finally:
        sys.setprofile(None)
    return counted.total(), bodies


def tokens(number: int) -> Script:
    """So many tokens, each of which the server has before the next one is made."""
    word = scripted("").vocabulary.encode("the ")[0]
    return Script(tokens=(word,) * number, reason="length")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_and_a_token_cost_no_more_calls_than_stated(app, script, stream):
    script.append(tokens(FEW))
    few, _ = await calls(app, stream=stream)
    script.append(tokens(MANY))
    many, bodies = await calls(app, stream=stream)
    if stream:
        assert sum(b'"content":"' in body for body in bodies) > 0.9 * MANY, "a token has a frame of its own"
    assert few <= REQUEST_CALLS
    assert (many - few) / (MANY - FEW) <= TOKEN_CALLS
