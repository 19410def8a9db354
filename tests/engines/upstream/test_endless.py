"""Upstreams that do not end what they were asked for, and what they send that is far too large or too deep."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream import UpstreamEngine, load_model, parse_address
from agent_server.engines.upstream.transport import FrameSplitter
from agent_server.http.server import BUNDLED
from tests.engines.upstream.servers import (
    DONE,
    HEAD,
    Play,
    Server,
    Writer,
    answers,
    asked,
    chunk,
    connected,
    says,
    serving,
    settings,
    token_frame,
)
from tests.loop_turns import counted_turns
from tests.server import Running
from tests.server import serving as served


def text_frame(text: str, finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": finish}]}).encode() + b"\n\n"


class Endless:
    """Plays one frame again and again. closed: when the other side closed the connection."""

    def __init__(self, frame: bytes, first: bytes = b"") -> None:
        self._frame, self._first = frame, first
        self.closed = asyncio.Event()

    async def __call__(self, writer: Writer, body: Any) -> None:
        writer.write(HEAD + (chunk(self._first) if self._first else b""))
        try:
            while True:
                writer.write(chunk(self._frame))
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            self.closed.set()


async def generated(engine: UpstreamEngine, **sampling: Any) -> tuple[list[Any], Any]:
    async with asyncio.timeout(20):
        items = [item async for item in engine.generate(asked(**sampling))]
    return [token for item in items[:-1] for token in item.tokens], items[-1]


@pytest.mark.parametrize("ids", [[104], [104, 105, 106], [104] * 5000])
async def test_one_that_never_stops_is_cut_at_max_tokens(ids: list[int], caplog: pytest.LogCaptureFixture):
    async with serving() as server, connected(server) as engine:
        endless = server.plays["/v1/completions"] = Endless(token_frame(ids))
        tokens, end = await generated(engine, max_tokens=20)
        assert (len(tokens), end.reason, end.usage.completion_tokens) == (20, "length", 20)
        await asyncio.wait_for(endless.closed.wait(), 10)
        assert "does not stop at max_tokens" in caplog.text
        server.plays["/v1/completions"] = says(token_frame([104, 105]), token_frame([257], "stop"), DONE)
        assert (await generated(engine))[1].reason == "stop"


async def test_what_waits_for_a_stop_string_is_part_of_an_answer_that_is_cut():
    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = Endless(token_frame([104]))
        tokens, end = await generated(engine, max_tokens=5, stop=("hhhhhhhi",))
        assert ("".join(token.text for token in tokens), end.reason, end.stop) == ("hhhhh", "length", None)


async def test_an_upstream_that_stops_at_max_tokens_says_how_it_ended():
    async with serving() as server, connected(server) as engine:
        for reason in ("length", "stop"):
            server.plays["/v1/completions"] = says(token_frame([104] * 20), token_frame([], reason), DONE)
            tokens, end = await generated(engine, max_tokens=20)
            assert (len(tokens), end.reason) == (20, reason)
        assert server.connections == 1, "a connection whose answer was read to its end is used again"


async def test_one_that_sends_frames_behind_its_end_is_not_read_on():
    async with serving() as server, connected(server) as engine:
        endless = server.plays["/v1/completions"] = Endless(b'data: {"choices": []}\n\n', token_frame([104], "stop"))
        assert (await generated(engine))[1].reason == "stop"
        await asyncio.wait_for(endless.closed.wait(), 10)


@contextlib.asynccontextmanager
async def behind_text(play: Play, **changes: Any) -> AsyncIterator[Running]:
    """A gateway in front of a server that sends text alone, with the bundled model's tokenizer."""

    class TextServer(Server):
        def play(self, path: str, body: Any) -> Play:
            if path != "/v1/completions":
                return super().play(path, body)
            return says(text_frame("a", "length"), DONE) if body.get("max_tokens") == 1 else play

    server = TextServer()
    server.plays["/v1/models"] = answers("200 OK", {"data": [{"id": "demo", "max_model_len": 4096}]})
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"openai+http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    engine = UpstreamEngine(parse_address(url), lambda: load_model(str(BUNDLED), "demo"), settings(**changes))
    try:
        async with served(engine) as running:
            yield running
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


CHAT = {"model": "default", "messages": [{"role": "user", "content": "Hello"}]}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    ("first", "text"),
    [("", "word "), ("", "word " * 50), ("<think>\n", "hm "), (CALL, "x "), ("", "word " * 200_000)],
    ids=["a token a frame", "many tokens a frame", "reasoning", "arguments", "one frame"],
)
async def test_each_wire_says_that_an_endless_answer_was_cut(first: str, text: str):
    endless = Endless(text_frame(text), text_frame(first) if first else b"")
    async with behind_text(endless) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        body = {**CHAT, "tools": TOOLS, "max_tokens": 40}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] <= 40
        assert len(json.dumps(answer)) < 4000
        await asyncio.wait_for(endless.closed.wait(), 10)
        answer = (await client.post("/v1/messages", json={**CHAT, "max_tokens": 40})).json()
        assert answer["stop_reason"] == "max_tokens"


async def test_a_megabyte_in_one_frame_leaves_the_loop_to_others():
    """It is read in parts; between them the loop turns."""
    big = says(text_frame("word " * 100_000), text_frame("", "stop"), DONE)
    async with behind_text(big) as running, counted_turns() as turns:
        async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
            answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert next(turns) > 10


async def test_a_frame_of_line_breaks_is_read_in_parts_although_it_is_few_tokens():
    text = "\n" * 200_000
    async with behind_text(says(text_frame(text), text_frame("", "stop"), DONE)) as running:
        engine = running.engine
        async with counted_turns() as turns:
            request = asked(max_tokens=4000)
            before, items = next(turns), [item async for item in engine.generate(request)]
            assert next(turns) - before > 90
        assert "".join(token.text for item in items[:-1] for token in item.tokens) == text


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "frame",
    [DEEP, b'{"choices": ' + DEEP, b'{"error": ' + DEEP + b"]" * 100_000 + b"}", b'{"choices": [], "x": ' + DEEP],
    ids=["alone", "choices", "error", "a field of no interest"],
)
async def test_a_frame_that_is_nested_deeply_is_the_upstreams_error(frame: bytes):
    async with serving() as server, connected(server) as engine:
        server.plays["/v1/completions"] = says(token_frame([104]), b"data: " + frame + b"\n\n", DONE)
        with pytest.raises(EngineError) as raised:
            await generated(engine)
        assert raised.value.kind == "connection" and "upstream sent data" in raised.value.message
        server.plays["/v1/completions"] = answers("500 Oops", frame)
        with pytest.raises(EngineError, match="upstream"):
            await generated(engine)


def test_a_frame_that_comes_in_many_parts_is_joined_once():
    splitter = FrameSplitter()
    held = [splitter.feed(b"data: " + b"x" * 65536)]
    held += [splitter.feed(b"x" * 65536) for _ in range(100)]
    assert held == [[]] * 101
    assert [len(frame) for frame in splitter.feed(b"\r\n\r") + splitter.feed(b"\ndata: y\n\n")] == [101 * 65536, 1]
