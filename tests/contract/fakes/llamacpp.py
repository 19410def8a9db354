"""A server that speaks llama.cpp's `/completion` as it was seen to: the reason comes in a frame of its own, and no ids
come of tokens that end within a character; errors of a stream are frames."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agent_server.engine_protocol.protocol import Constraint, EngineError, Token
from events.options import SamplingParams
from tests.contract import reference
from tests.contract.fakes.common import Backend, frame, streaming

NAMES = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
PASSED = ("temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "ignore_eos")


def app(backend: Backend) -> Starlette:
    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def models(request: Request) -> Response:
        meta = {"n_vocab": backend.engine.info.vocab_size, "n_ctx_train": reference.CONTEXT}
        return JSONResponse({"object": "list", "data": [{"id": "demo", "owned_by": "llamacpp", "meta": meta}]})

    async def props(request: Request) -> Response:
        settings = {"n_ctx": reference.CONTEXT}
        return JSONResponse({"default_generation_settings": settings, "model_alias": "demo", "build_info": "b1"})

    async def tokenize(request: Request) -> Response:
        return JSONResponse({"tokens": reference.encode((await request.json())["content"])})

    async def completion(request: Request) -> Response:
        body = await request.json()
        backend.bodies.append(body)
        return streaming(frames(backend, body))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/props", props),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/completion", completion, methods=["POST"]),
        ]
    )


def sampling_of(body: dict[str, Any]) -> SamplingParams:
    banned = dict.fromkeys(reference.files().stop_token_ids, -100.0) if body.get("ignore_eos") else {}
    return SamplingParams(
        **{name: body[name] for name in PASSED if name in body},
        **{ours: body[name] for name, ours in NAMES.items() if name in body},
        logit_bias={**dict(body.get("logit_bias", ())), **banned},
        logprobs=body.get("n_probs"),
    )


async def frames(backend: Backend, body: dict[str, Any]) -> AsyncIterator[bytes]:
    count = 0
    constraint = Constraint(kind="ebnf", value=body["grammar"]) if "grammar" in body else None
    try:
        async for tokens, end in backend.items(body["prompt"], sampling_of(body), constraint):
            for token in tokens:
                count += 1
                if token.text or token.id in reference.files().stop_token_ids or (token is tokens[-1] and end):
                    yield frame(partial(token, count, "n_probs" in body))
            if end is not None:
                kind = "limit" if end.reason == "length" else "eos"
                yield frame({"content": "", "tokens": [], "stop": True, "stop_type": kind, "tokens_predicted": count})
    except EngineError as error:
        yield frame({"error": {"code": 400, "message": error.message, "type": "invalid_request_error"}})


def partial(token: Token, count: int, probabilities: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"content": token.text, "tokens": [token.id], "stop": False, "tokens_predicted": count}
    if probabilities:
        tops = [{"id": a.id, "token": a.text, "logprob": a.logprob} for a in token.alternatives or ()]
        found["completion_probabilities"] = [{"id": token.id, "logprob": token.logprob, "top_logprobs": tops}]
    return found
