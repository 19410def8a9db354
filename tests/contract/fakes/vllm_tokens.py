"""vLLM's token-in token-out endpoint beside its completions, as vLLM 0.32 was seen to speak it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_server.engine.protocol import EngineError, Finished, Token
from events.options import SamplingParams
from tests.contract.fakes import vllm
from tests.contract.fakes.common import Backend, frame, problem, streaming


def app(backend: Backend) -> Starlette:
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
        return streaming(frames(backend, body, sampling, constraint))

    made = vllm.app(backend)
    made.router.routes.append(Route("/inference/v1/generate", generate, methods=["POST"]))
    return made


async def frames(
    backend: Backend, body: dict[str, Any], sampling: SamplingParams, constraint: Any
) -> AsyncIterator[bytes]:
    try:
        async for tokens, end in backend.items(body["token_ids"], sampling, constraint):
            yield frame({"request_id": "1", "choices": [choice(tokens, end, sampling)]})
            if end is not None:
                yield frame({"choices": [], "usage": {"prompt_tokens": 1, "prompt_tokens_details": None}})
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
