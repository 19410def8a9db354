"""A server that speaks vLLM's `/v1/completions` as vLLM 0.32 was seen to, with the embedded engine behind it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_server.engine_protocol.protocol import Constraint, EngineError, Finished, Token
from events.options import SamplingParams
from tests.contract import reference
from tests.contract.fakes.common import Backend, frame, problem, streaming

PASSED = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "min_tokens", "ignore_eos", "logprobs", "max_tokens",
)  # fmt: skip


def app(backend: Backend, model: str = "demo", context: int = reference.CONTEXT) -> Starlette:
    async def health(request: Request) -> Response:
        return Response()

    async def version(request: Request) -> Response:
        return JSONResponse({"version": "0.32.0"})

    async def models(request: Request) -> Response:
        entry = {"id": model, "object": "model", "owned_by": "vllm", "parent": None, "max_model_len": context}
        return JSONResponse({"object": "list", "data": [entry]})

    async def tokenize(request: Request) -> Response:
        ids = reference.encode((await request.json())["prompt"])
        return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": context})

    async def completions(request: Request) -> Response:
        body = await request.json()
        backend.bodies.append(body)
        if len(body["prompt"]) >= context:
            return problem(400, f"This model's maximum context length is {context} tokens.", "input_tokens")
        try:
            sampling, constraint = sampling_of(body), constraint_of(body.get("structured_outputs"))
        except ValueError as error:
            return problem(400, str(error))
        if not body.get("stream"):
            return await whole(backend, body["prompt"], sampling, constraint)
        return streaming(frames(backend, body, sampling, constraint))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/version", version),
            Route("/v1/models", models),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
        ]
    )


def sampling_of(body: dict[str, Any]) -> SamplingParams:
    """vLLM's defaults where the body says nothing: 16 tokens, temperature 1."""
    given = {"temperature": 1.0, "max_tokens": 16, **{name: body[name] for name in PASSED if name in body}}
    seed = body.get("seed")
    return SamplingParams(
        **given,
        seed=seed if seed is None else seed % 2**64,
        stop=tuple(body.get("stop", ())),
        stop_token_ids=tuple(body.get("stop_token_ids", ())),
        allowed_token_ids=tuple(body.get("allowed_token_ids", ())),
        logit_bias={int(number): bias for number, bias in body.get("logit_bias", {}).items()},
    )


def constraint_of(wanted: dict[str, Any] | None) -> Constraint | None:
    if not wanted:
        return None
    [(kind, value)] = wanted.items()
    match kind:
        case "grammar":
            return Constraint(kind="ebnf" if "::=" in value and "%llguidance" not in value else "lark", value=value)
        case "structural_tag":
            return Constraint(kind="structural_tag", value=json.loads(value))
        case "json":
            return Constraint(kind="json_schema", value=value)
        case "regex" | "choice":
            return Constraint(kind=kind, value=value)
    raise ValueError(f"unknown structured output {kind}")


async def whole(backend: Backend, prompt: list[int], sampling: SamplingParams, constraint: Any) -> Response:
    try:
        async for _tokens, _end in backend.items(prompt, sampling, constraint):
            pass
    except EngineError as error:
        return problem(400, error.message)
    return JSONResponse({"choices": [{"text": "", "finish_reason": "length"}]})


async def frames(
    backend: Backend, body: dict[str, Any], sampling: SamplingParams, constraint: Any
) -> AsyncIterator[bytes]:
    """An error is a frame under the status 200, and `[DONE]` follows whatever happened."""
    try:
        async for tokens, end in backend.items(body["prompt"], sampling, constraint):
            yield frame({"id": "cmpl-1", "object": "text_completion", "choices": [choice(tokens, end, sampling)]})
            if end is not None and body.get("stream_options", {}).get("include_usage"):
                details = {"prompt_tokens_details": None}
                yield frame({"choices": [], "usage": {"prompt_tokens": end.usage.prompt_tokens, **details}})
    except EngineError as error:
        code = 400 if error.kind in ("invalid_request", "context_length_exceeded") else 500
        yield frame({"error": {"message": error.message, "type": "BadRequestError", "param": None, "code": code}})
    yield b"data: [DONE]\n\n"


def choice(tokens: list[Token], end: Finished | None, sampling: SamplingParams) -> dict[str, Any]:
    return {
        "index": 0,
        "text": "".join(token.text for token in tokens),
        "token_ids": [token.id for token in tokens],
        "logprobs": None if sampling.logprobs is None else logprobs(tokens),
        "finish_reason": end.reason if end else None,
        "stop_reason": end.stop if end else None,
        "prompt_token_ids": None,
    }


def logprobs(tokens: list[Token]) -> dict[str, Any]:
    """The token that was taken is among the alternatives, whether or not it is one of the most likely."""
    tops = [
        {f"token_id:{token.id}": token.logprob, **{f"token_id:{a.id}": a.logprob for a in token.alternatives or ()}}
        for token in tokens
    ]
    return {
        "tokens": [f"token_id:{token.id}" for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops,
        "text_offset": [0] * len(tokens),
    }
