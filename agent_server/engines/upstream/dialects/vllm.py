"""vLLM's `/v1/completions` with token ids in and out, which is vLLM's stable interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.cache_salt import cache_salt
from agent_server.engines.upstream.dialects.dialect import (
    OutgoingRequest,
    Reader,
    UpstreamInfo,
    chosen_model,
    ids_of,
    known,
)
from agent_server.engines.upstream.dialects.openai_frames import CompletionReader
from agent_server.engines.upstream.dialects.words import Word, Words, folded, sampling_fields, spelled_ids
from agent_server.engines.upstream.errors import error_of
from agent_server.engines.upstream.grammar import UpstreamGrammar
from agent_server.engines.upstream.transport import Transport

SAMPLING_WORDS: Words = {
    "max_tokens": Word("max_tokens"),
    "min_tokens": Word("min_tokens"),
    "temperature": Word("temperature"),
    "top_p": Word("top_p"),
    "top_k": Word("top_k"),
    "min_p": Word("min_p"),
    "repetition_penalty": Word("repetition_penalty"),
    "presence_penalty": Word("presence_penalty"),
    "frequency_penalty": Word("frequency_penalty"),
    "logit_bias": Word("logit_bias", spelled_ids),
    "seed": Word("seed", folded),
    "stop_token_ids": Word("stop_token_ids"),
    "ignore_eos": Word("ignore_eos"),
    "allowed_token_ids": Word("allowed_token_ids", list),
}
"""vLLM's names for how a token is chosen, the same in its HTTP interface and in its own SamplingParams."""
SPELLING: Mapping[str, object] = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Special tokens keep their spelling, so that a stop string means the same text there as here."""
PROBE = "%llguidance {}\nstart: /[a-z]+/\n"
PROBE_TAG = '{"type":"structural_tag","format":{"type":"const_string","value":"a"}}'


class VLLM:
    """vLLM streams no prompt_logprobs and has no typical_p, so both are refused."""

    name = "vllm"
    path = "/v1/completions"
    health = "/health"
    tokens = True
    words: Words = {**SAMPLING_WORDS, "stop": Word("stop"), "logprobs": Word("logprobs")}

    async def describe(self, transport: Transport, wanted: str) -> UpstreamInfo:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], wanted, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        return UpstreamInfo(
            grammar=await _grammars(transport, model),
            model=model,
            models=tuple(each["id"] for each in entries),
            version=known((await transport.ask("/version")).json(), "version", str) or "",
            context_length=known(entry, "max_model_len", int),
        )

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        body = {"model": served.model, "prompt": text, "add_special_tokens": False}
        return ids_of((await transport.ask("/tokenize", body)).json())

    def check(self, outgoing: OutgoingRequest) -> None:
        """Every value of the parameters that it has words for can be honoured."""

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        body = {
            "model": outgoing.served.model,
            "prompt": request.prompt_token_ids,
            "stream": True,
            "stream_options": {"include_usage": True},
            "request_id": request.request_id,
            "return_token_ids": True,
            "add_special_tokens": False,
            **sampling_fields(self.words, sampling),
            **SPELLING,
            "return_tokens_as_token_ids": True if sampling.logprobs is not None else None,
            "structured_outputs": grammar_words(outgoing.grammar),
            "priority": -request.priority or None,
            "cache_salt": cache_salt(request.tenant, request.cache_salt),
        }
        return {name: value for name, value in body.items() if value is not None}

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return CompletionReader(ids=True, alternatives=outgoing.sampling.logprobs)


def grammar_words(grammar: UpstreamGrammar | None) -> dict[str, object] | None:
    """vLLM's `structured_outputs`."""
    if grammar is None:
        return None
    match grammar.kind:
        case "lark" | "ebnf":
            return {"grammar": grammar.value}
        case "structural_tag":
            return {"structural_tag": msgspec.json.encode(grammar.value).decode()}
        case "json_schema":
            return {"json": grammar.value}
        case "regex":
            return {"regex": grammar.value}


async def _grammars(transport: Transport, model: str) -> str | None:
    """The library behind structured outputs, found by trying. With vLLM's default setting a grammar in llguidance's
    Lark is accepted; a server that was started with xgrammar alone refuses it and accepts xgrammar's tags."""
    for language, words in (("llguidance", {"grammar": PROBE}), ("xgrammar", {"structural_tag": PROBE_TAG})):
        body = {"model": model, "prompt": [0], "max_tokens": 1, "structured_outputs": words}
        if (await transport.ask("/v1/completions", body)).status == 200:
            return language
    return None


async def models(transport: Transport) -> list[dict[str, Any]]:
    """The entries of /v1/models that are base models. Raises EngineError."""
    answer = await transport.ask("/v1/models")
    if answer.status != 200:
        raise error_of(answer.status, answer.body)
    data = known(answer.json(), "data", list) or []
    base_models = [entry for entry in data if known(entry, "id", str) and not known(entry, "parent", str)]
    if not base_models:
        raise EngineError("unavailable", f"The upstream {transport.address.url} lists no models.", retryable=True)
    return base_models
