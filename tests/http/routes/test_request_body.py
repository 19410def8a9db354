"""What happens to a request's body before a route sees it."""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import AsyncIterator

import httpx
import msgspec
import pytest
from starlette.types import Message, Receive, Scope
from websockets.asyncio.client import connect

from adapters import openai_chat
from adapters.agui import AguiSession
from adapters.errors import RequestError
from adapters.generate import GenerationSession
from agent_server.engines.scripted import Script
from agent_server.http.app import build_app
from agent_server.http.routes import http
from events.options import GenerationOptions
from tests.runs.agents import ask
from tests.server import Running, scripted, serving

STARTING_RUNS = (
    "/agui",
    "/agui/default",
    "/copilotkit/agent/default/run",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/generate",
    "/v1/messages",
    "/v1/responses",
)
ENDLESS = Script(text="On and on.", delay=0.01, reason=None)


async def post(running: Running, path: str, receive: Receive) -> int:
    """The status of the answer to a POST whose body comes from `receive`."""
    statuses: list[int] = []

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope: Scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "http_version": "1.1"}
    scope |= {"scheme": "http", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1), "root_path": ""}
    await build_app(running.server)(scope, receive, send)
    return statuses[0]


@contextlib.asynccontextmanager
async def full_server() -> AsyncIterator[Running]:
    """A server with one place, which a run has taken."""
    async with serving(scripted([ENDLESS]), max_runs=1) as running:
        run = await running.server.runs.start(ask("first"), GenerationOptions())
        yield running
        await run.cancel()
        await run.wait()


async def body_is_read() -> Message:
    pytest.fail("the body was read")


@pytest.mark.parametrize("path", STARTING_RUNS)
async def test_a_full_server_refuses_a_run_without_reading_its_body(path: str):
    async with full_server() as running:
        assert await post(running, path, body_is_read) in (503, 529)


async def test_a_server_that_shuts_down_refuses_a_run_without_reading_its_body():
    async with serving(scripted("Hello")) as running:
        running.server.begin_shutdown()
        assert await post(running, "/v1/chat/completions", body_is_read) == 503


async def test_a_body_that_came_while_the_server_filled_up_is_not_parsed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_chat, "parse", lambda *_, **__: pytest.fail("the body was parsed"))
    async with serving(scripted([ENDLESS]), max_runs=1) as running:

        async def slow_body() -> Message:
            await running.server.runs.start(ask("first"), GenerationOptions())
            return {"type": "http.request", "body": b"{}", "more_body": False}

        assert await post(running, "/v1/chat/completions", slow_body) == 503
        await running.server.runs.get("first").cancel()


async def test_a_full_server_still_counts_tokens():
    body = msgspec.json.encode({"prompt": "Hello"})

    async def small() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async with full_server() as running:
        assert await post(running, "/tokenize", small) == 200


@pytest.mark.parametrize(("size", "beside"), [(http.LARGE, False), (http.LARGE + 1, True)])
async def test_large_input_is_parsed_in_a_thread(size: int, beside: bool):
    here = threading.get_ident()
    assert (await http.parse_off_loop(size, threading.get_ident) != here) is beside


@pytest.mark.parametrize("path", ["/agui/ws", "/generate"])
async def test_a_large_message_of_a_websocket_is_parsed_in_a_thread(path: str, monkeypatch: pytest.MonkeyPatch):
    threads: list[int] = []

    def read(session: GenerationSession, data: str) -> RequestError:
        threads.append(threading.get_ident())
        return RequestError("invalid_request", "Read.")

    for session in (GenerationSession, AguiSession):
        monkeypatch.setattr(session, "read", read)
    async with serving(scripted("Hello")) as running, connect(running.url.replace("http", "ws") + path) as client:
        for size in (http.LARGE, http.LARGE + 1):
            await client.send("x" * size)
            assert "Read." in str(await client.recv())
    here = threading.get_ident()
    assert [thread != here for thread in threads] == [False, True]


@pytest.mark.parametrize("path", ["/agui", "/v1/chat/completions", "/v1/messages", "/tokenize"])
async def test_a_compressed_body_is_refused_by_name(path: str) -> None:
    body = gzip.compress(b'{"model":"default","messages":[{"role":"user","content":"Hello"}]}')
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post(path, content=body, headers=headers)
        plain = await client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hello"}]},
                                  headers={"content-encoding": "UTF-8"})  # fmt: skip
    assert answer.status_code == 415 and "Content-Encoding" in answer.text
    assert plain.status_code == 200


@pytest.mark.parametrize("charset", ["punycode", "idna", "utf-16", "x" * 1000, ""])
async def test_texts_of_a_form_are_read_in_utf_8_alone(charset: str):
    """`punycode` takes a second for 64 KB, and a form may have 32 fields of that."""
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\n' + b"a" * 60_000 + b"\r\n--x--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary=x; charset={charset}"}
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/audio/transcriptions", content=body, headers=headers)
    assert answer.status_code == 415 and "UTF-8" in answer.text
