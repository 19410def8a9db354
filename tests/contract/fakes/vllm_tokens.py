"""vLLM's token-in token-out endpoint beside its completions, as vLLM 0.32 was seen to speak it."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import AsyncIterator
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_server.engine_protocol.protocol import EngineError, Finished, Picture, Token
from events.options import SamplingParams
from tests.contract.fakes import vllm
from tests.contract.fakes.common import Backend, frame, problem, streaming


def app(backend: Backend, *, sees: bool = False, **served: Any) -> Starlette:
    """sees: it is vLLM 0.33, whose endpoint takes pictures, as its source has it; served: see `vllm.app`."""

    async def generate(request: Request) -> Response:
        body = await request.json()
        backend.bodies.append(body)
        words = body["sampling_params"]
        if words.get("stop"):
            return problem(400, "stop strings are not supported")
        try:
            sampling = vllm.sampling_of(words)
            constraint = vllm.constraint_of(words.get("structured_outputs"))
        except ValueError as error:
            return problem(400, str(error))
        pictures = [decoded(part) for part in body.get("content_parts") or ()] if sees else []
        return streaming(frames(backend, body, sampling, constraint, pictures))

    async def described(request: Request) -> Response:
        fields = {"token_ids": {}, **({"content_parts": {}} if sees else {})}
        return JSONResponse({"components": {"schemas": {"GenerateRequest": {"properties": fields}}}})

    made = vllm.app(backend, **served)
    made.router.routes.append(Route("/openapi.json", described))
    made.router.routes.append(Route("/inference/v1/generate", generate, methods=["POST"]))
    return made


def decoded(part: dict[str, Any]) -> Picture:
    assert set(part) == {"type", "url"} and part["type"] == "image_url"
    image = Image.open(io.BytesIO(base64.b64decode(part["url"].removeprefix("data:image/png;base64,")))).convert("RGB")
    pixels = image.tobytes()
    return Picture(width=image.width, height=image.height, pixels=pixels, digest=hashlib.sha256(pixels).digest())


async def frames(
    backend: Backend, body: dict[str, Any], sampling: SamplingParams, constraint: Any, pictures: list[Picture]
) -> AsyncIterator[bytes]:
    try:
        async for tokens, end in backend.items(body["token_ids"], sampling, constraint, pictures):
            yield frame({"request_id": "1", "choices": [choice(tokens, end, sampling)]})
            if end is not None:
                yield frame(
                    {"choices": [], "usage": {"prompt_tokens": end.usage.prompt_tokens, "prompt_tokens_details": None}}
                )
    except EngineError as error:
        yield frame({"error": {"message": error.message, "type": "BadRequestError", "param": None, "code": 400}})
    yield b"data: [DONE]\n\n"


def choice(tokens: list[Token], end: Finished | None, sampling: SamplingParams) -> dict[str, Any]:
    content = [
        {
            "token_id": token.id,
            "logprob": token.logprob,
            "rank": 1,
            "top_logprobs": [{"token_id": a.id, "logprob": a.logprob, "rank": 1} for a in token.alternatives or ()],
        }
        for token in tokens
    ]
    return {
        "index": 0,
        "token_ids": [token.id for token in tokens],
        "finish_reason": end.reason if end else None,
        "stop_reason": end.stop if end else None,
        "logprobs": None if sampling.logprobs is None else {"content": content},
    }
