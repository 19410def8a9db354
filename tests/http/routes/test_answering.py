"""Streams of answers: what goes out, in which order, whenever it comes."""

from __future__ import annotations

import asyncio
import threading
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from adapters.openai_chat import ChatStream
from agent_server.engines.scripted import Fault, Script
from agent_server.http.app import create_app
from agent_server.http.routes import answering, openai_routes
from tests.server import scripted, serving, settings

TEXT = "One, two, three, and so on until the end."


async def asked(url: str, **more: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True, **more}
        return await client.post("/v1/chat/completions", json=body)


def said(text: str) -> str:
    frames = [line[6:] for line in text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for frame in frames for choice in msgspec.json.decode(frame)["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("first_delay", [0.0, 0.05])
async def test_an_answer_whose_first_word_comes_late_is_whole(monkeypatch: pytest.MonkeyPatch, first_delay: float):
    """The status line waits no longer than it may; what was read meanwhile comes first."""
    monkeypatch.setattr(answering, "HOLD_SECONDS", 0.0)
    async with serving(scripted([Script(text=TEXT, first_delay=first_delay, delay=0.001)])) as server:
        response = await asked(server.url)
    assert (response.status_code, said(response.text)) == (200, TEXT)
    assert response.text.endswith("data: [DONE]\n\n")


async def test_a_failure_before_the_first_word_is_a_status_unless_it_comes_too_late(monkeypatch: pytest.MonkeyPatch):
    failing = Script(text=TEXT, first_delay=0.05, fault=Fault(action="error", kind="overloaded", message="Full."))
    async with serving(scripted([failing])) as server:
        assert (await asked(server.url)).status_code == 503
        monkeypatch.setattr(answering, "HOLD_SECONDS", 0.0)
        response = await asked(server.url)
    assert response.status_code == 200
    assert "Full." in response.text


async def test_an_encoder_that_fails_leaves_no_run_behind(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object, **__: object) -> bytes:
        raise RuntimeError("no such frame")

    monkeypatch.setattr(ChatStream, "encode", fail)
    endless = Script(text=TEXT, delay=0.01, reason=None)
    async with serving(scripted([endless])) as server:
        assert (await asked(server.url)).status_code == 500
        async with asyncio.timeout(5):
            while server.engine.running:
                await asyncio.sleep(0.01)


class Remarks:
    """A layer that adds a comment to whatever is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def remark(message: Message) -> None:
            if message.get("body"):
                message = {**message, "body": message["body"] + b": seen\n\n"}
            await send(message)

        await self._app(scope, receive, remark)


@pytest.mark.parametrize("layers", [[], [Remarks], [GZipMiddleware], [Remarks, GZipMiddleware]])
async def test_a_layer_that_somebody_puts_around_the_application_sees_what_is_streamed(layers: list[type]):
    app = create_app(settings(), engine=scripted(TEXT))
    for layer in layers:
        app.add_middleware(layer)
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(30):
            while not app.state.server.model.ready:
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            body = {"messages": [{"role": "user", "content": "Hello"}], "stream": True}
            response = await client.post("/v1/chat/completions", json=body)
    assert (response.status_code, said(response.text)) == (200, TEXT)
    assert (": seen" in response.text) == (Remarks in layers)


async def test_answers_that_come_in_large_items_say_the_same():
    for chunk in (1, 5, 1000):
        async with serving(scripted([Script(text=TEXT, chunk=chunk)])) as server:
            response = await asked(server.url, n=2, stream_options={"include_usage": True})
        frames = response.text.count('"content":')
        assert len(said(response.text)) == 2 * len(TEXT)
        assert frames == 2 if chunk == 1000 else frames > 2


@pytest.mark.parametrize("first_delay", [0.0, 3600.0])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_in_its_second_request_on_a_connection_ends_that_run(stream, first_delay):
    """Whether it leaves before the first word or between two. The connection is both requests'."""
    scripts = [Script(text="Hi."), Script(text=TEXT, first_delay=first_delay, delay=3600.0, reason=None)]
    async with serving(scripted(scripts)) as server:
        place = urlsplit(server.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        for number in range(2):
            body = msgspec.json.encode({"messages": [{"role": "user", "content": "Hello"}], "stream": stream})
            body += b" " * (300_000 * number)  # reading such a body is paused now and then
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            if not number:
                await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b'"usage":')
        async with asyncio.timeout(10):
            while not server.engine.running:
                await asyncio.sleep(0.001)
        assert server.engine.cancelled == []
        writer.close()
        async with asyncio.timeout(10):
            while not server.engine.cancelled:
                await asyncio.sleep(0.001)
    assert len(server.engine.cancelled) == 1


@pytest.mark.parametrize("most", [2, 2000])
async def test_a_long_answer_in_one_piece_is_made_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch, most: int):
    monkeypatch.setattr(answering, "MANY_EVENTS", most)
    made, here = openai_routes.chat_body, []

    def body(*given: object) -> bytes:
        here.append(threading.current_thread() is threading.main_thread())
        return made(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(openai_routes, "chat_body", body)
    async with serving(scripted([Script(text=TEXT)])) as server:
        response = await asked(server.url, stream=False)
    assert response.json()["choices"][0]["message"]["content"] == TEXT
    assert here == [most == 2000]
