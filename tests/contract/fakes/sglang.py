"""A server that speaks SGLang's `/generate` as its source (0.5.23) has it: cumulative frames, `[DONE]` at any end."""

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
from tests.contract.fakes.common import Backend, frame, streaming

NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
PASSED = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "ignore_eos")


def app(backend: Backend, *, cumulative: bool = True) -> Starlette:
    async def health(request: Request) -> Response:
        return Response()

    async def models(request: Request) -> Response:
        entry = {"id": "demo", "object": "model", "owned_by": "sglang", "max_model_len": reference.CONTEXT}
        return JSONResponse({"object": "list", "data": [entry]})

    async def server_info(request: Request) -> Response:
        return JSONResponse(
            {"version": "0.5.23", "grammar_backend": "xgrammar", "enable_deterministic_inference": True}
        )

    async def tokenize(request: Request) -> Response:
        return JSONResponse({"tokens": reference.encode((await request.json())["prompt"])})

    async def generate(request: Request) -> Response:
        body = await request.json()
        backend.bodies.append(body)
        return streaming(frames(backend, body, cumulative))

    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/server_info", server_info),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/generate", generate, methods=["POST"]),
        ]
    )


def sampling_of(body: dict[str, Any]) -> SamplingParams:
    words = body["sampling_params"]
    seed = words.get("sampling_seed")
    return SamplingParams(
        **{name: words[name] for name in PASSED if name in words},
        **{ours: words[name] for name, ours in NAMES.items() if name in words},
        top_k=max(words.get("top_k", -1), 0),
        seed=seed,
        stop=tuple(words.get("stop", ())),
        stop_token_ids=tuple(words.get("stop_token_ids", ())),
        logit_bias={int(number): bias for number, bias in words.get("logit_bias", {}).items()},
        logprobs=body.get("top_logprobs_num") if body.get("return_logprob") else None,
    )


def constraint_of(words: dict[str, Any]) -> Constraint | None:
    if "structural_tag" in words:
        return Constraint(kind="structural_tag", value=json.loads(words["structural_tag"]))
    if "json_schema" in words:
        return Constraint(kind="json_schema", value=json.loads(words["json_schema"]))
    if "regex" in words:
        return Constraint(kind="regex", value=words["regex"])
    return Constraint(kind="ebnf", value=words["ebnf"]) if "ebnf" in words else None


async def frames(backend: Backend, body: dict[str, Any], cumulative: bool) -> AsyncIterator[bytes]:
    seen: list[Token] = []
    try:
        constraint = constraint_of(body["sampling_params"])
        async for tokens, end in backend.items(body["input_ids"], sampling_of(body), constraint):
            seen += tokens
            shown = seen if cumulative else tokens
            yield frame(
                {
                    "text": "".join(token.text for token in shown),
                    "output_ids": [token.id for token in shown],
                    "meta_info": meta(shown, len(seen), end, body),
                }
            )
    except EngineError as error:
        yield frame({"error": {"message": error.message, "type": "invalid_request_error", "code": 400}})
    yield b"data: [DONE]\n\n"


def meta(shown: list[Token], count: int, end: Finished | None, body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"completion_tokens": count, "cached_tokens": 0, "finish_reason": finish(shown, end)}
    if body.get("return_logprob"):
        found["output_token_logprobs"] = [[token.logprob, token.id, None] for token in shown]
        found["output_top_logprobs"] = [[[a.logprob, a.id, None] for a in t.alternatives or ()] for t in shown]
    return found


def finish(shown: list[Token], end: Finished | None) -> dict[str, Any] | None:
    if end is None:
        return None
    if end.reason == "length":
        return {"type": "length", "length": len(shown)}
    return {"type": "stop", "matched": end.stop if end.stop is not None else shown[-1].id}
