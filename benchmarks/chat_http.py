"""`/v1/chat/completions` with many streams at once: tokens for each second of the server's CPU, beside a peer.

    python benchmarks/chat_http.py [--streams 256] [--tokens 100]

Each server runs in a process of its own, one after the other, with the same client. Ours is the whole server with the
scripted engine: parsing the request, rendering and encoding the prompt, the run, its log, the output parser, the wire.
The peer does only what `transformers serve` does for each token, on the same web server: it builds the openai package's
ChatCompletionChunk and serialises it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1]))

BODY = {"model": "default", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


def serve(app: Any, listener: socket.socket) -> None:
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def serve_ours(listener: socket.socket, tokens: int) -> None:
    from agent_server.app import build_app
    from agent_server.assemble import build_server
    from agent_server.engine.scripted import Script
    from tests.server import scripted, settings

    engine = scripted([Script(text=" word" * 2 * tokens, delay=0.005)] * 1)
    changes = {"max_runs": 4096, "max_runs_per_tenant": 4096, "max_queued": 4096}
    serve(build_app(build_server(settings(**changes), engine=engine)), listener)


def serve_peer(listener: socket.socket, tokens: int) -> None:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import Choice, ChoiceDelta
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    async def chat(request: Request) -> Response:
        await request.json()

        async def chunks() -> Any:
            for _ in range(tokens):
                await asyncio.sleep(0.005)
                delta = ChoiceDelta.model_validate({"content": " word", "role": None, "reasoning_content": None})
                chunk = ChatCompletionChunk(
                    id="chatcmpl-1",
                    created=int(time.time()),
                    model="m",
                    choices=[Choice(delta=delta, index=0, finish_reason=None)],
                    system_fingerprint="",
                    object="chat.completion.chunk",
                )
                yield f"data: {chunk.model_dump_json(exclude_none=True)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(chunks(), media_type="text/event-stream")

    async def ready(_: Request) -> Response:
        return Response("{}")

    serve(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/ready", ready)]), listener)


async def load(url: str, streams: int, tokens: int) -> int:
    """Run the streams; the deltas that came."""
    limits = httpx.Limits(max_connections=streams)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=300) as client:
        for _ in range(600):
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get("/ready")).status_code == 200:
                    break
            await asyncio.sleep(0.1)

        async def one() -> int:
            body = {**BODY, "max_tokens": tokens}
            async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                return sum([data.count(b'"content":') async for data in answer.aiter_raw()])

        await one()
        return sum(await asyncio.gather(*(one() for _ in range(streams))))


def measure(target: Any, streams: int, tokens: int) -> float:
    """Deltas for each second of the server's CPU."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        process = multiprocessing.get_context("fork").Process(target=target, args=(listener, tokens))
        process.start()
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            asyncio.run(load(url, 1, 1))
            before = psutil.Process(process.pid).cpu_times()
            deltas = asyncio.run(load(url, streams, tokens))
            after = psutil.Process(process.pid).cpu_times()
        finally:
            process.terminate()
            process.join()
    return deltas / (after.user + after.system - before.user - before.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100)
    arguments = parser.parse_args()
    peer = measure(serve_peer, arguments.streams, arguments.tokens)
    ours = measure(serve_ours, arguments.streams, arguments.tokens)
    print(f"{arguments.streams} streams of {arguments.tokens} tokens, tokens for each second of the server's CPU")
    print(f"pydantic chunks on starlette, as transformers serve: {peer:10,.0f}")
    print(f"the whole of this server:                            {ours:10,.0f}   {ours / peer:.2f} times")


if __name__ == "__main__":
    main()
