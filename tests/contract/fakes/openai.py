"""A server with nothing but OpenAI's completions: text in, text out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_server.engine_protocol.protocol import EngineError
from events.options import SamplingParams
from tests.contract import reference
from tests.contract.fakes.common import Backend, frame, problem, streaming

KNOWN = {
    "model", "prompt", "stream", "stream_options", "max_tokens", "temperature", "top_p", "presence_penalty",
    "frequency_penalty", "seed", "stop",
}  # fmt: skip


def app(backend: Backend) -> Starlette:
    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "demo", "object": "model", "owned_by": "another"}]})

    async def completions(request: Request) -> Response:
        body = await request.json()
        backend.bodies.append(body)
        if unknown := set(body) - KNOWN:
            return problem(400, f"unknown parameters {sorted(unknown)}")
        return streaming(frames(backend, body))

    return Starlette(routes=[Route("/v1/models", models), Route("/v1/completions", completions, methods=["POST"])])


def sampling_of(body: dict[str, Any]) -> SamplingParams:
    passed = ("max_tokens", "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
    given = {name: body[name] for name in passed if name in body}
    return SamplingParams(**given, stop=tuple(body.get("stop", ())))


async def frames(backend: Backend, body: dict[str, Any]) -> AsyncIterator[bytes]:
    try:
        async for tokens, end in backend.items(list(reference.encode(body["prompt"])), sampling_of(body), None):
            text = "".join(token.text for token in tokens)
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": end.reason if end else None}
            yield frame({"object": "text_completion", "choices": [choice]})
    except EngineError as error:
        yield frame({"error": {"message": error.message, "type": "invalid_request_error", "code": "400"}})
    yield b"data: [DONE]\n\n"
