"""A server whose every byte the test decides: for what no well-behaved server would send."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agent_server.engine_protocol.detokenizer import ByteVocabulary
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.upstream import UpstreamEngine, UpstreamModel, parse_address
from agent_server.settings import UpstreamSettings
from events.options import SamplingParams

Writer = asyncio.StreamWriter
Play = Callable[[Writer, Any], Awaitable[None]]
QUICK = UpstreamSettings(connect=5.0, idle=20.0, first=20.0, total=60.0, start=0.5, health=0.05)
VOCABULARY = ByteVocabulary()
MODEL = UpstreamModel(
    name="bytes",
    source="bytes",
    vocabulary=VOCABULARY,
    ends=frozenset({257}),
    controls={256: "<|im_start|>", 257: "<|im_end|>", 258: "<think>", 259: "</think>"},
    context_length=200,
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def token_frame(ids: list[int], finish: str | None = None, stop: Any = None) -> bytes:
    choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": finish, "stop_reason": stop}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def says(*parts: bytes, close: bool = False) -> Play:
    """A stream of these chunks and a clean end, or with `close` none."""

    async def play(writer: Writer, body: Any) -> None:
        writer.write(HEAD + b"".join(map(chunk, parts)) + (b"" if close else END))
        await writer.drain()
        if close:
            writer.close()

    return play


def answers(status: str, value: Any, content_type: str = "application/json") -> Play:
    async def play(writer: Writer, body: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()

    return play


class Server:
    """plays: by path; `/v1/completions` with max_tokens 1 is a probe of the start and is answered properly."""

    def __init__(self) -> None:
        entry = {"id": "bytes", "owned_by": "vllm", "max_model_len": 100}
        self.plays: dict[str, Play] = {
            "/health": answers("200 OK", b""),
            "/version": answers("200 OK", {"version": "0"}),
            "/v1/models": answers("200 OK", {"data": [entry]}),
            "/tokenize": answers("404 Not Found", {"detail": "Not Found"}),
            "/v1/completions": says(token_frame([104, 105]), token_frame([257], "stop"), DONE),
        }
        self.url = ""
        self.requests: list[tuple[str, Any]] = []
        self.connections = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.keys: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._converse(reader, writer)
        finally:
            self.tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _converse(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                path = head.split(" ", 2)[1]
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                data = await reader.readexactly(int(fields.get("content-length", 0)))
                body = json.loads(data) if data else None
                self.requests.append((path, body))
                self.keys.append(fields.get("authorization", ""))
                await self.play(path, body)(writer, body)

    def play(self, path: str, body: Any) -> Play:
        if path == "/v1/completions" and body.get("max_tokens") == 1:
            good = says(token_frame([65], "length"), DONE)
            return good if body.get("stream") else answers("200 OK", {"choices": []})
        return self.plays.get(path, answers("404 Not Found", {"detail": "Not Found"}))


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in server.tasks:
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(server: Server, **changes: Any) -> AsyncIterator[UpstreamEngine]:
    engine = UpstreamEngine(parse_address(server.url), lambda: MODEL, settings(**changes))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


def settings(**changes: Any) -> UpstreamSettings:
    return QUICK.model_copy(update=changes)


def asked(name: str = "one", **sampling: Any) -> GenerationRequest:
    return GenerationRequest(
        request_id=name, prompt_token_ids=(65, 66), sampling=SamplingParams(**{"max_tokens": 20, **sampling})
    )
